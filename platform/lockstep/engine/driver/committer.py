"""One commit per batch; publishes positions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from itertools import chain
from pathlib import Path

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.log_warnings import describe_losses
from lockstep.engine.driver.metrics import RunStart
from lockstep.engine.driver.startup import WriterClaim, check_not_overtaken
from lockstep.engine.protocol import BatchIdentity, TaskResult, list_results
from lockstep.errors import KafkaError, TableError
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.finding import Finding
from lockstep.model.lookup_version import LookupVersion
from lockstep.model.position import Position, TopicNamePartition
from lockstep.model.readable_times import to_event_time
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.checkpoint import write_checkpoint_if_due
from lockstep.table.commit import BatchCommit, Committed, commit_batch
from lockstep.table.create import refuse_incoming
from lockstep.table.head import Head, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.losses import count_batch_losses
from lockstep.table.positions import LedgerStamp, advance_positions

LOG = logging.getLogger("lockstep")

FULL_LEDGER_BATCHES = 100
FULL_LEDGER_SECONDS = 600.0
"""Readers of positions read the ledger back to the newest full set; this bounds how far."""
PUBLISH_SECONDS = 10.0
"""Lag monitors poll once a minute; a broker stores each publication as a message."""


def make_batch_commit(
    batch: BatchIdentity,
    results: Sequence[TaskResult],
    *,
    findings: tuple[Finding, ...] = (),
    accepts_burst: bool = False,
) -> BatchCommit:
    """The commit of a batch, before its ledger file is written.

    Args:
        batch: The batch.
        results: Results of its tasks; none for a halt that the driver found.
        findings: The driver's findings; those of the tasks are added. With any, the commit is a halt.
        accepts_burst: An operator accepted a quarantine burst that is not over yet.
    """
    of_ranges = [item.finding for item in list_results(results) if item.finding is not None]
    return BatchCommit(
        number=batch.number,
        commit_hour=batch.commit_hour,
        files=tuple(chain.from_iterable(result.files for result in results)),
        quarantine=tuple(chain.from_iterable(result.quarantine for result in results)),
        late=tuple(chain.from_iterable(result.late for result in results)),
        archive=tuple(chain.from_iterable(result.archive for result in results)),
        findings=(*findings, *of_ranges),
        accepts_burst=accepts_burst,
    )


class Committer:
    """The only writer of the run to the Delta log.

    Attributes:
        head: The head after the newest commit.
        first: Whether this run has committed no batch yet.
        restart: Cause and cost of the run's start, set once its first batch is committed; afterwards None.
    """

    def __init__(
        self,
        folders: StreamFolders,
        claimed: WriterClaim,
        side_table_executor: ThreadPoolExecutor,
        background_executor: ThreadPoolExecutor,
    ) -> None:
        """Commits nothing yet.

        Args:
            folders: Folders of the stream.
            claimed: Result of the claim.
            side_table_executor: Commits side tables; a batch waits for the previous batch.
            background_executor: Writes log checkpoints; no batch waits for it. It ends after the executor
                of side tables.
        """
        self._folders = folders
        self._claimed = claimed
        self._side_table_executor = side_table_executor
        self._background_executor = background_executor
        self._side: Future[None] | None = None
        self._side_logs = side_tables.SideLogs(folders)
        self._full_rows = 0
        self._rows_since_full = 0
        self._reached = {key: row.until for key, row in claimed.known.items()}
        self.head: Head = claimed.head
        self.first = True
        self.restart: RunStart | None = None

    def commit(
        self,
        batch: BatchCommit,
        rows_of: Callable[[LedgerStamp, bool], list[ledger.LedgerRow]],
        *,
        batch_seconds: float = 0.0,
        planned_at_us: int | None = None,
        lookups: tuple[LookupVersion, ...] = (),
        full: bool = False,
    ) -> tuple[Committed, float]:
        """Commit a batch; returns the new head and the seconds of the commit.

        1. Wait until the side tables hold the previous batch.
        2. Write the ledger file: `rows_of(stamp, full)` makes its rows.
        3. Commit; the side tables follow during the next batch's fold.

        Args:
            batch: The batch, without its ledger file.
            rows_of: Makes its ledger rows.
            batch_seconds: Wall time so far.
            planned_at_us: Planning time, where tasks were planned.
            lookups: The versions of lookup tables that its tasks read.
            full: The ledger file must hold the positions of all partitions.

        Raises:
            Fenced: A newer writer has claimed the table.
            HourClosed: The hour of the batch has been closed.
            TableError: A position would go back; nothing is committed.
        """
        self.wait_for_side_tables()  # 1
        began = time.monotonic()
        now = ledger.read_clock()
        full = full or self._full_ledger_due()
        stamp = LedgerStamp(
            generation=self._claimed.writer.generation,
            batch=batch.number,
            epoch=self._claimed.writer.epoch,
            committed_at=now,
            batch_seconds=batch_seconds,
            restart_cause=self._claimed.cause if self.first else None,
            planned_at=to_event_time(planned_at_us),
            lookups=list(lookups) or None,
        )
        rows = rows_of(stamp, full)
        reached = advance_positions(self._reached, rows)  # raises before anything is written
        batch = self._with_ledger(batch, rows, now.timestamp() if full else None)  # 2
        landed = self._claimed.output.commit(commit_batch(self._claimed.writer, batch))  # 3
        warning = describe_losses(self._folders.stream, rows)
        if warning is not None:
            LOG.warning("%s", warning)
        self._side = self._side_table_executor.submit(self._follow, landed)
        self._reached |= reached
        self._count(len(rows), full=full)
        self.restart = self._describe_start(now)
        self.head = landed.head
        self.first = False
        return landed, time.monotonic() - began

    def refresh_head(self) -> None:
        """Read the head again after a harmless commit of another process."""
        self.head = self._claimed.output.base().head

    def wait_for_side_tables(self) -> None:
        """Wait for the side tables: a batch is committed only after they hold the previous batch.

        Raises:
            Fenced: A newer writer has advanced them beyond this writer's batches.
        """
        if self._side is None:
            return
        try:
            self._side.result()
        except TableError:
            check_not_overtaken(self._claimed.output, self._claimed.writer)
            raise
        self._side = None

    def _with_ledger(self, batch: BatchCommit, rows: list[ledger.LedgerRow], full_at: float | None) -> BatchCommit:
        """Write the ledger file of a batch; returns the batch with it."""
        file = ledger.write_ledger(self._folders.ledger, rows)
        return msgspec.structs.replace(
            batch,
            ledger=file,
            full_ledger_at=full_at,
            needs=_needed(self._folders, batch, file, rows),
            losses=count_batch_losses(chain.from_iterable(row.losses for row in rows)),
        )

    def _describe_start(self, now: datetime) -> RunStart | None:
        """The start of the run, with its first batch."""
        if not self.first:
            return None
        return RunStart(self._claimed.cause, self._gap_seconds(now))

    def _gap_seconds(self, now: datetime) -> float | None:
        """Seconds from the last batch of the previous run to the first of this run."""
        last = max((row.committed_at for row in self._claimed.known.values()), default=None)
        if last is None:
            return None
        return max(0.0, (now - last).total_seconds())

    def _full_ledger_due(self) -> bool:
        """A full set is due after as many rows as it has itself: readers of positions read twice as many at most."""
        if self.first or self._rows_since_full >= self._full_rows:
            return True
        is_aged = time.time() - self.head.full_ledger_at > FULL_LEDGER_SECONDS
        return is_aged or self.head.batch + 1 - self.head.full_ledger_batch >= FULL_LEDGER_BATCHES

    def _count(self, rows: int, *, full: bool) -> None:
        if full:
            self._full_rows = rows
            self._rows_since_full = 0
        else:
            self._rows_since_full += rows

    def _follow(self, landed: Committed) -> None:
        """Bring the side tables up to a commit; then log checkpoints are written, for which no batch waits."""
        self._side_logs.catch_up(landed.head)
        newest = [(self._folders.table, landed.version), *self._side_logs.list_versions()]
        self._background_executor.submit(_write_checkpoints, newest)


def _write_checkpoints(newest: Sequence[tuple[Path, int]]) -> None:
    """Write the log checkpoints that are due. They only make later opens faster: after an error the next one tries."""
    try:
        for table, version in newest:
            write_checkpoint_if_due(table, version)
    except Exception:
        LOG.warning("no log checkpoint this time", exc_info=True)


def _needed(
    folders: StreamFolders, batch: BatchCommit, ledger_file: SideFile, rows: Iterable[ledger.LedgerRow]
) -> dict[Path, int]:
    """Files that the commit references in addition to data files, with the minimum size of each."""
    needs = {folders.ledger / ledger_file.path: ledger_file.size}
    sides = ((folders.quarantine, batch.quarantine), (folders.late, batch.late), (folders.archive, batch.archive))
    for folder, files in sides:
        needs |= {folder / file.path: file.size for file in files}
    states: dict[str, int] = {}
    for row in rows:
        if row.state_file is not None and row.state_start is not None and row.state_length is not None:
            # One file has the states of many partitions: it reaches to the end of the last.
            states[row.state_file] = max(states.get(row.state_file, 0), row.state_start + row.state_length)
    return needs | {folders.state / name: size for name, size in states.items()}


class Publisher:
    """Publishes positions at intervals on its own thread: best effort, never delays a batch.

    Without the group's coordinator a publication takes longer than an interval: of those that wait for it only the
    newest is sent, or the end of the run would wait for all of them.
    """

    def __init__(self, group: ConsumerGroup, background_executor: ThreadPoolExecutor) -> None:
        self._group = group
        self._background_executor = background_executor
        self._published = time.monotonic() - PUBLISH_SECONDS  # a killed first run must leave its group behind
        self._newest: dict[TopicNamePartition, int] = {}
        self._refused = ""

    def note(self, positions: Iterable[Position]) -> None:
        """Publish, unless the last publication is recent."""
        if time.monotonic() - self._published >= PUBLISH_SECONDS:
            self.publish(positions)

    def publish(self, positions: Iterable[Position]) -> None:
        """Publish now."""
        self._published = time.monotonic()
        self._newest = _list_offsets(positions)
        self._background_executor.submit(self._publish, self._newest)

    def check_group_offsets(self, positions: Iterable[Position]) -> None:
        """Warn when the group offsets in Kafka are ahead of the table."""
        self._background_executor.submit(self._check_group_offsets, _list_offsets(positions))

    def _check_group_offsets(self, offsets: dict[TopicNamePartition, int]) -> None:
        try:
            published = self._group.published(offsets)
        except KafkaError as error:
            LOG.warning("cannot check whether this table is the newest of its stream: %s", error.problem)
            return
        ahead = {place: offset - offsets[place] for place, offset in published.items() if offset > offsets[place]}
        if ahead:
            LOG.warning(
                "group %s in Kafka is ahead of this table by %s offsets in %s partitions: the table was restored from "
                "an older copy, or another table root is written for this stream; what Kafka still has of that is read "
                "again",
                self._group.name,
                sum(ahead.values()),
                len(ahead),
            )

    def _publish(self, offsets: dict[TopicNamePartition, int]) -> None:
        """Publish, unless newer positions wait; a refusal is warned of once, for it may last for months."""
        if offsets is not self._newest:  # newer ones wait behind it: an outage of the group must not queue them all
            return
        try:
            self._group.publish(offsets)
            refused = ""
        except KafkaError as error:
            refused = error.problem
        if refused and refused != self._refused:
            LOG.warning("positions are not shown to lag tools: %s", refused)
        self._refused = refused


def _list_offsets(positions: Iterable[Position]) -> dict[TopicNamePartition, int]:
    return {TopicNamePartition(p.topic, p.partition): p.next_offset for p in positions}


def check_table_present(stream: AnyStream, folders: StreamFolders, admin: ClusterAdmin, group: ConsumerGroup) -> None:
    """Refuse to read everything again as if the stream were new: the table root may be mistyped.

    Raises:
        TableError: The table is missing, but the group in Kafka has offsets; or the stream is being restored.
        KafkaError: Kafka does not answer.
    """
    if delta_log.has_log(folders.table):
        return
    refuse_incoming(folders)
    topics = admin.topics(stream.topics.select(admin.topic_names())).values()
    places = list[TopicNamePartition]()
    for topic in topics:
        places += [TopicNamePartition(topic.name, partition) for partition in range(topic.partitions)]
    published = group.published(places)
    if any(published.values()) and not delta_log.has_log(folders.table):  # else another first start was faster
        names = {place.topic for place in published}
        raise TableError(
            f"{folders.table} does not exist, but stream {stream.name} had come to {sum(published.values())} offsets "
            f"of {len(names)} topics, says group {group.name} in Kafka",
            next_step=f"correct table_root; or, to read all of it into a new table: lockstep reset {stream.name}",
        )
