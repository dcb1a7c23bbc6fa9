"""The raced model: runs that claim, commit and are fenced at any moment, with rewinds and harmless commits.

Each rule of the protocol exists because a race without it lost a proof. For any interleaving, batch numbers rise by
one, epochs never go back, only the holder of the epoch commits, and the table and the ledger agree on every offset.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

from lockstep.errors import Fenced, TableError
from lockstep.features.compaction.commit_kinds import COMPACTION
from lockstep.features.history.commit_kinds import REWIND
from lockstep.table import commit_kinds, ledger, side_tables
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import OutputLog, Proposal, keep_head
from tests.support.protocol_run import ProtocolRun, anything, entries, folders_in, stored_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.delta_log import LogEntry
    from lockstep.table.head import Head
    from lockstep.table.layout import StreamFolders

RUNS = 3
BATCHES_WANTED = 25
BATCHES_OF_A_RUN = 4
DEADLINE_SECONDS = 240.0
PATIENCE_SECONDS = 0.3
NUMBERED = {commit_kinds.BATCH.name, REWIND.name}


class Race:
    """Runs one after another in each thread, until enough batches are in the log."""

    def __init__(self, folders: StreamFolders) -> None:
        self.folders = folders
        self.enough = threading.Event()
        self.fenced = self.rewound = 0
        self._may_start = threading.Event()
        self._may_start.set()
        self._landed = threading.Condition()
        self._newest_batch = 0

    def run_again_and_again(self, seed: int) -> None:
        """Start run after run; each run continues until it is fenced, or dies between its two last commits."""
        while not self.enough.is_set():
            self._let_others_commit(1 + seed)
            self._may_start.wait()
            run = ProtocolRun(self.folders)
            try:
                run.claim()
                for _ in range(BATCHES_OF_A_RUN):
                    run.forward(self._batch(run))
                self._batch(run)
            except Fenced:
                self.fenced += 1
            except TableError:
                # Overtaken while it moved the ledger forward: it is fenced, as its next commit would report.
                if run.output.base().head.epoch == run.head.epoch:
                    raise

    def disturb(self) -> None:
        """Commit without a change of the head, and write log checkpoints, as compaction and maintenance do."""
        output = OutputLog(self.folders.table)
        while not self.enough.wait(0.2):
            output.commit(Proposal(kind=COMPACTION, next_head=keep_head(anything)))
            write_checkpoint(self.folders.table)

    def rewind_again_and_again(self) -> None:
        """Undo a batch or two, or restore batches that an earlier rewind undid; lost races change nothing.

        After a lost race no new run starts before a rewind has won: against ever new runs it may starve.
        """
        try:
            while not self.enough.is_set():
                self._let_others_commit(3)
                if self._has_rewound():
                    self._may_start.set()
                else:
                    self._may_start.clear()
        finally:
            self._may_start.set()

    def _has_rewound(self) -> bool:
        run = ProtocolRun(self.folders)
        try:
            side_tables.catch_up_alongside_writer(self.folders, run.head)
            run.rewind(max(0, run.head.batch - 2 - self.rewound % 5))
        except (Fenced, TableError):
            return False
        self.rewound += 1
        return True

    def _batch(self, run: ProtocolRun) -> Head:
        head = run.commit(run.prepared(rows=1 + run.head.batch % 3)).head
        with self._landed:
            self._newest_batch = head.batch
            self._landed.notify_all()
        if head.batch >= BATCHES_WANTED and self.rewound:
            self.enough.set()
        return head

    def _let_others_commit(self, batches: int) -> None:
        """Wait for new batches, as runs that only claim would fence each other forever; a timeout covers dead runs."""
        with self._landed:
            wanted = self._newest_batch + batches
            self._landed.wait_for(lambda: self._newest_batch >= wanted, PATIENCE_SECONDS)


def test_whatever_the_interleaving_every_offset_is_committed_once_and_in_order(tmp_path: Path) -> None:
    race = Race(folders_in(tmp_path))
    ProtocolRun(race.folders)
    with ThreadPoolExecutor(RUNS + 2) as pool:
        done = [pool.submit(race.run_again_and_again, seed) for seed in range(RUNS)]
        done += [pool.submit(race.disturb), pool.submit(race.rewind_again_and_again)]
        enough = race.enough.wait(DEADLINE_SECONDS)
        race.enough.set()
    problems = [problem for each in done if (problem := each.exception()) is not None]
    assert problems == []
    assert enough
    assert race.fenced > 0, "nobody was raced: the test proves nothing"
    assert race.rewound > 0, "nothing was rewound: the test proves nothing"
    last = ProtocolRun(race.folders)
    last.claim()  # completes what the last run may have left
    check_log(entries(race.folders))
    check_offsets(race.folders, last.head)


def check_log(log: list[LogEntry]) -> None:
    heads = [entry.head for entry in log if entry.head is not None]
    assert len(heads) == len(log), "every entry is ours"
    batches = [head.batch for entry, head in zip(log, heads, strict=True) if entry.kind in NUMBERED]
    assert batches == list(range(1, len(batches) + 1))
    for (_, before), (entry, head) in pairwise(zip(log, heads, strict=True)):
        claimed = entry.kind in {commit_kinds.CLAIM.name, REWIND.name}
        assert head.epoch == before.epoch + claimed, f"version {entry.version}"
        assert head.batch == before.batch + (entry.kind in NUMBERED), f"version {entry.version}"


def check_offsets(folders: StreamFolders, head: Head) -> None:
    every = ledger.read_ledger(folders.ledger)
    assert [row.batch for row in every] == list(range(1, len(every) + 1))
    rows = [row for row in every if row.batch <= head.valid_batches.get(row.generation, 0)]
    for before, after in pairwise(rows):
        assert after.start == before.until
        assert after.epoch >= before.epoch
    assert stored_offsets(folders) == list(range(rows[-1].until))
