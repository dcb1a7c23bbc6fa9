"""Applies the options that an operator accepted to the positions of halted partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from lockstep.errors import LockstepError
from lockstep.integrity.resume_options import (
    NOTHING_THERE,
    Acceptance,
    AcceptDeleted,
    AcceptGrowth,
    AcceptLoss,
    Fixed,
    FromSnapshot,
    Recreated,
    SkipSession,
    Truncated,
    list_options,
)
from lockstep.model.finding import Finding
from lockstep.model.position import Position, SuspendedSession, TopicIdPartition
from lockstep.table.ledger import Accepted, LedgerRow
from lockstep.table.positions import DELETED, GROWN, RECREATED_TOPIC, LedgerStamp, make_kept_row, read_position


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


def make_accepted_rows(
    stamp: LedgerStamp, known: Mapping[TopicIdPartition, LedgerRow], decision: ResumeDecision
) -> list[LedgerRow]:
    """The rows of the resume: a full set, and the first rows of partitions added to a topic.

    Raises:
        PositionMismatch: A partition is not in the ledger, or a loss does not start at its position.
    """
    rows = list[LedgerRow]()
    for row in known.values():
        carried = make_kept_row(stamp, read_position(row), retired=row.retired)
        rows.append(replace(carried, newest_timestamp=row.newest_timestamp))
    for finding in decision.findings:
        if _covered_by(AcceptGrowth, decision, finding):
            rows.append(_taken_up(stamp, finding))
    for accepted in sorted(decision.accepted, key=_order):
        places = [place for place, row in enumerate(rows) if _concerns(accepted, row, decision)]
        if not places and not isinstance(accepted, Fixed):
            raise PositionMismatch(decision.stream, accepted, "no such partition in the ledger, or no such finding")
        for place in places:
            row = rows[place]
            rows[place] = _noted(_applied(row, accepted, decision), row, accepted, decision)
    return rows


def _order(accepted: Acceptance) -> bool:
    """Sort key: options that move a position precede those that depend on it."""
    return not isinstance(accepted, AcceptLoss)


def _covered_by(kind: type[Acceptance], decision: ResumeDecision, finding: Finding) -> bool:
    return any(isinstance(option, kind) and option.covers(finding) for option in decision.accepted)


def _concerns(accepted: Acceptance, row: LedgerRow, decision: ResumeDecision) -> bool:
    """Whether an option applies to this row; for a whole topic or halt, only if a finding names the row."""
    if not accepted.concerns(row.topic, row.partition):
        return False
    if isinstance(accepted, (AcceptLoss, SkipSession, FromSnapshot)):
        # A name may have several topics in the ledger: that of the finding; without one, that which is read.
        ids = {finding.topic_id for finding in decision.findings if accepted.concerns(finding.topic, finding.partition)}
        if ids:
            return row.topic_id in ids
        return not row.retired
    return _finding(accepted, row, decision) is not None


def _finding(accepted: Acceptance, row: LedgerRow, decision: ResumeDecision) -> Finding | None:
    """The finding about this row that an option covers; for the whole halt only findings without another option."""
    others = list[Acceptance]()
    if isinstance(accepted, Fixed):
        others = [option for option in decision.accepted if not isinstance(option, Fixed)]
    for finding in decision.findings:
        is_here = (finding.topic_id, finding.partition) == (row.topic_id, row.partition)
        if is_here and accepted.covers(finding) and not any(other.covers(finding) for other in others):
            return finding
    return None


def _applied(row: LedgerRow, accepted: Acceptance, decision: ResumeDecision) -> LedgerRow:
    """The row after its accepted options."""
    finding = _finding(accepted, row, decision)
    match accepted:
        case AcceptLoss():
            return _passed_over(row, accepted, decision.stream)
        case SkipSession(session=session):
            others = [skip for skip in row.suspended_sessions if skip.session != session]
            skip = SuspendedSession(session, max(row.until, finding.until if finding else 0))
            return replace(
                row,
                suspended_sessions=[*others, skip],
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
            unread = None
            if finding is not None and finding.until > row.until:
                unread = finding.until
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
            f"{loss.topic}/{loss.partition} is at offset {row.until}",
            instead=f"lockstep resume {stream} {list_options([instead])} --why '...'",
        )
    return _moved(row, loss.until)


def _moved(row: LedgerRow, until: int) -> LedgerRow:
    return replace(row, until=until, leader_epoch=None)


def _taken_up(stamp: LedgerStamp, finding: Finding) -> LedgerRow:
    """The first row of a partition added to a topic: nothing of it has been read."""
    first = Position(topic=finding.topic, topic_id=finding.topic_id, partition=finding.partition, next_offset=0)
    return replace(make_kept_row(stamp, first, retired=False), lifecycle=GROWN)


def _noted(row: LedgerRow, before: LedgerRow, accepted: Acceptance, decision: ResumeDecision) -> LedgerRow:
    """The row with the accepted options, user and reason."""
    finding = _finding(accepted, before, decision)  # of the row before: its position has moved since
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
