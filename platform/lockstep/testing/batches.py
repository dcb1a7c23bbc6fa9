"""Messages of a test in batches: the engine's own work on files, with everything carried from batch to batch."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message

from lockstep.declare.transform import R, S
from lockstep.engine.driver.subscription import make_ledger_row
from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.task import release_folder, run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, RangeResult, TaskResult, TaskSpec
from lockstep.integrity.base import EPOCH, to_microseconds
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.admin import ClusterView, Topic
from lockstep.kafka.audit import audit_positions
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding, Hole
from lockstep.model.position import Position
from lockstep.model.state_loss import StateLoss, merge_losses
from lockstep.state.changelog import make_state_version
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.table.head import SideFile
from lockstep.table.positions import LedgerStamp, read_position
from lockstep.table.quarantine import QuarantineRow
from lockstep.testing.recorder import Recorder, list_rejected
from lockstep.testing.result import MessageResult, RejectedMessage, RowWithOrigin, RunResult
from lockstep.testing.script import CRASH, RENUMBER, RESTART, Event, Idle, InLog, NewTopic, Split

TOPIC_ID = "testing"
"""Kafka generates such an id for each created topic."""
HOUR = "2026-01-01T00"
PLANNED_AT_US = to_microseconds(datetime(2200, 1, 1, tzinfo=UTC) - EPOCH)
"""Planning time of each batch of a test: tests use current times, and times that no clock shows."""
GENERATION = 1


def find_latest_us(made: CompiledStream) -> int:
    """Later event times of a test are absurd."""
    return PLANNED_AT_US + to_microseconds(made.event_time.max_skew)


class LogInMemory:
    """The answers of a log in memory, which lacks nothing. See `lockstep.engine.executor.task.MessageSource`."""

    def ahead(self, beyond: Range) -> Iterator[MessageRun]:
        """Nothing: findings do not depend on batches, so nothing is read ahead."""
        del beyond
        return iter(())

    def readable_again(self, corrupt: Range) -> int | None:
        """Nothing in memory is corrupt."""
        return corrupt.start

    def explain(self, planned: PlannedRange, gaps: Sequence[tuple[int, int]]) -> list[Hole]:
        """Nothing: the log has no gaps."""
        del planned, gaps
        return []


@dataclass
class _Life(LogInMemory, Generic[R]):
    """One topic with one partition, under one topic id.

    Attributes:
        position: The start of the next batch.
        notes: The recorded results.
        log: Its messages.
        mark: Prefix of its sessions among the states.
    """

    position: Position
    notes: Recorder[R]
    log: list[InLog] = field(default_factory=list)
    mark: str = ""

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun]:
        """See `lockstep.engine.executor.task.MessageSource`."""
        self.notes.begin()
        for index, wanted in enumerate(ranges):
            messages = cast("list[Message]", self.log[wanted.start : wanted.until])
            yield MessageRun(index, messages, [], wanted.until)


class BatchedRun(Generic[S, R]):
    """The batches of one test.

    Attributes:
        finding: The violation that ended it.
    """

    def __init__(self, made: CompiledStream, topic: str, split: Split) -> None:
        self._made = made
        self._split = split
        self._lives: list[_Life[R]] = []
        self._times_begun = Counter[str]()
        self._life = self._begun(topic)
        self._root = Path()
        self._number = 0
        self._read: list[tuple[_Life[R], int]] = []
        self._proven: list[RowWithOrigin[R]] = []
        self._quarantine: list[RejectedMessage] = []
        self._late: list[RejectedMessage] = []
        self._losses: list[StateLoss] = []
        self.finding: Finding | None = None

    @contextmanager
    def folder(self) -> Generator[None]:
        """A folder for the duration of the test."""
        with tempfile.TemporaryDirectory(prefix="lockstep-testing-") as root:
            self._root = Path(root)
            try:
                yield
            finally:
                release_folder(self._root)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return len(self._life.log)

    def add(self, message: InLog) -> None:
        """Append the next message; after the first violation nothing is read."""
        self._life.log.append(message)
        # As a run does: a batch ends when it is full, or at an event.
        if self._waiting() == self._split.messages:
            self._work(crashes=self._split.crashes)

    def event(self, event: Event) -> None:
        """Carry out an event before the next message."""
        self._work(crashes=self._split.crashes or event is CRASH)
        if self.finding is not None:
            return
        match event:
            case NewTopic(name):
                self._life = self._begun(name)
            case Idle(watermark_us):
                where = self._life.position
                self._batch(PlannedRange(where, where.next_offset, watermark_us), crashes=self._split.crashes)
            case _ if event is RESTART:
                self._without_hot_state()
            case _ if event is RENUMBER:
                self._recreate_topic()
            case _:
                release_folder(self._root)

    def ran(self, stream: str) -> RunResult[S, R]:
        """The result of all messages."""
        self._work(crashes=self._split.crashes)
        states = dict[str, S]()
        for life in self._lives:
            states.update(self._states(life))
        return RunResult(
            stream,
            tuple(self._folded()),
            states,
            self.finding,
            tuple(self._proven),
            tuple(self._quarantine),
            tuple(self._late),
            merge_losses(self._losses),
        )

    def _begun(self, topic: str) -> _Life[R]:
        parts = [TOPIC_ID]
        if self._lives:
            parts.append(topic)
        parts += ["again"] * self._times_begun[topic]
        topic_id = "-".join(parts)
        self._times_begun[topic] += 1
        where = Position(topic=topic, topic_id=topic_id, partition=0, next_offset=0)
        mark = ""
        if self._lives and topic != self._lives[0].position.topic:
            mark = f"{topic}: "
        life = _Life(where, Recorder[R](self._made, topic), mark=mark)
        self._lives.append(life)
        return life

    def _waiting(self) -> int:
        return self.end - self._life.position.next_offset

    def _work(self, *, crashes: bool) -> None:
        """Process all pending messages: a batch ends earlier if a task ends it."""
        while self.finding is None and self._waiting():
            reached = self._batch(PlannedRange(self._life.position, self.end), crashes=crashes)
            if reached.finding is None and reached.reached.next_offset == reached.range.position.next_offset:
                raise AssertionError(f"a batch from offset {reached.reached.next_offset} made no progress")

    def _batch(self, planned: PlannedRange, *, crashes: bool) -> RangeResult:
        """A batch; with a crash it is processed twice, and followed by a restart."""
        life = self._life
        result = self._fold_range(planned)
        if crashes:
            result = self._fold_range(planned)
        (reached,) = result.ranges
        quarantine = self._aside("quarantine", result.quarantine)
        self._proven += life.notes.keep(self._rows(result), quarantine)
        self._quarantine += list_rejected(quarantine)
        self._late += list_rejected(self._aside("late", result.late))
        self._losses += reached.losses
        self._read += [(life, at) for at in range(planned.position.next_offset, reached.reached.next_offset)]
        life.position = reached.reached
        self.finding = reached.finding
        if crashes:
            self._restart(reached)
        return reached

    def _fold_range(self, planned: PlannedRange) -> TaskResult:
        self._number += 1
        task = TaskSpec(
            BatchIdentity(
                generation=GENERATION,
                epoch=1,
                number=self._number,
                commit_hour=HOUR,
                planned_at_us=PLANNED_AT_US,
            ),
            (planned,),
        )
        return run_bin(self._job(), task, self._life.notes.compiled, self._life)

    def _folded(self) -> Iterator[MessageResult[R]]:
        """The final result of each message: some were buffered, and released by a later batch."""
        # At the end: a message may be buffered, and be released by a later batch.
        for life, offset in self._read:
            yield life.notes.folded(offset)
        if self.finding is not None and self.finding.topic_id == self._life.position.topic_id:
            yield self._life.notes.violation(self.finding)

    def _restart(self, reached: RangeResult) -> None:
        """Start the next batch from the ledger row of this batch."""
        stamp = LedgerStamp(
            generation=GENERATION,
            batch=self._number,
            epoch=1,
            committed_at=EPOCH,
            batch_seconds=0.0,
            restart_cause=None,
        )
        row = make_ledger_row(stamp, reached, None)
        # Through a ledger row, as a restart does: what the row does not record is lost here, too.
        self._life.position = read_position(row)
        self._without_hot_state()

    def _without_hot_state(self) -> None:
        shutil.rmtree(self._root / "hot", ignore_errors=True)

    def _recreate_topic(self) -> None:
        """Re-create the topic: the audit finds another topic id; the class decides whether it tolerates that."""
        ended_life = self._life
        where = ended_life.position
        ended = msgspec.structs.replace(where, discarded_by=Fault.RECREATED)
        if self._made.integrity.judge(Fault.RECREATED) is not Judgement.VIOLATION:
            (counted,) = self._fold_range(PlannedRange(ended, ended.next_offset)).ranges
            self._losses += counted.losses
        life = self._begun(where.topic)
        self._life = life
        topic = Topic(name=where.topic, topic_id=life.position.topic_id, partitions=1, deletes_only=True)
        view = ClusterView(cluster_id="", topics={topic.name: topic}, ends={})
        (finding,) = audit_positions({where.key: where}, view)
        if self._made.integrity.judge(Fault.RECREATED) is Judgement.VIOLATION:
            self.finding = finding
            self._lives.remove(life)
        else:
            self._lives.remove(ended_life)

    def _states(self, life: _Life[R]) -> Iterator[tuple[str, S]]:
        """The states of all open sessions, read from the files."""
        where = life.position
        version = make_state_version(GENERATION, where)
        local_stores = LocalStorePool(self._root / "hot", self._root / "state")
        opened = PartitionState[object].open(
            version, durable=self._root / "state", local_stores=local_stores, schema=self._made.state
        )
        with opened as state:
            for session in dict.fromkeys(envelope.session for envelope in life.notes.envelopes.values()):
                entry = state.load(session)
                if entry is not None and entry.state is not None:
                    # Decoded again: the tables of a state outlive the files that are deleted after the run.
                    recovered = self._made.state.recovered(session, entry.gate, entry.state)
                    yield life.mark + session, cast("S", recovered)

    def _rows(self, result: TaskResult) -> pa.Table | None:
        """The rows of a batch, as stored in the table."""
        if result.files:
            return pa.concat_tables(_read(self._root / "table" / file.path) for file in result.files)
        return None

    def _aside(self, folder: str, files: Sequence[SideFile]) -> list[QuarantineRow]:
        rows = list[QuarantineRow]()
        for file in files:
            stored = _read(self._root / folder / file.path).to_pylist()
            rows += [msgspec.convert(row, QuarantineRow) for row in stored]
        return rows

    def _job(self) -> JobSpec:
        return JobSpec(
            stream=b"",
            kafka={},
            table=self._root / "table",
            quarantine=self._root / "quarantine",
            late=self._root / "late",
            archive=self._root / "archive",
            state=self._root / "state",
            local_root=self._root / "hot",
        )


def _read(file: Path) -> pa.Table:
    return pq.read_table(file)  # pyright: ignore[reportUnknownMemberType]  # its stubs leave its arguments open
