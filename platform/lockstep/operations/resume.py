"""Resumes a halted stream."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from lockstep.engine.driver.positions import DELETED, RECREATED_TOPIC, LedgerStamp, make_kept_row, read_position
from lockstep.errors import LockstepError
from lockstep.integrity.resume_options import (
    NOTHING_THERE,
    SHOWN_MAX,
    Acceptance,
    AcceptDeleted,
    AcceptGrowth,
    AcceptLoss,
    Fixed,
    FromSnapshot,
    Quarantined,
    Recreated,
    SkipSession,
    Truncated,
    find_unanswered,
    list_options,
    suggest_option,
    suggest_options,
)
from lockstep.model.finding import Finding
from lockstep.model.position import Key, Position, SuspendedSession
from lockstep.operations.position_commit import commit_positions
from lockstep.operations.resume_cost import OptionCost, ResumeCosts
from lockstep.operations.tables import open_table
from lockstep.table import ledger, side_tables
from lockstep.table.commit import commit_batch, commit_claim
from lockstep.table.commit_kind import CommitKind
from lockstep.table.head import Desired, Head, Resumption
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import Accepted, LedgerRow


class ResumeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision on a halt.

    Attributes:
        stream: The stream.
        findings: The evidence of the halt.
        accepted: The accepted resume options.
        who: The operator.
        why: The cause of the halt.
    """

    stream: str
    findings: tuple[Finding, ...]
    accepted: tuple[Acceptance, ...]
    who: str
    why: str


class PositionMismatch(LockstepError):
    """An accepted option does not match the stream's position.

    Attributes:
        accepted: The option and its argument.
    """

    def __init__(self, stream: str, accepted: Acceptance, problem: str, *, instead: str | None = None) -> None:
        self.accepted = list_options([accepted])
        super().__init__(
            f"{self.accepted}: {problem}", next_step=instead or f"lockstep status {stream} shows partitions"
        )


def make_accepted_rows(stamp: LedgerStamp, known: Mapping[Key, LedgerRow], decision: ResumeDecision) -> list[LedgerRow]:
    """The rows of the resume: a full set, and the first rows of partitions added to a topic.

    Raises:
        PositionMismatch: A partition is not in the ledger, or a loss does not begin at its position.
    """
    rows = [
        replace(make_kept_row(stamp, read_position(row), retired=row.retired), newest_timestamp=row.newest_timestamp)
        for row in known.values()
    ]
    rows += [_taken_up(stamp, finding) for finding in decision.findings if _covered_by(AcceptGrowth, decision, finding)]
    for accepted in sorted(decision.accepted, key=_order):
        places = [at for at, row in enumerate(rows) if _concerns(accepted, row, decision)]
        if not places and not isinstance(accepted, Fixed):
            raise PositionMismatch(decision.stream, accepted, "no such partition in the ledger, or no such finding")
        for at in places:
            rows[at] = _noted(_applied(rows[at], accepted, decision), rows[at], accepted, decision)
    return rows


def _order(accepted: Acceptance) -> bool:
    """Sort key: options that move a position come before those that depend on it."""
    return not isinstance(accepted, AcceptLoss)


def _covered_by(kind: type[Acceptance], decision: ResumeDecision, finding: Finding) -> bool:
    return any(isinstance(each, kind) and each.covers(finding) for each in decision.accepted)


def _concerns(accepted: Acceptance, row: LedgerRow, decision: ResumeDecision) -> bool:
    """Whether an option applies to this row; for a whole topic or halt, only where a finding names the row."""
    if not accepted.concerns(row.topic, row.partition):
        return False
    if isinstance(accepted, (AcceptLoss, SkipSession, FromSnapshot)):
        lives = {each.topic_id for each in decision.findings if accepted.concerns(each.topic, each.partition)}
        return row.topic_id in lives if lives else not row.retired
    return _finding(accepted, row, decision) is not None


def _finding(accepted: Acceptance, row: LedgerRow, decision: ResumeDecision) -> Finding | None:
    """The finding about this row that an option covers; for the whole halt only findings without another option."""
    named = [each for each in decision.accepted if not isinstance(each, Fixed)]
    others = named if isinstance(accepted, Fixed) else []
    for finding in decision.findings:
        here = (finding.topic_id, finding.partition) == (row.topic_id, row.partition)
        if here and accepted.covers(finding) and not any(other.covers(finding) for other in others):
            return finding
    return None


def _applied(row: LedgerRow, accepted: Acceptance, decision: ResumeDecision) -> LedgerRow:
    """The row after its accepted options."""
    finding = _finding(accepted, row, decision)
    match accepted:
        case AcceptLoss():
            return _passed_over(row, accepted, decision.stream)
        case SkipSession(session=session):
            others = [each for each in row.suspended_sessions if each.session != session]
            before = max(row.until, finding.until if finding else 0)
            return replace(
                row,
                suspended_sessions=[*others, SuspendedSession(session, before)],
                uncounted_skips=sorted({*row.uncounted_skips, session}),
            )
        case FromSnapshot():
            if finding is not None and finding.cause in NOTHING_THERE and row.until < finding.until:
                row = _moved(row, finding.until)
            until = max(row.until, row.suspended_from, _given_up_until(accepted, finding))
            return replace(row, suspended_from=until, discarded_by=accepted.OPTION)
        case Truncated():
            return replace(
                row, suspended_from=row.until, catching_up=True, leader_epoch=None, discarded_by=accepted.OPTION
            )
        case Recreated() | AcceptDeleted():
            change = DELETED if isinstance(accepted, AcceptDeleted) else RECREATED_TOPIC
            unread = finding.until if finding is not None and finding.until > row.until else None
            return replace(
                row, retired=True, lifecycle=change, ending=change, last_end=unread, discarded_by=accepted.OPTION
            )
        case _:
            return row


def _given_up_until(accepted: Acceptance, finding: Finding | None) -> int:
    """First offset after the accepted loss: the operator's, else the end of the finding."""
    if isinstance(accepted, FromSnapshot) and accepted.until is not None:
        return accepted.until
    return finding.until if finding else 0


def _passed_over(row: LedgerRow, loss: AcceptLoss, stream: str) -> LedgerRow:
    if loss.start != row.until:
        instead = AcceptLoss(loss.topic, loss.partition, row.until, max(loss.until, row.until + 1))
        raise PositionMismatch(
            stream,
            loss,
            f"{loss.topic}/{loss.partition} stands at offset {row.until}",
            instead=f"lockstep resume {stream} {list_options([instead])} --why '...'",
        )
    return _moved(row, loss.until)


def _moved(row: LedgerRow, until: int) -> LedgerRow:
    return replace(row, until=until, leader_epoch=None)


def _taken_up(stamp: LedgerStamp, finding: Finding) -> LedgerRow:
    """The first row of a partition added to a topic: nothing of it has been read."""
    first = Position(topic=finding.topic, topic_id=finding.topic_id, partition=finding.partition, next_offset=0)
    return make_kept_row(stamp, first, retired=False)


def _noted(row: LedgerRow, before: LedgerRow, accepted: Acceptance, decision: ResumeDecision) -> LedgerRow:
    """The row with the accepted options, user and reason."""
    finding = _finding(accepted, before, decision)
    note = Accepted(
        kind=accepted.OPTION,
        cause=finding.cause if finding else "",
        start=finding.offset if finding else before.until,
        until=max(row.until, _given_up_until(accepted, finding)),
        session=accepted.session if isinstance(accepted, SkipSession) else None,
        who=decision.who,
        why=decision.why,
    )
    return replace(row, accepted=[*row.accepted, note])


class NotHalted(LockstepError):
    """Resume of a stream that is not halted.

    Attributes:
        stream: The stream's name.
        desired: Its desired state.
    """

    def __init__(self, stream: str, desired: str) -> None:
        runs = desired == Desired.RUNNING.value
        step = f"nothing is to be resumed: lockstep status {stream}" if runs else f"lockstep start {stream}"
        super().__init__(f"stream {stream} is not halted, it is {desired}", next_step=step)
        self.stream = stream
        self.desired = desired


class UnansweredFindings(LockstepError):
    """A resume does not cover every finding of the halt.

    Attributes:
        stream: The stream's name.
        findings: Findings without a resume option.
    """

    def __init__(
        self, stream: str, findings: tuple[Finding, ...], accepted: Sequence[Acceptance], why: str = "..."
    ) -> None:
        left = "\n".join(f"  {finding}" for finding in findings[:SHOWN_MAX])
        whole = list_options([*accepted, *(suggest_option(finding) for finding in findings)])
        super().__init__(
            f"stream {stream} stays halted; these findings need a resume option:\n{left}",
            next_step=f"lockstep resume {stream} {whole} --why {shlex.quote(why)} (or --fixed, if the cause is fixed)",
        )
        self.stream = stream
        self.findings = findings


class PlannedAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of option does to the findings of one cause.

    Attributes:
        option: The option of `lockstep resume`, without dashes.
        cause: Cause of the findings.
        topics: Number of topics.
        partitions: Number of partitions.
        findings: Number of findings.
        offsets: Offsets that the findings name: they are passed over, quarantined, or read under suspended sessions.
    """

    option: str
    cause: str
    topics: int
    partitions: int
    findings: int
    offsets: int


class ResumePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume would do.

    Attributes:
        stream: Name of the stream.
        options: By option and cause.
        command: The whole options, each of which may be given by itself instead.
        unanswered: Findings without an option: the stream would stay halted.
        costs: What each option costs that is enough after a finding, the cheapest first; of the first findings.
    """

    stream: str
    options: tuple[PlannedAcceptance, ...]
    command: str
    unanswered: tuple[Finding, ...]
    costs: tuple[OptionCost, ...] = ()


def plan_resume(
    folders: StreamFolders, accepted: Sequence[Acceptance], *, suggested: bool, costs: ResumeCosts | None = None
) -> ResumePreview:
    """Show what a resume with these options would do; commits nothing.

    Args:
        folders: Folders of the stream.
        accepted: The resume options.
        suggested: Add the suggested option of each finding that no other covers.
        costs: Counts the cost of the options; None without the declaration.

    Raises:
        NoTable: The stream has never run.
        KafkaError: Kafka does not answer.
        NotHalted: The stream is not halted.
    """
    head = open_table(folders).base().head
    _refuse_running(head)
    options = [*accepted, *(suggest_options(head.findings, accepted) if suggested else ())]
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in head.findings:
        option = next((each.OPTION for each in options if each.covers(finding)), None)
        if option is not None:
            groups.setdefault((option, finding.cause), []).append(finding)
    return ResumePreview(
        stream=head.stream,
        options=tuple(_planned(option, cause, found) for (option, cause), found in sorted(groups.items())),
        command=list_options(options),
        unanswered=find_unanswered(head.findings, options),
        costs=tuple(costs.count(folders, head)) if costs else (),
    )


def _planned(option: str, cause: str, findings: Sequence[Finding]) -> PlannedAcceptance:
    return PlannedAcceptance(
        option=option,
        cause=cause,
        topics=len({each.topic for each in findings}),
        partitions=len({(each.topic, each.partition) for each in findings}),
        findings=len(findings),
        offsets=sum(max(0, each.until - each.offset) for each in findings),
    )


def resume_stream(
    folders: StreamFolders, *, why: str, who: str, accepted: Sequence[Acceptance], suggested: bool = False
) -> Head:
    """Resume a halted stream.

    1. Read the halt; each of its findings needs a resume option.
    2. Claim, so that no other run interferes; the stream stays halted until step 4.
    3. Apply the accepted options to each partition.
    4. Commit the resume as a batch of its own, with cause and operator in the ledger.

    Args:
        folders: Folders of the stream.
        why: The cause of the halt.
        who: The operator.
        accepted: The resume options.
        suggested: Add the suggested option of each finding that no other covers.

    Raises:
        NotHalted: The stream is not halted.
        UnansweredFindings: Names the findings without an option, and the whole command.
        PositionMismatch: An accepted option does not match the stream's position.
    """
    output = open_table(folders)
    before = output.base().head  # 1
    _refuse_running(before)
    accepted = [*accepted, *(suggest_options(before.findings, accepted) if suggested else ())]
    if left := find_unanswered(before.findings, accepted):
        places = {(row.topic, row.partition) for row in ledger.read_positions(folders, before).values()}
        raise UnansweredFindings(before.stream, left, [each for each in accepted if _is_somewhere(each, places)], why)
    claimed = output.commit(commit_claim(before.epoch, output.table_id, _refuse_running, cause="resume")).head  # 2
    side_tables.SideLogs(folders).catch_up(claimed)
    decision = ResumeDecision(
        stream=claimed.stream, findings=claimed.findings, accepted=tuple(accepted), who=who, why=why
    )
    rows = make_accepted_rows(_stamp(claimed, decision), ledger.read_positions(folders, claimed), decision)  # 3
    burst = any(isinstance(each, Quarantined) for each in accepted)
    resumption = Resumption(batch=claimed.batch + 1, at=time.time(), cause=f"{why} ({who})")
    return commit_positions(  # 4
        output,
        folders,
        claimed,
        rows,
        lambda writer, batch: commit_batch(
            writer,
            replace(batch, accepts_burst=burst, resumption=resumption),
            kind=CommitKind.RESUME,
            reason=f"resumed: {why} ({who})",
        ),
    )


def _is_somewhere(accepted: Acceptance, places: Iterable[tuple[str, int]]) -> bool:
    """Whether a finding concerns a partition that the stream reads: others would be refused as part of any command."""
    return any(accepted.concerns(topic, partition) for topic, partition in places)


def _stamp(head: Head, decision: ResumeDecision) -> LedgerStamp:
    return LedgerStamp(
        generation=head.generation,
        batch=head.batch + 1,
        epoch=head.epoch,
        committed_at=ledger.read_clock(),
        batch_seconds=0.0,
        restart_cause=f"resume: {decision.why} ({decision.who})",
    )


def _refuse_running(head: Head) -> None:
    if head.desired is not Desired.HALTED:
        raise NotHalted(head.stream, head.desired.value)
