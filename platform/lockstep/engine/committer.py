"""Commits the batches of a run, one at a time, with the side tables one batch behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime

import msgspec

from lockstep.engine.bookkeeping import BatchIdentity
from lockstep.engine.progress import Restart
from lockstep.engine.start import Claimed, refuse_overtaken
from lockstep.errors import TableError
from lockstep.integrity.finding import Finding
from lockstep.table import demands, ledger, side
from lockstep.table.commit import Landed, checkpoint
from lockstep.table.files import DataFile
from lockstep.table.head import Head, SideFile
from lockstep.table.layout import StreamFolders

LOG = logging.getLogger("lockstep")

FULL_LEDGER_BATCHES, FULL_LEDGER_SECONDS = 100, 600.0
"""A start reads the ledger back to the newest full set: at most so much."""
CHECKPOINT_ENTRIES = 20
"""At four batches a second, 10,000 entries without a log checkpoint make a commit cost a second."""


class Reached(msgspec.Struct, frozen=True):
    """What a batch comes to, ready to commit.

    Attributes:
        number: Number of the batch.
        commit_hour: The hour fixed when it was planned.
        files: Data files of all bins, synced.
        quarantine: Files of the quarantine of all bins, synced.
        late: Files of the late table of all bins, synced.
        findings: Evidence; not empty makes the commit the halt.
        batch_seconds: Wall time so far.
        full: The ledger file is to hold the positions of all partitions.
        planned_at_us: The time of the plan.
        accepts_burst: An operator accepted a burst of quarantine that is not over yet.
    """

    number: int
    commit_hour: str
    files: tuple[DataFile, ...] = ()
    quarantine: tuple[SideFile, ...] = ()
    late: tuple[SideFile, ...] = ()
    findings: tuple[Finding, ...] = ()
    batch_seconds: float = 0.0
    full: bool = False
    planned_at_us: int | None = None
    accepts_burst: bool = False


class Committer:
    """The one place of a run that writes to the log.

    Attributes:
        head: The head after the newest commit.
        first: Whether this run has committed no batch yet.
        restart: Why this run began and what that cost, once its first batch is committed; afterwards None.
    """

    def __init__(self, folders: StreamFolders, claimed: Claimed, cause: str, helper: ThreadPoolExecutor) -> None:
        self._folders, self._claimed, self._helper = folders, claimed, helper
        self._cause = f"{claimed.takeover.value}; {cause}"
        self._side: Future[bool] | None = None
        self._side_logs = side.SideLogs(folders)
        self.head: Head = claimed.head
        self.first = True
        self.restart: Restart | None = None

    def commit(
        self, reached: Reached, rows_of: Callable[[BatchIdentity, bool], list[ledger.LedgerRow]]
    ) -> tuple[Landed, float]:
        """Commit a batch; gives what landed, and the seconds that it took.

        1. Wait until the side tables hold the batch before.
        2. Write the ledger file: `rows_of(identity, full)` gives its rows.
        3. Commit; the side tables follow under the next batch's fold.

        Raises:
            Fenced: A newer writer has claimed the table.
            Replan: The hour of the batch was closed meanwhile.
        """
        self.settle()  # 1
        began, now, full = time.monotonic(), ledger.now(), reached.full or self._full_ledger_due()
        identity = BatchIdentity(
            generation=self._claimed.writer.generation,
            batch=reached.number,
            epoch=self._claimed.writer.epoch,
            committed_at=now,
            batch_seconds=reached.batch_seconds,
            restart_cause=self._cause if self.first else None,
            planned_at_us=reached.planned_at_us,
        )
        batch = demands.Batch(
            number=reached.number,
            commit_hour=reached.commit_hour,
            files=reached.files,
            ledger=ledger.write_ledger(self._folders.ledger, rows_of(identity, full)),  # 2
            quarantine=reached.quarantine,
            late=reached.late,
            full_ledger_at=now.timestamp() if full else None,
            findings=reached.findings,
            accepts_burst=reached.accepts_burst,
        )
        landed = self._claimed.output.commit(demands.batch(self._claimed.writer, batch))  # 3
        self._side = self._helper.submit(self._side_logs.forward, landed.head)
        if landed.version % CHECKPOINT_ENTRIES == 0:
            self._helper.submit(self._checkpoint)
        self.restart = Restart(self._cause, self._gap_seconds(now)) if self.first else None
        self.head, self.first = landed.head, False
        return landed, time.monotonic() - began

    def renew_head(self) -> None:
        """Read the head again, after somebody else's harmless commit changed it."""
        self.head = self._claimed.output.base().head

    def settle(self) -> None:
        """A batch is committed only after the side tables hold the one before.

        Raises:
            Fenced: A newer writer has brought them further than this one knows.
        """
        if self._side is None:
            return
        try:
            self._side.result()
        except TableError:
            refuse_overtaken(self._claimed.output, self._claimed.writer)
            raise
        self._side = None

    def _gap_seconds(self, now: datetime) -> float | None:
        """From the last batch before this run to its first."""
        before = max((row.committed_at for row in self._claimed.known.values()), default=None)
        return None if before is None else max(0.0, (now - before).total_seconds())

    def _full_ledger_due(self) -> bool:
        aged = time.time() - self.head.full_ledger_at > FULL_LEDGER_SECONDS
        return self.first or aged or self.head.batch + 1 - self.head.full_ledger_batch >= FULL_LEDGER_BATCHES

    def _checkpoint(self) -> None:
        try:
            checkpoint(self._folders.table)
            checkpoint(self._folders.ledger)
        except Exception:  # only makes later opens faster; the next one tries again
            LOG.warning("no log checkpoint this time", exc_info=True)
