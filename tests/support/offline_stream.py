"""A stream without a broker: the engine's tasks, state, files and commits over a log in memory."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Message

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.committer import Committer, make_batch_commit
from lockstep.engine.driver.planner import make_batch_identity
from lockstep.engine.driver.startup import WriterClaim, WriterStartup
from lockstep.engine.driver.subscription import make_ledger_rows
from lockstep.engine.executor import message_source
from lockstep.engine.executor.task import run_task
from lockstep.engine.protocol import JobSpec, PlannedRange, TaskResult, TaskSpec
from lockstep.kafka.client import RangeConsumer
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.position import Position
from lockstep.table.layout import StreamFolders
from lockstep.table.positions import read_position
from lockstep.testing.script import InLog

Sent = tuple[str, bytes]
CLUSTER = "fixture-cluster"


@dataclass
class MemoryLog:
    """Topics of one partition each, read like a broker's topics by `lockstep.kafka.reader.read`."""

    topics: dict[str, list[InLog]] = field(default_factory=dict)

    def append(self, topic: str, sent: Sequence[Sent]) -> None:
        """Append pairs of (key, value)."""
        held = self.topics.setdefault(topic, [])
        for key, value in sent:
            held.append(InLog(len(held), key.encode(), value))

    @contextmanager
    def instead_of_kafka(self) -> Iterator[None]:
        """Let tasks of this process read this log."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(message_source, "read_ranges", self._read)
            patch.setattr(message_source, "_cached_consumer", lambda _: None)
            yield

    def _read(self, _: RangeConsumer, ranges: Sequence[Range], _tuning: object) -> Iterator[MessageRun]:
        for index, wanted in enumerate(ranges):
            if wanted.until > wanted.start:
                held = self.topics[wanted.topic][wanted.start : wanted.until]
                yield MessageRun(index, cast("list[Message]", held), [], wanted.until)


@dataclass
class Offline:
    """Runs of one stream over a log in memory.

    Attributes:
        stream: The declaration.
        root: Folder of tables and hot copies.
        log: The topics.
        names: Prefix of topic ids; another prefix makes re-created topics.
    """

    stream: AnyStream
    root: Path
    log: MemoryLog = field(default_factory=MemoryLog)
    names: str = "id-of-"

    @property
    def folders(self) -> StreamFolders:
        """Folders of the stream's tables."""
        return StreamFolders(self.stream.name, self.root / "tables")

    def of(self, stream: AnyStream) -> Offline:
        """Return the same tables and topics with another declaration."""
        return dataclasses.replace(self, stream=stream)

    def copied(self, root: Path) -> Offline:
        """Copy the tables and the log without hot copies: the next run of the copy reads the state of the tables."""
        shutil.copytree(self.root / "tables", root / "tables")
        topics = {topic: list(held) for topic, held in self.log.topics.items()}
        return dataclasses.replace(self, root=root, log=MemoryLog(topics))

    def claim(self) -> WriterClaim:
        """Claim the tables, as a run does."""
        return WriterStartup(self.stream, self.folders, CLUSTER).claim(cancelled=lambda: False)

    def run(
        self, *batches: dict[str, list[Sent]], background_executor: ThreadPoolExecutor | None = None
    ) -> list[TaskResult]:
        """Run the stream: claim, then append and commit each batch."""
        claimed = self.claim()
        done = []
        positions = {row.topic: read_position(row) for row in claimed.known.values()}
        with ThreadPoolExecutor(1) as side_table_executor:
            committer = Committer(
                self.folders, claimed, side_table_executor, background_executor or side_table_executor
            )
            for batch in batches:
                for topic, sent in batch.items():
                    self.log.append(topic, sent)
                    positions.setdefault(
                        topic, Position(topic=topic, topic_id=self.names + topic, partition=0, next_offset=0)
                    )
                done.append(self._batch(committer, claimed, positions, batch))
            committer.wait_for_side_tables()
        return done

    def _batch(
        self, committer: Committer, claimed: WriterClaim, positions: dict[str, Position], batch: dict[str, list[Sent]]
    ) -> TaskResult:
        head = committer.head
        ranges = [
            PlannedRange(positions[topic], len(self.log.topics[topic]))
            for topic in sorted(batch)
            if len(self.log.topics[topic]) > positions[topic].next_offset
        ]
        archives = self.stream.archive is not None
        planned = make_batch_identity(claimed.writer, head, time.time_ns() // 1_000, has_archive=archives)
        task = TaskSpec(planned, tuple(ranges))
        with self.log.instead_of_kafka():
            result = run_task(self.job(), task)
        quiet = [position for topic, position in positions.items() if topic not in {r.position.topic for r in ranges}]
        committer.commit(
            make_batch_commit(planned, [result]),
            lambda stamp, full: make_ledger_rows(stamp, result.ranges, quiet if full else (), {}),
        )
        for item in result.ranges:
            positions[item.range.position.topic] = item.reached
        return result

    def job(self) -> JobSpec:
        """Return the common specification of the tasks."""
        folders = self.folders
        return JobSpec(
            stream=self.stream.shipped(),
            kafka={},
            table=folders.table,
            quarantine=folders.quarantine,
            late=folders.late,
            archive=folders.archive,
            state=folders.state,
            local_root=self.root / "local" / "state",
        )
