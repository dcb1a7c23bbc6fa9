"""The contents of the page: one card for each stream, and one view of a stream. Pure: no files, no Kafka, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from lockstep.control.live_report import LiveBatch, LiveReport, LiveTopic, compute_rates
from lockstep.declare.rules import Severity
from lockstep.features.quality.rules import RuleOutcome
from lockstep.operations.alarms import Alarm, HealthFacts
from lockstep.operations.growth import DiskGrowth
from lockstep.operations.inspect.history import StreamEvent
from lockstep.operations.last_proof import LastProof
from lockstep.operations.quarantine import QuarantineGroup
from lockstep.table.head import Desired

RATE_SECONDS = 10.0
"""Window of the rates."""


class ShownState(Enum):
    """The state of a stream in one or two words."""

    RUNNING = "running"
    STARTING = "starting"
    DEGRADED = "degraded"
    """Topics of it are halted, and the others are read."""
    HALTED = "halted"
    NO_WRITER = "no writer"
    """It is to be running, and no process writes."""
    ENDED = "ended"
    """A bounded run has ended."""
    STOPPED = "stopped"
    HELD = "held"
    UNREADABLE = "unreadable"
    NO_TABLE = "no table yet"
    UNKNOWN = "unknown"
    """It has not been read yet."""


class WriterSnapshot(msgspec.Struct, frozen=True):
    """The files of a writer at one moment.

    Attributes:
        is_alive: Whether its heartbeat counts.
        report: Its report; None without one.
    """

    is_alive: bool = False
    report: LiveReport | None = None


class StreamDeclaration(msgspec.Struct, frozen=True):
    """The declaration of a stream, as text.

    Attributes:
        name: Its name.
        topics: Pattern of its topics.
        integrity: Its integrity class.
        trigger: Its trigger.
        description: Its description.
    """

    name: str
    topics: str
    integrity: str
    trigger: str
    description: str


class StreamCard(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in the list of all.

    Attributes:
        name: Its name.
        state: Its state.
        reason: Reason of that state; empty while it runs.
        alarms: Its alarms, errors first.
        topics: Topics that it reads; None while unknown.
        lag_messages: Messages behind the high watermarks; None while unknown.
        newest_at: Kafka timestamp of the newest committed message, in seconds since 1970; None without one.
        committed_at: Time of the newest commit that is known, in seconds since 1970; None without one.
        messages: Messages a second; None without a writer.
        rows: Rows a second; None without a writer.
        batch_seconds: Mean time of a batch; None without one.
        cpu_cores: CPU seconds of tasks a second; None without a writer.
    """

    name: str
    state: ShownState
    reason: str = ""
    alarms: tuple[Alarm, ...] = ()
    topics: int | None = None
    lag_messages: int | None = None
    newest_at: float | None = None
    committed_at: float | None = None
    messages: float | None = None
    rows: float | None = None
    batch_seconds: float | None = None
    cpu_cores: float | None = None


class CheckedRule(msgspec.Struct, frozen=True, kw_only=True):
    """The last result of a rule."""

    rule: str
    sentence: str
    outcome: RuleOutcome
    severity: Severity
    reason: str


class CheckVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The last check of the table.

    Attributes:
        at: Its time, in seconds since 1970 (UTC); None if unknown.
        holds: Whether every critical rule holds and could be judged.
        completeness_percent: Percentage of the offsets ever read that is accounted for; None when none was read.
        rules: The rules, broken ones first.
    """

    at: float | None
    holds: bool
    completeness_percent: float | None
    rules: tuple[CheckedRule, ...]


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether rows of the stream are missing.

    Attributes:
        is_complete: Whether nothing is known to be missing.
        sentence: The answer with its evidence.
    """

    is_complete: bool
    sentence: str


class StreamDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are read less often, and only of a stream that somebody watches.

    Attributes:
        history: The newest events, oldest first.
        quarantine: The largest groups of messages in quarantine.
        quarantine_more: Groups that are left out.
        quarantine_messages: Messages in quarantine.
        check: The last check; None before the first.
        proof: The last `lockstep verify`; None before the first.
        growth: Files and bytes on disk; None before the first housekeeping.
        problem: Why some of it could not be read; empty if all could.
    """

    history: tuple[StreamEvent, ...] = ()
    quarantine: tuple[QuarantineGroup, ...] = ()
    quarantine_more: int = 0
    quarantine_messages: int = 0
    check: CheckVerdict | None = None
    proof: LastProof | None = None
    growth: DiskGrowth | None = None
    problem: str = ""


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """One stream.

    Attributes:
        card: As in the list of all.
        declared: Its declaration.
        detail: Facts that are read less often.
        complete: Whether its rows are complete; None before the table was read.
        epoch: Epoch of its writer; None without one.
        run_id: Id of its run; empty without one.
        cause: Cause of its start; empty without one.
        claimed_at: Time of its claim, in seconds since 1970 (UTC); None without one.
        topics: Its topics with the lag of each partition.
        waiting: Topics that it does not read yet.
        batches: The newest batches, oldest first.
        headroom_seconds: Time until retention deletes an unread message; None without a limit, or unknown.
        generation: Generation of its table; 0 without one.
        batch: Number of its newest batch.
    """

    card: StreamCard
    declared: StreamDeclaration
    detail: StreamDetail
    complete: Completeness | None = None
    epoch: int | None = None
    run_id: str = ""
    cause: str = ""
    claimed_at: float | None = None
    topics: tuple[LiveTopic, ...] = ()
    waiting: tuple[str, ...] = ()
    batches: tuple[LiveBatch, ...] = ()
    headroom_seconds: float | None = None
    generation: int = 0
    batch: int = 0


class KnownStream(msgspec.Struct, frozen=True, kw_only=True):
    """All facts of a stream.

    Attributes:
        declared: Its declaration.
        live: Its writer.
        facts: Its health, as of the newest poll of table and Kafka; None before the first.
        alarms: The alarms of that known.
        polled_at: Time of that known, in seconds since 1970 (UTC).
        generation: Generation of its table then.
        detail: Facts that are read less often.
    """

    declared: StreamDeclaration
    live: WriterSnapshot = WriterSnapshot()
    facts: HealthFacts | None = None
    alarms: tuple[Alarm, ...] = ()
    polled_at: float = 0.0
    generation: int = 0
    detail: StreamDetail = StreamDetail()


def make_card(known: KnownStream, now: float) -> StreamCard:
    """A stream in the list of all.

    Args:
        known: The facts.
        now: Time of this machine, in seconds since 1970 (UTC).
    """
    facts = known.facts
    report = known.live.report if known.live.is_alive else None
    topics = _list_topics(known)
    state = find_state(known)
    card = StreamCard(
        name=known.declared.name,
        state=state,
        alarms=known.alarms,
        newest_at=_find_newest(known, topics),
        committed_at=_find_commit(known),
    )
    if facts is not None and state not in {ShownState.RUNNING, ShownState.STARTING}:
        card = msgspec.structs.replace(card, reason=facts.reason)
    # Without a writer only an answer of Kafka tells the lag.
    if report is not None or (facts is not None and facts.has_table and not facts.kafka):
        lag_messages = sum(sum(topic.lag_messages) for topic in topics)
        card = msgspec.structs.replace(card, topics=len(topics), lag_messages=lag_messages)
    if report is None:
        return card
    rates = compute_rates(report, now, RATE_SECONDS)
    return msgspec.structs.replace(
        card,
        messages=rates.messages,
        rows=rates.rows,
        batch_seconds=rates.batch_seconds,
        cpu_cores=rates.cpu_cores,
    )


_RESTING = {
    Desired.HALTED: ShownState.HALTED,
    Desired.STOPPED: ShownState.STOPPED,
    Desired.HELD: ShownState.HELD,
}


def find_state(known: KnownStream) -> ShownState:
    """The state of a stream."""
    facts = known.facts
    if facts is None:
        return ShownState.UNKNOWN
    if facts.is_unreadable:
        return ShownState.UNREADABLE
    if facts.desired is None:
        return ShownState.STARTING if known.live.is_alive else ShownState.NO_TABLE
    # What people decided comes before what a process does.
    return _RESTING.get(facts.desired) or _find_writing(known, facts)


def _find_writing(known: KnownStream, facts: HealthFacts) -> ShownState:
    """The state of a stream that is to be running."""
    if not known.live.is_alive:
        return ShownState.ENDED if facts.desired is Desired.BOUNDED else ShownState.NO_WRITER
    if facts.halted_topics:
        return ShownState.DEGRADED
    return ShownState.STARTING if known.live.report is None else ShownState.RUNNING


def make_view(known: KnownStream, now: float) -> StreamView:
    """One stream; see `make_card`."""
    facts = known.facts
    report = known.live.report
    topics = _list_topics(known)
    view = StreamView(
        card=make_card(known, now),
        declared=known.declared,
        detail=known.detail,
        topics=topics,
        generation=known.generation,
    )
    if facts is not None:
        read = {topic.topic for topic in topics}
        view = msgspec.structs.replace(
            view,
            complete=judge_completeness(facts, known.detail),
            waiting=tuple(sorted({partition.topic for partition in facts.partitions} - read)),
            headroom_seconds=facts.headroom_seconds,
            batch=max(0, facts.batch),
        )
    if report is None:
        return view
    return msgspec.structs.replace(
        view,
        epoch=report.epoch,
        run_id=report.run_id,
        cause=report.cause,
        claimed_at=report.claimed_at,
        batches=report.batches,
        # The report is of this second, the facts of the newest poll of the table.
        batch=max(view.batch, _find_newest_batch(report)),
    )


def judge_completeness(facts: HealthFacts, detail: StreamDetail) -> Completeness:
    """Judge whether rows are missing, from losses, retention, quarantine, the last check and the last proof."""
    missing = list(_list_missing(facts, detail))
    evidence = list(_list_evidence(detail))
    if missing:
        return Completeness(is_complete=False, sentence="; ".join([*missing, *evidence]))
    return Completeness(is_complete=True, sentence="; ".join(["no loss is open", *evidence]))


def _list_missing(facts: HealthFacts, detail: StreamDetail) -> Iterable[str]:
    if facts.lost.open:
        yield f"{facts.lost.open.sessions:,} sessions lost their states, {facts.lost.open.messages:,} messages"
    if expired := sum(partition.expired_messages for partition in facts.partitions):
        yield f"{expired:,} offsets were deleted by Kafka before they were read"
    if facts.quarantined_messages:
        yield f"{facts.quarantined_messages:,} messages are in quarantine"
    if detail.check is not None and not detail.check.holds:
        yield "the last check found a broken rule"
    if detail.proof is not None and detail.proof.is_broken:
        yield f"lockstep verify found {detail.proof.violations:,} violations"


def _list_evidence(detail: StreamDetail) -> Iterable[str]:
    check = detail.check
    proof = detail.proof
    if check is not None and check.completeness_percent is not None:
        yield f"the last check accounts for {check.completeness_percent:g} % of the offsets"
    if proof is not None and not proof.is_broken:
        yield f"lockstep verify: {proof.status} up to batch {proof.batch:,}"
    if proof is None:
        yield "not verified yet"


def _list_topics(known: KnownStream) -> tuple[LiveTopic, ...]:
    """The topics of the live report; without a writer, those of the newest poll of Kafka."""
    report = known.live.report
    facts = known.facts
    # The report is of this second, the health some seconds older.
    if known.live.is_alive and report is not None:
        return report.topics
    if facts is None:
        return ()
    by_topic: dict[str, list[tuple[int, int, int]]] = {}
    for partition in facts.partitions:
        by_topic.setdefault(partition.topic, []).append((partition.partition, partition.lag_messages, 0))
    return tuple(LiveTopic(name, *zip(*sorted(by_topic[name]), strict=True)) for name in sorted(by_topic))


def _find_newest(known: KnownStream, topics: Iterable[LiveTopic]) -> float | None:
    newest_ms = max((max(topic.newest_ms, default=0) for topic in topics), default=0)
    if newest_ms:
        return newest_ms / 1000
    if known.facts is None or known.facts.freshness_seconds is None:
        return None
    return known.polled_at - known.facts.freshness_seconds


def _find_commit(known: KnownStream) -> float | None:
    report = known.live.report
    if report is not None and report.batches:
        return report.batches[-1].committed_at
    if known.facts is None or known.facts.progress_seconds is None:
        return None
    return known.polled_at - known.facts.progress_seconds


def _find_newest_batch(report: LiveReport) -> int:
    return report.batches[-1].batch if report.batches else 0
