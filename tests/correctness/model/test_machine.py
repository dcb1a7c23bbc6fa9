"""The real commit code on a real Delta table, driven at random and compared with the model.

Runs start, claim, commit and bring side tables forward in any order. Their stores lose answers, or die before or after
a write; a dead run never returns. After every step the log matches the model.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockstep.errors import Fenced, TableError
from lockstep.features.compaction.commit_kinds import COMPACTION
from lockstep.table import ledger
from lockstep.table.commit import OutputLog, Proposal, Writer, commit_batch, commit_claim, commit_closed_hour, keep_head
from lockstep.table.delta_log import create_entry
from tests.correctness.model.protocol import Head, Kind, Refused, demanded
from tests.support.protocol_run import ProtocolRun, anything, entries, folders_in, stored_offsets
from tests.unit.table.test_raced_commits import check_log

RUNS_MAX = 2
HOURS = ("2026-01-01T00", "2026-01-01T01")
RUNS = st.integers(0, RUNS_MAX - 1)
STORES = st.sampled_from(["answers"] * 4 + ["loses the answer", "dies before", "dies after"])


class Died(BaseException):
    """The process dies: no code in it catches this."""


class Store:
    """A store whose next write does as `does` states."""

    does = "answers"

    def __call__(self, path: Path, content: bytes) -> None:
        does = self.does
        self.does = "answers"
        if does == "dies before":
            raise Died
        create_entry(path, content)
        if does == "dies after":
            raise Died
        if does == "loses the answer":
            raise OSError("connection reset by peer")


@dataclass
class Actor:
    """A run, with the epoch and batch that it assumes."""

    run: ProtocolRun
    store: Store
    epoch: int
    batch: int = 0
    waits_for_side: bool = False
    claimed: bool = False


@dataclass
class Expected:
    """The contents of log and ledger, by the model."""

    head: Head = field(default_factory=Head)
    batches: int = 0
    offsets: int = 0
    in_ledger: int = 0
    visible: list[tuple[int, int]] = field(default_factory=list)
    """Number and rows of the batches that no rewind undid."""
    hour: int = 0
    """The hour of the newest batch: hours of batches never decrease. The explored model has one hour at a time."""
    actors: dict[int, Actor] = field(default_factory=dict)


class CommitProtocol(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.TemporaryDirectory(prefix="lockstep-model-")
        self.folders = folders_in(Path(self._root.name))
        ProtocolRun(self.folders)
        self.expected = Expected()

    def teardown(self) -> None:
        self._root.cleanup()

    @rule(number=RUNS)
    def begins(self, number: int) -> None:
        """Start a process if it does not run; it reads the current epoch."""
        if number in self.expected.actors:
            return
        store = Store()
        run = ProtocolRun(self.folders, OutputLog(self.folders.table, store))
        self.expected.actors[number] = Actor(run, store, epoch=self.expected.head.epoch)

    @rule(number=RUNS, store=STORES)
    def claims(self, number: int, store: str) -> None:
        actor = self.expected.actors.get(number)
        if actor is None or actor.claimed:
            return
        proposal = commit_claim(actor.epoch, actor.run.output.table_id, anything)
        landed = self._commits(actor, number, proposal, store, Kind.CLAIM)
        if landed:
            actor.epoch = actor.epoch + 1
            actor.claimed = True
            actor.waits_for_side = True
            actor.batch = self.expected.head.batch

    @rule(number=RUNS)
    def takes_over(self, number: int) -> None:
        """Start, claim and bring side tables forward, as every start does."""
        self.begins(number)
        self.claims(number, "answers")
        self.brings_side_tables_forward(number)

    @rule(number=RUNS, store=STORES, hour=st.sampled_from(HOURS), rows=st.integers(1, 2))
    def commits(self, number: int, store: str, hour: str, rows: int) -> None:
        actor = self.expected.actors.get(number)
        if actor is None or not actor.claimed or actor.waits_for_side:
            return
        batch = actor.run.prepared(rows=rows, hour=hour)
        actor.batch = batch.number
        writer = Writer(epoch=actor.epoch, generation=actor.run.head.generation)
        hour_number = 1 + HOURS.index(hour)
        if self._commits(actor, number, commit_batch(writer, batch), store, Kind.BATCH, hour_number):
            actor.waits_for_side = True
            self._landed(rows)

    @rule(number=RUNS)
    def brings_side_tables_forward(self, number: int) -> None:
        """A zombie may do so late: its batch is in the ledger already, or it is refused as not the newest."""
        actor = self.expected.actors.get(number)
        if actor is None or not actor.waits_for_side:
            return
        head = actor.run.head
        if head.batch < self.expected.in_ledger:
            self._refused_side(number, actor)
            return
        moved = actor.run.forward(head)
        assert moved is (head.batch > self.expected.in_ledger)
        self.expected.in_ledger = head.batch
        actor.waits_for_side = False

    def _refused_side(self, number: int, actor: Actor) -> None:
        try:
            actor.run.forward(actor.run.head)
        except TableError:
            del self.expected.actors[number]
            return
        raise AssertionError("an old run moved a side table")

    @precondition(lambda self: self.expected.head.closed == 0 and self.expected.batches > 0)
    @rule()
    def somebody_closes_the_hour(self) -> None:
        OutputLog(self.folders.table).commit(commit_closed_hour(HOURS[0]))
        self.expected.head = demanded(Kind.CLOSE, self.expected.head, epoch=0)

    @precondition(lambda self: self.expected.visible and self.expected.in_ledger == self.expected.batches)
    @rule(back=st.integers(1, 3))
    def somebody_rewinds(self, back: int) -> None:
        """Undo up to `back` visible batches; the writers are fenced."""
        expected = self.expected
        run = ProtocolRun(self.folders)
        expected.visible = expected.visible[:-back]
        expected.hour = max(expected.hour, 1 + expected.head.closed)
        run.rewind(expected.visible[-1][0] if expected.visible else 0, HOURS[expected.hour - 1])
        before = expected.head
        expected.head = demanded(Kind.REWIND, before, epoch=before.epoch, batch=before.batch + 1)
        expected.batches += 1
        expected.in_ledger, expected.offsets = expected.batches, sum(rows for _, rows in expected.visible)

    @rule()
    def somebody_compacts(self) -> None:
        compaction = Proposal(kind=COMPACTION, next_head=keep_head(anything))
        OutputLog(self.folders.table).commit(compaction)

    @invariant()
    def the_log_holds_what_the_model_expects(self) -> None:
        head = OutputLog(self.folders.table).base().head
        assert (head.epoch, head.batch) == (self.expected.head.epoch, self.expected.head.batch)
        assert stored_offsets(self.folders) == list(range(self.expected.offsets))
        assert [row.batch for row in ledger.read_ledger(self.folders.ledger)] == list(
            range(1, self.expected.in_ledger + 1)
        )
        assert self.expected.batches - self.expected.in_ledger in {0, 1}
        check_log(entries(self.folders))

    def _commits(self, actor: Actor, number: int, proposal: Proposal, store: str, kind: Kind, hour: int = 1) -> bool:
        """Commit through `store`, and compare with the model; return whether the run knows that it committed."""
        actor.store.does = store
        before = self.expected
        try:
            head = demanded(kind, before.head, epoch=actor.epoch, batch=actor.batch, hour=hour)
        except Refused:
            head = None
        if kind is Kind.BATCH and hour < before.hour:
            head = None
        if kind is Kind.BATCH and head is not None and store != "dies before":
            before.hour = hour
        try:
            actor.run.head = actor.run.output.commit(proposal).head
        except Died:
            assert head is not None, "it wrote what the model refuses"
            self._dies(number, head if store == "dies after" else None, kind, proposal)
            return False
        except (Fenced, TableError):
            assert head is None, "it was refused what the model allows"
            del before.actors[number]
            return False
        assert head is not None, "it wrote what the model refuses"
        before.head = head
        return True

    def _dies(self, number: int, head: Head | None, kind: Kind, proposal: Proposal) -> None:
        del self.expected.actors[number]
        if head is not None:
            self.expected.head = head
            if kind is Kind.BATCH:
                self._landed(sum(file.rows for file in proposal.adds))

    def _landed(self, rows: int) -> None:
        self.expected.batches += 1
        self.expected.offsets += rows
        self.expected.visible.append((self.expected.batches, rows))


TestCommitProtocol = CommitProtocol.TestCase
TestCommitProtocol.settings = settings(
    max_examples=max(12, settings().max_examples // 5), stateful_step_count=25, deadline=None
)
