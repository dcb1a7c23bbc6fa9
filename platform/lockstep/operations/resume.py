"""Resumes a halted stream, after its cause was found, with what an operator accepts."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence

from lockstep.engine.bookkeeping import BatchIdentity
from lockstep.engine.hours import clock_hour, hour_of
from lockstep.errors import LockstepError
from lockstep.integrity.acceptance import Acceptance, Quarantined, options, proposed, uncovered
from lockstep.integrity.finding import Finding
from lockstep.operations.accepting import Decision, accepted_rows
from lockstep.operations.opened import opened
from lockstep.table import demands, ledger, side
from lockstep.table.commit import CommitKind, Landed, OutputLog
from lockstep.table.head import Desired, Head, Resumption
from lockstep.table.layout import StreamFolders


class NotHalted(LockstepError):
    """A stream that is not halted was asked to resume.

    Attributes:
        stream: The stream's name.
        desired: What is wanted of it.
    """

    def __init__(self, stream: str, desired: str) -> None:
        super().__init__(f"stream {stream} is not halted, it is {desired}", next_step=f"lockstep run {stream}")
        self.stream = stream
        self.desired = desired


class NotCovered(LockstepError):
    """A resumption does not answer every finding of the halt.

    Attributes:
        stream: The stream's name.
        findings: Those that nothing answers.
    """

    def __init__(
        self, stream: str, findings: tuple[Finding, ...], accepted: Sequence[Acceptance], why: str = "..."
    ) -> None:
        left = "\n".join(f"  {finding}" for finding in findings)
        whole = options([*accepted, *(proposed(finding) for finding in findings)])
        super().__init__(
            f"stream {stream} stays halted; what was given says nothing of:\n{left}",
            next_step=f"lockstep resume {stream} {whole} --why {shlex.quote(why)} (or --mended, where it was mended)",
        )
        self.stream = stream
        self.findings = findings


def resume(folders: StreamFolders, *, why: str, who: str, accepted: Sequence[Acceptance]) -> Head:
    """Resume a halted stream.

    1. Read the halt; each of its findings must be answered.
    2. Claim, so that no other run interferes; the stream stays halted until step 4.
    3. Decide for each partition what was accepted of it.
    4. Commit the resumption as a batch of its own, with cause and operator in the ledger.

    Raises:
        NotHalted: The stream is not halted.
        NotCovered: Names the findings that nothing answers, and the whole command.
        NotThere: What is accepted is not where the stream stands.
    """
    output = opened(folders)
    before = output.base().head  # 1
    _refuse_running(before)
    if left := uncovered(before.findings, accepted):
        places = {(row.topic, row.partition) for row in ledger.positions(folders, before).values()}
        raise NotCovered(before.stream, left, [each for each in accepted if _is_somewhere(each, places)], why)
    claimed = output.commit(demands.claim(before.epoch, output.table_id, _refuse_running)).head  # 2
    side.SideLogs(folders).forward(claimed)
    decision = Decision(stream=claimed.stream, findings=claimed.findings, accepted=tuple(accepted), who=who, why=why)
    rows = accepted_rows(_identity(claimed, decision), ledger.positions(folders, claimed), decision)  # 3
    burst = any(isinstance(each, Quarantined) for each in accepted)
    landed = _commit(output, folders, claimed, rows, why=f"resumed: {why} ({who})", accepts_burst=burst)  # 4
    side.SideLogs(folders).forward(landed.head)
    return landed.head


def _is_somewhere(accepted: Acceptance, places: Iterable[tuple[str, int]]) -> bool:
    """Whether it is about a partition that the stream reads: what is not would be refused as part of any command."""
    return any(accepted.concerns(topic, partition) for topic, partition in places)


def _identity(head: Head, decision: Decision) -> BatchIdentity:
    return BatchIdentity(
        generation=head.generation,
        batch=head.batch + 1,
        epoch=head.epoch,
        committed_at=ledger.now(),
        batch_seconds=0.0,
        restart_cause=f"resume: {decision.why} ({decision.who})",
    )


def _commit(
    output: OutputLog,
    folders: StreamFolders,
    head: Head,
    rows: list[ledger.LedgerRow],
    *,
    why: str,
    accepts_burst: bool,
) -> Landed:
    """Commit the resumption; again, for a later hour, when its hour is closed meanwhile."""
    batch = demands.Batch(
        number=head.batch + 1,
        commit_hour=hour_of(clock_hour(), head.hour, head.closed_hour),
        files=(),
        ledger=ledger.write_ledger(folders.ledger, rows),
        full_ledger_at=time.time(),
        accepts_burst=accepts_burst,
        resumption=Resumption(batch=head.batch + 1, at=time.time(), cause=why.removeprefix("resumed: ")),
    )
    writer = demands.Writer(epoch=head.epoch, generation=head.generation)
    try:
        return output.commit(demands.batch(writer, batch, kind=CommitKind.RESUME, reason=why))
    except demands.Replan:
        return _commit(output, folders, output.base().head, rows, why=why, accepts_burst=accepts_burst)


def _refuse_running(head: Head) -> None:
    if head.desired is not Desired.HALTED:
        raise NotHalted(head.stream, head.desired.value)
