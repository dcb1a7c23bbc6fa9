"""Health of a stream: what somebody must act on, before data is lost. Pure: no files, no Kafka, no Dagster, no clock.

The command line, the health sensor, the check in Dagster and the exporter of metrics all take their alarms from here,
so that they cannot contradict each other. An alarm requires an action of a person; an unknown value
is reported as unknown, never as healthy. docs/health.md explains each alarm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum

import msgspec

from lockstep.control.heartbeat import Phase
from lockstep.declare.options import find_longest_batch, find_longest_wait
from lockstep.declare.stream import AnyStream
from lockstep.feature import list_broken_extensions, list_features, load_reference
from lockstep.kafka.open_transaction import OpenTransaction
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.operations.durations import format_count, format_duration
from lockstep.operations.followers import FollowerLag, FollowerStanding, make_forget_command
from lockstep.operations.inspect.partition_figures import PartitionFigures, find_least_headroom
from lockstep.table.follower_positions import FollowerName
from lockstep.table.head import Desired
from lockstep.table.losses import NONE_LOST, LostStates

WRITER_SECONDS_MAX = 180.0
"""A supervisor notices a dead writer within 12 s, and its start takes 20 to 60 s; 3 minutes are a start that failed."""
COUNTING_SECONDS_MAX = 30.0
"""A heartbeat is written every 0.4 s; one that is older than this belongs to a dead writer, or to a full disk."""
CLOCK_SECONDS_MAX = 60.0
"""Clocks of producers, brokers and the machines of lockstep may differ by less."""
URGENT_RATIO = 1 / 3
"""Headroom below this share of its objective is an error: a warning precedes it, with two thirds of the time left."""


class AlarmSeverity(Enum):
    """How soon somebody must act."""

    WARNING = "warning"
    """Today."""
    ERROR = "error"
    """Now."""


class AlarmKind(StrEnum):
    """The subject of an alarm of lockstep; at most one alarm of each kind, with the worst place."""

    HALTED = "halted"
    DEGRADED = "degraded"
    UNREADABLE = "unreadable"
    LOSS = "loss"
    CLOCK = "clock"
    KAFKA = "kafka"
    NO_WRITER = "no_writer"
    STALLED = "stalled"
    FRESHNESS = "freshness"
    HEADROOM = "headroom"
    EXPIRED = "expired"
    LEADERLESS = "leaderless"
    OPEN_TRANSACTION = "open_transaction"
    QUARANTINE = "quarantine"
    COMPACTION = "compaction"
    FOLLOWER = "follower"


OF_KAFKA = frozenset(
    {
        *(AlarmKind.STALLED, AlarmKind.FRESHNESS, AlarmKind.HEADROOM, AlarmKind.EXPIRED, AlarmKind.LEADERLESS),
        AlarmKind.OPEN_TRANSACTION,
    }
)
"""Unknown while Kafka does not answer."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody must act on.

    Attributes:
        kind: Its subject: an `AlarmKind`, or `<extension>.<kind>` of an extension.
        severity: How soon.
        problem: One sentence with the figures and the place.
        next_step: The command to run next.
    """

    kind: str
    severity: AlarmSeverity
    problem: str
    next_step: str


class TopicHalt(msgspec.Struct, frozen=True):
    """A topic that is not read, while the stream continues.

    Attributes:
        topic: Its name.
        reason: The first finding, without its session.
    """

    topic: str
    reason: str


class CompactionDebt(msgspec.Struct, frozen=True):
    """Closed hours that compaction has not rewritten yet.

    Attributes:
        hours: Their number.
        files: Their small files.
        oldest_hour: The oldest of them, "YYYY-MM-DDTHH" UTC; empty without one.
        oldest_seconds: Time since the end of that hour; 0 without one.
    """

    hours: int = 0
    files: int = 0
    oldest_hour: str = ""
    oldest_seconds: float = 0.0


NO_DEBT = CompactionDebt()


class HealthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The known facts about a stream at one moment.

    Attributes:
        stream: Its name.
        desired: The desired state; None before the first run, or while the table cannot be read.
        reason: Reason of the desired state; of a table that cannot be read, the problem.
        next_step: The command that ends a halt, or those of topics, or repairs the table; empty otherwise.
        halted_topics: Topics that are halted by themselves.
        epoch: Epoch of the writer that may commit.
        batch: Number of the last committed batch.
        writer: Phase of that writer's last heartbeat; None without one.
        writer_seconds: Age of that heartbeat; None without one.
        progress_seconds: Time since the last batch was committed, or the writer claimed the table; None before that.
        commit_ahead_seconds: How far the time of the newest commit is in the future; 0 if it is not.
        freshness_seconds: Age of the newest committed message; None without one.
        absurd_timestamps: Messages of the newest batch of each partition whose Kafka timestamp no clock can have shown,
            at least; freshness leaves them out.
        absent_removals: Removals, in the same batches, of keys that were not in the table of the fold.
        positions: The next offset of each partition ever read, by (topic id, partition).
        kafka: Reason why Kafka did not answer; empty when it did.
        partitions: Figures of the partitions that the stream reads or will read; none while Kafka does not answer.
        unavailable: Partitions without a leader that answers.
        transactions: Open transactions.
        quarantined_messages: Messages in quarantine.
        quarantined_last_hour: Those that entered it within the last hour.
        quarantined_ever: Those and all that retention has dropped from it.
        debt: Closed hours that wait for compaction.
        lost: States that were discarded, and the unaccepted part of them.
        followers: The followers that read the stream.
        damaged_followers: Followers whose position cannot be read: they may read the stream.
    """

    stream: str
    desired: Desired | None
    reason: str = ""
    next_step: str = ""
    halted_topics: tuple[TopicHalt, ...] = ()
    epoch: int = 0
    batch: int = 0
    writer: Phase | None = None
    writer_seconds: float | None = None
    progress_seconds: float | None = None
    commit_ahead_seconds: float = 0.0
    freshness_seconds: float | None = None
    absurd_timestamps: int = 0
    absent_removals: int = 0
    positions: Mapping[TopicIdPartition, int] = {}
    kafka: str = ""
    partitions: tuple[PartitionFigures, ...] = ()
    unavailable: tuple[TopicNamePartition, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()
    quarantined_messages: int = 0
    quarantined_last_hour: int = 0
    quarantined_ever: int = 0
    debt: CompactionDebt = NO_DEBT
    lost: LostStates = NONE_LOST
    followers: tuple[FollowerLag, ...] = ()
    damaged_followers: tuple[FollowerName, ...] = ()

    @property
    def has_table(self) -> bool:
        """Whether the stream has run, and its table can be read."""
        return self.desired is not None

    @property
    def is_unreadable(self) -> bool:
        """Whether there is a table that cannot be read."""
        return self.desired is None and bool(self.reason)

    @property
    def is_written(self) -> bool:
        """Whether the writer sends heartbeats."""
        silent = self.writer_seconds
        return self.writer not in {None, Phase.ENDED} and silent is not None and silent < COUNTING_SECONDS_MAX

    @property
    def is_wanted(self) -> bool:
        """Whether messages are to be committed: a stopped, held or halted stream misses nothing by waiting."""
        return self.desired in {Desired.RUNNING, Desired.BOUNDED}

    @property
    def lag_messages(self) -> int | None:
        """Offsets up to the high watermarks; None while Kafka does not answer."""
        if self.kafka:
            return None
        return sum(each.lag_messages for each in self.partitions)

    @property
    def headroom_seconds(self) -> float | None:
        """The least time until retention deletes an unread message; None without a limit, or unknown."""
        return find_least_headroom(self.partitions)

    @property
    def waiting_seconds(self) -> float | None:
        """Age of the oldest message that is not committed; 0 without one, None if no age is known."""
        if self.kafka:
            return None
        ages = [each.waiting_seconds for each in self.partitions if each.waiting_seconds is not None]
        if ages:
            return max(ages)
        return None if self.lag_messages else 0.0

    @property
    def unknown(self) -> tuple[AlarmKind, ...]:
        """Alarms that these facts can neither raise nor rule out."""
        if self.is_unreadable:
            return tuple(kind for kind in AlarmKind if kind is not AlarmKind.UNREADABLE)
        return tuple(kind for kind in AlarmKind if self.kafka and kind in OF_KAFKA)


def judge_health(facts: HealthFacts, stream: AnyStream) -> tuple[Alarm, ...]:
    """The alarms of a stream, errors first. A stream that never ran has none."""
    if facts.is_unreadable:
        return (make_unreadable_alarm(facts.reason, facts.next_step),)
    if not facts.has_table:
        return ()
    # Alarms of one severity are shown in this order.
    judges = (
        *(_judge_writer, _judge_clock, _judge_loss, _judge_waiting, _judge_retention, _judge_partitions),
        *(_judge_table, _judge_followers),
    )
    alarms = list[Alarm]()
    for judge in judges:
        alarms.extend(judge(facts, stream))
    alarms.extend(_judge_by_extensions(facts, stream))
    return tuple(sorted(alarms, key=lambda alarm: alarm.severity is not AlarmSeverity.ERROR))


BROKEN_EXTENSION = "extension"
"""The kind of the alarm about an extension that cannot be loaded, or whose alarm fails."""


def _judge_by_extensions(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """Yield the alarms of features and extensions, one of each kind; a failing one hides no other alarm."""
    alarms: dict[str, Alarm] = {}
    broken = [f"{error.problem}" for error in list_broken_extensions()]
    for feature in list_features():
        for reference in feature.alarms:
            try:
                for raised in load_reference(reference)(facts, stream):
                    alarm = msgspec.convert(msgspec.to_builtins(raised), Alarm)  # others rely on its types
                    kind = f"{feature.name}.{alarm.kind}"
                    alarms.setdefault(kind, msgspec.structs.replace(alarm, kind=kind))
            except Exception as error:  # noqa: BLE001  # the user's function: with any error
                broken.append(f"the alarm {reference} failed: {type(error).__name__}: {error}")
    yield from alarms.values()
    if broken:
        step = "correct the extension, or remove it from the setting extensions"
        yield Alarm(kind=BROKEN_EXTENSION, severity=AlarmSeverity.ERROR, problem="; ".join(broken), next_step=step)


def make_unreadable_alarm(problem: str, next_step: str) -> Alarm:
    """The alarm of a table that cannot be read."""
    return _alarm(AlarmKind.UNREADABLE, f"the table cannot be read: {problem}", next_step)


def compute_patience_seconds(stream: AnyStream) -> float:
    """Longest time without a commit while messages wait: the trigger's wait, and a batch."""
    longest = find_longest_wait(stream.trigger) + find_longest_batch(stream.trigger, stream.limits)
    return longest.total_seconds()


def _judge_writer(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """A halt; a Kafka that does not answer; a stream that is to be running and has no writer."""
    if facts.desired is Desired.HALTED:
        yield _alarm(AlarmKind.HALTED, f"the stream is halted: {facts.reason}", facts.next_step)
    if facts.halted_topics:
        yield _make_degraded_alarm(facts)
    if facts.kafka:
        severity = AlarmSeverity.ERROR if facts.is_wanted else AlarmSeverity.WARNING
        problem = f"lag, freshness and headroom are unknown: {facts.kafka}"
        if facts.is_wanted:
            problem = f"{problem}; runs wait for it, and continue by themselves"
        yield _alarm(AlarmKind.KAFKA, problem, "lockstep doctor", severity)
    if _lacks_writer(facts):
        problem = f"the stream is to be running, and epoch {facts.epoch} has had no live writer"
        if facts.writer_seconds is not None:
            problem = f"{problem} for {format_duration(facts.writer_seconds)}"
        yield _alarm(AlarmKind.NO_WRITER, problem, f"lockstep start {stream.name}")


def _make_degraded_alarm(facts: HealthFacts) -> Alarm:
    """Topics that a violation has halted, with the messages that wait behind it."""
    topics = {halt.topic for halt in facts.halted_topics}
    count = len(facts.halted_topics)
    first = facts.halted_topics[0]
    others = f" ({count} topics in all)" if count > 1 else ""
    problem = f"topic {first.topic} is halted, the others are read{others}: {first.reason}"
    if not facts.kafka:  # else the lag is unknown
        waiting = sum(partition.lag_messages for partition in facts.partitions if partition.topic in topics)
        problem = f"{problem}; {format_count(waiting, 'message')} wait"
    return _alarm(AlarmKind.DEGRADED, problem, facts.next_step)


def _judge_clock(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """Commits of a clock that was ahead: commit times never go back, so hours do not end until this time is reached."""
    if facts.commit_ahead_seconds > CLOCK_SECONDS_MAX:
        ahead = format_duration(facts.commit_ahead_seconds)
        problem = (
            f"batch {facts.batch} was committed {ahead} ahead of this machine's clock: until then no hour closes, so "
            "that compaction, export and retention wait, and a stall is not seen"
        )
        step = f"compare the clocks of the machines that run {stream.name} and of this one (chronyc tracking)"
        yield _alarm(AlarmKind.CLOCK, problem, step, AlarmSeverity.WARNING)


def _judge_loss(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """Lost states that no operator has accepted: of every stream that has run, in any state."""
    lost = facts.lost
    if not lost.open:
        return
    since = f"batches from {lost.first_batch} on"
    if lost.first_batch == lost.last_batch:
        since = f"batch {lost.first_batch}"
    sessions = format_count(lost.open.sessions, "session")
    what = f"{sessions} lost states"
    if lost.open.messages:
        messages = format_count(lost.open.messages, "message")
        what = f"{sessions} lost their states, and with them {messages}"
    problem = f"{what}, in {since}: no row has them"
    yield _alarm(AlarmKind.LOSS, problem, f"lockstep losses {stream.name}")


def _lacks_writer(facts: HealthFacts) -> bool:
    """Whether it has lacked a writer for long; after a resumption or a start, a writer has as long to start."""
    silent = facts.progress_seconds if facts.writer_seconds is None else facts.writer_seconds
    return facts.desired is Desired.RUNNING and not facts.is_written and (silent is None or silent > WRITER_SECONDS_MAX)


def _judge_waiting(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """Messages that wait too long: because no batch is committed, or longer than the objective allows.

    A topic without new messages is never stale. A stream that catches up misses its objective, too, but commits: that
    is a warning.
    """
    patience = compute_patience_seconds(stream)
    since = facts.progress_seconds
    stands = since is not None and since > patience
    halted = {each.topic for each in facts.halted_topics}
    # Messages of a halted topic wait for an operator, not for the writer.
    read = [each for each in facts.partitions if each.topic not in halted]
    waiting = [each for each in read if each.readable_messages and each.waiting_seconds is not None]
    oldest = max(waiting, key=_waiting_seconds, default=None)
    if not facts.is_wanted or oldest is None:
        return
    if facts.is_written and stands and _waiting_seconds(oldest) > patience:
        messages = format_count(sum(each.lag_messages for each in read), "message")
        problem = (
            f"{messages} wait, and nothing has been committed for "
            f"{format_duration(since)}, since batch {facts.batch}; epoch {facts.epoch} is alive"
        )
        yield _alarm(AlarmKind.STALLED, problem, f"lockstep plan {stream.name}, and the log of the run")
    objective = stream.objectives.freshness
    if objective is not None and _waiting_seconds(oldest) > objective.total_seconds():
        problem = (
            f"the oldest uncommitted message, of {_place(oldest)}, waits for "
            f"{format_duration(oldest.waiting_seconds)}; the objective is {format_duration(objective.total_seconds())}"
        )
        # A stream that catches up misses its objective, too, but it commits.
        severity = AlarmSeverity.ERROR if stands or not facts.is_written else AlarmSeverity.WARNING
        yield _alarm(AlarmKind.FRESHNESS, problem, f"lockstep plan {stream.name}", severity)


def _judge_retention(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """Unread messages that retention deletes soon, or has deleted: of every stream that has run, in any state."""
    wanted = stream.objectives.headroom.total_seconds()
    low = [each for each in facts.partitions if _headroom_share(each, wanted) < 1]
    if low:
        worst = min(low, key=lambda each: _headroom_share(each, wanted))
        when = "at any moment"
        if worst.headroom_seconds is not None and worst.headroom_seconds > 0:
            when = f"in {format_duration(worst.headroom_seconds)}"
        problem = (
            f"retention deletes the first unread message of {_place(worst)} {when} "
            f"with {format_count(worst.lag_messages, 'unread message')}{_in_all(low)}; "
            f"the objective is {format_duration(_needed_headroom(worst, wanted))}"
        )
        severity = AlarmSeverity.ERROR if _headroom_share(worst, wanted) < URGENT_RATIO else AlarmSeverity.WARNING
        yield _alarm(AlarmKind.HEADROOM, problem, _start_or_plan(facts), severity)
    lost = [each for each in facts.partitions if each.expired_messages]
    if lost:
        total = sum(each.expired_messages for each in lost)
        worst = max(lost, key=lambda each: each.expired_messages)
        problem = (
            f"retention has deleted {format_count(total, 'unread offset')}, most of {_place(worst)}{_in_all(lost)}"
        )
        yield _alarm(AlarmKind.EXPIRED, problem, f"lockstep plan {stream.name} --restart")


def _judge_partitions(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """Partitions of which no message can be read: without a leader, or behind a transaction that does not end."""
    if not facts.is_wanted:
        return
    if facts.unavailable:
        topic, partition = facts.unavailable[0]
        more = _in_all(facts.unavailable)
        problem = f"{topic}/{partition} has no leader that answers{more}: it can be neither read nor written"
        command = "kafka-topics.sh --bootstrap-server HOST:PORT --describe --unavailable-partitions"
        step = f"{command} names the brokers that hold the replicas: start them"
        yield _alarm(AlarmKind.LEADERLESS, problem, step)
    limit = stream.objectives.open_transaction.total_seconds()
    open_too_long = [each for each in facts.transactions if each.seconds > limit]
    if open_too_long:
        worst = max(open_too_long, key=lambda each: each.seconds)
        problem = (
            f"a transaction open for {format_duration(worst.seconds)} hides "
            f"{format_count(worst.hidden_offsets, 'offset')} "
            f"of {worst.topic}/{worst.partition} from {worst.stable_end} on{_in_all(open_too_long)}"
        )
        tool = "kafka-transactions.sh --bootstrap-server HOST:PORT"
        place = f"--topic {worst.topic} --partition {worst.partition}"
        abort = f"{tool} abort {place} --start-offset {worst.stable_end}"
        step = f"{tool} find-hanging {place}; if it is listed, {abort}"
        yield _alarm(AlarmKind.OPEN_TRANSACTION, problem, step, AlarmSeverity.WARNING)


def _judge_table(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """A growing quarantine, and hours that nothing compacts."""
    limit = stream.objectives.quarantine_per_hour
    if facts.quarantined_last_hour > limit:
        problem = (
            f"{format_count(facts.quarantined_last_hour, 'message')} entered quarantine within the last hour, "
            f"more than {limit}; {facts.quarantined_messages} are in it"
        )
        yield _alarm(AlarmKind.QUARANTINE, problem, f"lockstep quarantine list {stream.name}", AlarmSeverity.WARNING)
    if facts.debt.oldest_seconds > stream.objectives.uncompacted.total_seconds():
        problem = (
            f"hour {facts.debt.oldest_hour} has waited for compaction for {format_duration(facts.debt.oldest_seconds)} "
            f"({format_count(facts.debt.hours, 'hour')} with {facts.debt.files} small files)"
        )
        yield _alarm(AlarmKind.COMPACTION, problem, f"lockstep compact {stream.name}", AlarmSeverity.WARNING)


def _judge_followers(facts: HealthFacts, stream: AnyStream) -> Iterator[Alarm]:
    """Followers whose last run failed, or that leave batches unread for too long, of any state of the stream."""
    limit = stream.objectives.follower_lag.total_seconds()
    raised = [lag for lag in facts.followers if lag.failure or (lag.is_behind and lag.last_run_seconds > limit)]
    damaged = facts.damaged_followers
    if not raised and not damaged:
        return
    if raised:
        worst = max(raised, key=lambda lag: (bool(lag.failure), lag.last_run_seconds))
        name = worst.name
        step = worst.command
        problem = _describe_lag(worst, limit)
    else:
        name = damaged[0]
        step = "run it, which writes its position"
        problem = f"the position of {name} cannot be read, so that its lag is unknown"
    others = len(raised) + len(damaged) - 1
    more = f" ({others + 1} followers in all)" if others else ""
    forget = f"if its declaration was removed: {make_forget_command(name)}"
    yield _alarm(AlarmKind.FOLLOWER, f"{problem}{more}", f"{step}; {forget}", AlarmSeverity.WARNING)


def _describe_lag(lag: FollowerLag, limit: float) -> str:
    since = format_duration(lag.last_run_seconds)
    if lag.failure:
        return f"{lag.name}: its last run, {since} ago, failed with {lag.failure}"
    why = lag.standing.value
    if lag.standing is FollowerStanding.FOLLOWS:
        why = f"{lag.unread_batches:,} unread batches"
        if lag.unread_batches == 1:
            why = "1 unread batch"
    return f"{lag.name}: {why}, and no run for {since}; the objective is {format_duration(limit)}"


def _alarm(kind: AlarmKind, problem: str, next_step: str, severity: AlarmSeverity = AlarmSeverity.ERROR) -> Alarm:
    return Alarm(kind=kind, severity=severity, problem=problem, next_step=next_step)


def _waiting_seconds(partition: PartitionFigures) -> float:
    return partition.waiting_seconds or 0.0


def _needed_headroom(partition: PartitionFigures, wanted: float) -> float:
    """The headroom objective of a partition: half of its retention at most, which a stream without lag always has."""
    if partition.retention_seconds is None:
        return wanted
    return min(wanted, partition.retention_seconds / 2)


def _headroom_share(partition: PartitionFigures, wanted: float) -> float:
    """Headroom as a share of the objective; 1 if nothing unread can expire."""
    needed = _needed_headroom(partition, wanted)
    if not partition.lag_messages or partition.headroom_seconds is None or needed <= 0:
        return 1.0
    return partition.headroom_seconds / needed


def _start_or_plan(facts: HealthFacts) -> str:
    """What lets the stream read on."""
    if facts.desired is Desired.HALTED:
        return facts.next_step
    if facts.is_written:
        return f"lockstep plan {facts.stream}"
    return f"lockstep start {facts.stream}"


def _place(partition: PartitionFigures) -> str:
    return f"{partition.topic}/{partition.partition}"


def _in_all(places: Sequence[object]) -> str:
    """The number of places, where more than the one that is named has the problem."""
    if len(places) > 1:
        return f" ({len(places)} partitions in all)"
    return ""
