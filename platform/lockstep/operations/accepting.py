"""What a resumption leaves in the ledger: a row a partition, with what an operator accepted of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from lockstep.engine.bookkeeping import BatchIdentity, carried
from lockstep.errors import LockstepError
from lockstep.integrity.acceptance import (
    NOTHING_THERE,
    Acceptance,
    FromSnapshot,
    Gone,
    Grown,
    Loss,
    Mended,
    Recreated,
    SkipSession,
    Truncated,
    options,
)
from lockstep.integrity.finding import Finding
from lockstep.integrity.suspending import SuspendedSession
from lockstep.kafka.audit import Key
from lockstep.table.ledger import Accepted, LedgerRow


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator decided of a halt.

    Attributes:
        stream: The stream.
        findings: The evidence of the halt.
        accepted: What is accepted.
        who: The operator.
        why: The cause that was found.
    """

    stream: str
    findings: tuple[Finding, ...]
    accepted: tuple[Acceptance, ...]
    who: str
    why: str


class NotThere(LockstepError):
    """What is accepted is not where the stream stands.

    Attributes:
        accepted: The option and its argument.
    """

    def __init__(self, stream: str, accepted: Acceptance, problem: str, *, instead: str | None = None) -> None:
        self.accepted = options([accepted])
        super().__init__(
            f"{self.accepted}: {problem}", next_step=instead or f"lockstep status {stream} shows partitions"
        )


def accepted_rows(identity: BatchIdentity, known: Mapping[Key, LedgerRow], decision: Decision) -> list[LedgerRow]:
    """The rows of the resumption: a full set, and the first rows of partitions that a topic grew by.

    Raises:
        NotThere: A partition is not in the ledger, or a loss does not begin where it stands.
    """
    rows = [carried(identity, row) for row in known.values()]
    rows += [_taken_up(rows, finding) for finding in decision.findings if _covered_by(Grown, decision, finding)]
    for accepted in sorted(decision.accepted, key=_order):
        places = [at for at, row in enumerate(rows) if _concerns(accepted, row, decision)]
        if not places and not isinstance(accepted, Mended):
            raise NotThere(decision.stream, accepted, "no such partition in the ledger, or no such finding")
        for at in places:
            rows[at] = _noted(_applied(rows[at], accepted, decision), rows[at], accepted, decision)
    return rows


def _order(accepted: Acceptance) -> bool:
    """What moves a position comes before what depends on it."""
    return not isinstance(accepted, Loss)


def _covered_by(kind: type[Acceptance], decision: Decision, finding: Finding) -> bool:
    return any(isinstance(each, kind) and each.covers(finding) for each in decision.accepted)


def _concerns(accepted: Acceptance, row: LedgerRow, decision: Decision) -> bool:
    """Whether something is accepted of this row: of a whole topic, or of the halt, only where a finding says so."""
    if not accepted.concerns(row.topic, row.partition):
        return False
    if isinstance(accepted, (Loss, SkipSession, FromSnapshot)):
        lives = {each.topic_id for each in decision.findings if accepted.concerns(each.topic, each.partition)}
        return row.topic_id in lives if lives else not row.retired
    return _finding(accepted, row, decision) is not None


def _finding(accepted: Acceptance, row: LedgerRow, decision: Decision) -> Finding | None:
    """The finding about this row that is answered; of the whole halt only what nothing else answers."""
    named = [each for each in decision.accepted if not isinstance(each, Mended)]
    others = named if isinstance(accepted, Mended) else []
    for finding in decision.findings:
        here = (finding.topic_id, finding.partition) == (row.topic_id, row.partition)
        if here and accepted.covers(finding) and not any(other.covers(finding) for other in others):
            return finding
    return None


def _applied(row: LedgerRow, accepted: Acceptance, decision: Decision) -> LedgerRow:
    """The row after what is accepted of it."""
    finding = _finding(accepted, row, decision)
    match accepted:
        case Loss():
            return _passed_over(row, accepted, decision)
        case SkipSession(session=session):
            others = [each for each in row.suspended_sessions if each.session != session]
            before = max(row.until, finding.until if finding else 0)
            return replace(row, suspended_sessions=[*others, SuspendedSession(session, before)])
        case FromSnapshot():
            if finding is not None and finding.cause in NOTHING_THERE and row.until < finding.until:
                row = _moved(row, finding.until, decision)
            until = max(row.until, row.suspended_from, _given_up_until(accepted, finding))
            return replace(row, suspended_from=until)
        case Truncated():
            return replace(row, suspended_from=row.until, catching_up=True, leader_epoch=None)
        case Recreated() | Gone():
            return replace(row, retired=True)
        case _:
            return row


def _given_up_until(accepted: Acceptance, finding: Finding | None) -> int:
    """First offset that is not given up: what the operator names, else the end of what the finding names."""
    if isinstance(accepted, FromSnapshot) and accepted.until is not None:
        return accepted.until
    return finding.until if finding else 0


def _passed_over(row: LedgerRow, loss: Loss, decision: Decision) -> LedgerRow:
    if loss.start != row.until:
        instead = Loss(loss.topic, loss.partition, row.until, max(loss.until, row.until + 1))
        raise NotThere(
            decision.stream,
            loss,
            f"{loss.topic}/{loss.partition} stands at offset {row.until}",
            instead=f"lockstep resume {decision.stream} {options([instead])} --why '...'",
        )
    return _moved(row, loss.until, decision)


def _moved(row: LedgerRow, until: int, decision: Decision) -> LedgerRow:
    lost = f"offsets {row.until} to {until - 1}: {decision.why} ({decision.who})"
    return replace(row, until=until, leader_epoch=None, accepted_loss=lost)


def _taken_up(rows: list[LedgerRow], finding: Finding) -> LedgerRow:
    """The first row of a partition that a topic grew by."""
    sibling = next(row for row in rows if row.topic_id == finding.topic_id)
    first = replace(sibling, partition=finding.partition, start=0, until=0, leader_epoch=None)
    first = replace(first, state_file=None, state_start=None, state_length=None)
    return replace(first, suspended_from=0, suspended_sessions=[], catching_up=False)


def _noted(row: LedgerRow, before: LedgerRow, accepted: Acceptance, decision: Decision) -> LedgerRow:
    """The row with what was accepted, by whom and why."""
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
