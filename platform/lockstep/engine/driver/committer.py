"""One commit per batch; publishes positions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.metrics import RunStart
from lockstep.engine.driver.positions import BatchIdentity
from lockstep.engine.driver.startup import WriterClaim, check_not_overtaken
from lockstep.engine.protocol import Position
from lockstep.errors import KafkaError, TableError
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.consumer_group import ConsumerGroup, Place
from lockstep.model.finding import Finding
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.checkpoint import write_checkpoint_if_due
from lockstep.table.commit import BatchCommit, Committed, commit_batch
from lockstep.table.delta_log import Head, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFile

LOG = logging.getLogger("lockstep")

FULL_LEDGER_BATCHES, FULL_LEDGER_SECONDS = 100, 600.0
"""Whoever needs positions reads the ledger back to the newest full set: at most so much."""


class CompletedBatch(msgspec.Struct, frozen=True):
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

    def __init__(self, folders: StreamFolders, claimed: WriterClaim, cause: str, helper: ThreadPoolExecutor) -> None:
        self._folders, self._claimed, self._helper = folders, claimed, helper
        self._cause = f"{claimed.takeover.value}; {cause}"
        self._side: Future[bool] | None = None
        self._side_logs = side_tables.SideLogs(folders)
        self._full_rows = self._rows_since_full = 0
        self.head: Head = claimed.head
        self.first = True
        self.restart: RunStart | None = None

    def commit(
        self, reached: CompletedBatch, rows_of: Callable[[BatchIdentity, bool], list[ledger.LedgerRow]]
    ) -> tuple[Committed, float]:
        """Commit a batch; gives what landed, and the seconds that it took.

        1. Wait until the side tables hold the batch before.
        2. Write the ledger file: `rows_of(identity, full)` gives its rows.
        3. Commit; the side tables follow under the next batch's fold.

        Raises:
            Fenced: A newer writer has claimed the table.
            Replan: The hour of the batch was closed meanwhile.
        """
        self.settle()  # 1
        began, now, full = time.monotonic(), ledger.read_clock(), reached.full or self._full_ledger_due()
        identity = BatchIdentity(
            generation=self._claimed.writer.generation,
            batch=reached.number,
            epoch=self._claimed.writer.epoch,
            committed_at=now,
            batch_seconds=reached.batch_seconds,
            restart_cause=self._cause if self.first else None,
            planned_at_us=reached.planned_at_us,
        )
        rows = rows_of(identity, full)
        ledger_file = ledger.write_ledger(self._folders.ledger, rows)  # 2
        batch = BatchCommit(
            number=reached.number,
            commit_hour=reached.commit_hour,
            files=reached.files,
            ledger=ledger_file,
            quarantine=reached.quarantine,
            late=reached.late,
            full_ledger_at=now.timestamp() if full else None,
            findings=reached.findings,
            accepts_burst=reached.accepts_burst,
            needs=_needed(self._folders, reached, ledger_file, rows),
        )
        landed = self._claimed.output.commit(commit_batch(self._claimed.writer, batch))  # 3
        self._side = self._helper.submit(self._side_logs.forward, landed.head)
        self._helper.submit(self._checkpoint, landed.version)
        self._count(len(rows), full=full)
        self.restart = RunStart(self._cause, self._gap_seconds(now)) if self.first else None
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
            check_not_overtaken(self._claimed.output, self._claimed.writer)
            raise
        self._side = None

    def _gap_seconds(self, now: datetime) -> float | None:
        """From the last batch before this run to its first."""
        before = max((row.committed_at for row in self._claimed.known.values()), default=None)
        return None if before is None else max(0.0, (now - before).total_seconds())

    def _full_ledger_due(self) -> bool:
        """A full set follows as many rows as it has itself: positions are read from twice as many at most."""
        if self.first or self._rows_since_full >= self._full_rows:
            return True
        aged = time.time() - self.head.full_ledger_at > FULL_LEDGER_SECONDS
        return aged or self.head.batch + 1 - self.head.full_ledger_batch >= FULL_LEDGER_BATCHES

    def _count(self, rows: int, *, full: bool) -> None:
        if full:
            self._full_rows, self._rows_since_full = rows, 0
        else:
            self._rows_since_full += rows

    def _checkpoint(self, version: int) -> None:
        try:
            write_checkpoint_if_due(self._folders.table, version)
            self._side_logs.checkpoint_if_due()
        except Exception:  # only makes later opens faster; the next one tries again
            LOG.warning("no log checkpoint this time", exc_info=True)


def _needed(
    folders: StreamFolders, reached: CompletedBatch, ledger_file: SideFile, rows: Iterable[ledger.LedgerRow]
) -> dict[Path, int]:
    """What the commit refers to besides data files, with the least size of each."""
    needs = {folders.ledger / ledger_file.path: ledger_file.size}
    for folder, files in ((folders.quarantine, reached.quarantine), (folders.late, reached.late)):
        needs |= {folder / file.path: file.size for file in files}
    for row in rows:
        if row.state_file is not None and row.state_start is not None and row.state_length is not None:
            path = folders.state / row.state_file
            needs[path] = max(needs.get(path, 0), row.state_start + row.state_length)
    return needs


LOG = logging.getLogger("lockstep")

PUBLISH_SECONDS = 10.0
"""Lag tools look once a minute; a broker keeps each publication as a message."""


class Publisher:
    """Publishes positions now and then, on a thread of its own: it is a courtesy, and never holds up a batch."""

    def __init__(self, group: ConsumerGroup, courier: ThreadPoolExecutor) -> None:
        self._group, self._courier = group, courier
        self._published = time.monotonic() - PUBLISH_SECONDS

    def note(self, positions: Iterable[Position]) -> None:
        """Publish, unless that was done a moment ago."""
        if time.monotonic() - self._published >= PUBLISH_SECONDS:
            self.publish(positions)

    def publish(self, positions: Iterable[Position]) -> None:
        """Publish now."""
        self._published = time.monotonic()
        self._courier.submit(self._publish, {(p.topic, p.partition): p.next_offset for p in positions})

    def compare(self, positions: Iterable[Position]) -> None:
        """Warn when Kafka knows that the stream had come further than its table says."""
        self._courier.submit(self._compare, {(p.topic, p.partition): p.next_offset for p in positions})

    def _compare(self, offsets: dict[Place, int]) -> None:
        try:
            published = self._group.published(offsets)
        except KafkaError as error:
            LOG.warning("nobody can tell whether this table is the newest of its stream: %s", error.problem)
            return
        ahead = {place: offset - offsets[place] for place, offset in published.items() if offset > offsets[place]}
        if ahead:
            LOG.warning(
                "group %s in Kafka is ahead of this table by %s offsets in %s partitions: the table was restored from "
                "an older copy, or another table root is written for this stream; what is missing here is read again",
                self._group.name,
                sum(ahead.values()),
                len(ahead),
            )

    def _publish(self, offsets: dict[tuple[str, int], int]) -> None:
        try:
            self._group.publish(offsets)
        except KafkaError as error:
            LOG.warning("positions are not shown to lag tools: %s", error.problem)


def check_table_present(
    stream: AnyStream, folders: StreamFolders, discovery: ClusterAdmin, group: ConsumerGroup
) -> None:
    """A mistyped table root must not read everything again, as if the stream were new.

    Raises:
        TableError: There is no table, but Kafka knows how far one had come.
        KafkaError: Kafka does not answer.
    """
    if delta_log.has_log(folders.table):
        return
    topics = discovery.topics(stream.topics.select(discovery.topic_names())).values()
    known = group.published((topic.name, partition) for topic in topics for partition in range(topic.partitions))
    if any(known.values()) and not delta_log.has_log(folders.table):  # else another first start was faster
        raise TableError(
            f"{folders.table} does not exist, but stream {stream.name} had come to {sum(known.values())} offsets of "
            f"{len({topic for topic, _ in known})} topics, says group {group.name} in Kafka",
            next_step=f"correct table_root; or, to read all of it into a new table: lockstep reset {stream.name} --new",
        )
