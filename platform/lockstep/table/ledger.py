"""The ledger: one row per topic-partition and batch. An ordinary table: lag, audits and proofs are SQL."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.model.commit_hour import format_hour
from lockstep.model.fault import Fault
from lockstep.model.finding import Hole
from lockstep.model.lookup_version import LookupVersion
from lockstep.model.position import Ending, SuspendedSession, TopicIdPartition, make_key
from lockstep.model.state_loss import StateLoss
from lockstep.model.table_schema import make_row_schema
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.file_checksum import iterate_verified_rows, read_verified_rows
from lockstep.table.head import Head, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFileWriter, write_file
from lockstep.table.schema_evolution import with_defaults


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision on a partition, so that a halted stream could resume.

    Attributes:
        kind: The option of `lockstep resume`, without its dashes: "accept-loss", "skip-session", "from-snapshot", ...
        cause: The cause of the finding that it covers; empty for none.
        start: First offset concerned.
        until: First offset after those concerned.
        session: The session that an operator skips; None for any other kind.
        who: The operator.
        why: The cause that was found.
    """

    kind: str
    cause: str
    start: int
    until: int
    session: str | None
    who: str
    why: str


LOSSES = frozenset({"accept-loss", "from-snapshot"})
"""Kinds of decisions that pass over offsets which were not read."""


class ErasedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one batch and partition that an erasure has removed. The counts of that batch stay as they were.

    Attributes:
        digest: Digest of the session, as `compute_session_digest` makes it.
        start: Emit offset of the first of them; without any, the position at the batch of the erasure.
        batch: The batch that emitted them.
        rows: How many.
        messages: Their messages.
    """

    digest: str
    start: int
    batch: int
    rows: int
    messages: int


CAUSES_OF_ENDS: Mapping[str, str] = {"deleted": Fault.TOPIC_DELETED.value, "re-created": Fault.RECREATED.value}
"""Causes for which the states of a topic are discarded, by its end."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One batch's result in one partition. Counts are of messages, except `rows`; times are UTC.

    messages + released = with_rows + accepted_without_row + skipped + dropped + quarantined + late + buffered.

    Attributes:
        generation: Generation of the table; a rewind starts the next generation.
        batch: Number of the batch.
        epoch: Epoch of the writer.
        committed_at: Time of the commit, by the driver's clock.
        topic_id: Kafka's id of the topic.
        topic: Name of the topic.
        partition: Partition number.
        start: First offset of the range.
        until: Offset after the range: the next one to read.
        stable_end: Last stable offset as last read from Kafka; -1 if unknown.
        high_watermark: High watermark as last read from Kafka; -1 if unknown.
        messages: Messages read.
        rows: Rows emitted, those of timers included.
        accepted_without_row: Accepted messages that emitted no row.
        skipped: Messages of kind SKIP, and `before_snapshot`.
        repeats: Messages found to be duplicates or out of order, accepted or dropped.
        gaps: Messages found to follow a gap, accepted or quarantined.
        dropped: Messages neither applied nor stored, by the rule of the class.
        quarantined: Messages in quarantine.
        suspended_from: Sessions that started before this offset are suspended until their next snapshot.
        holes: Offsets without a message, with their causes.
        leader_epoch: Leader epoch of the last record read.
        first_event_time: Lowest event time in the envelopes of the range.
        last_event_time: Highest event time in them.
        newest_timestamp: Kafka timestamp of the last message up to `until` with a plausible timestamp.
        batch_seconds: Wall time of the batch, without its commit.
        cpu_seconds: CPU time of the range in its task.
        state_file: File of the segment with the newest change of the partition's state.
        state_start: First byte of that segment.
        state_length: Bytes of that segment.
        state_bytes: Bytes of state written in this batch.
        state_checksum: CRC-32 of the segment that was written in this batch.
        restart_cause: Cause of the run, in its first batch.
        with_rows: Messages that emitted rows.
        buffered: Messages stored in the state for a later batch.
        released: Messages buffered by an earlier batch, which count under their final outcome, too.
        late: Messages in the late table.
        timer_rows: Timers, idle sessions and late messages that emitted rows.
        watermark: Watermark of the partition after the range.
        rows_emitted: Rows that timers emitted at `until`.
        planned_at: Time against which implausible event times are detected.
        accepted: Resume options that an operator gave.
        suspended_sessions: Sessions that an operator skips until their next snapshot.
        catching_up: The log was truncated below the position: records up to it are skipped.
        retired: The topic is not read: drained, until a message arrives, deleted or re-created.
        joined_at: First offset read of a log that is not read from its start; otherwise 0.
        before_snapshot: Messages before the first snapshot of their session, in a log that is not read from its start.
        lifecycle: Change of the topic: added, grown, retired, re-added, deleted, re-created, imported or forgotten.
        erased: Of an erasure: the rows that it removed from this partition.
        lookups: The versions of lookup tables that the batch read; null if the stream has none.
        gone_since: Time since which Kafka has not had a retired topic.
        ending: "deleted" or "re-created", of a topic that is not read any more.
        last_end: Of such a topic: its high watermark as last observed; null if no run has observed it.
        last_end_age_seconds: Age of that observation when the topic was missed.
        absurd_timestamps: Messages whose Kafka timestamp no clock can have shown, at least.
        absent_removals: Removals of keys that were not in the table of a `TableFold`.
        losses: Discarded states that nothing replaced or emitted.
        discarded_by: Why states were discarded that no batch has counted yet; empty without any.
        uncounted_skips: Skipped sessions whose states no batch has counted yet.
        lost_before: Sessions that are suspended because they started before this offset are among the losses.
        archived_from: First offset that the batch has archived; null if it has archived none.
        archived_until: Offset after the last archived offset of the partition; null if none was ever archived.
        archived_digest: Digest of what the batch has archived (docs/archive.md).
    """

    generation: int
    batch: int
    epoch: int
    committed_at: datetime
    topic_id: str
    topic: str
    partition: int
    start: int
    until: int
    stable_end: int
    high_watermark: int
    messages: int
    rows: int
    accepted_without_row: int
    skipped: int
    repeats: int
    gaps: int
    dropped: int
    quarantined: int
    suspended_from: int
    holes: list[Hole]
    leader_epoch: int | None
    first_event_time: datetime | None
    last_event_time: datetime | None
    newest_timestamp: datetime | None
    batch_seconds: float
    cpu_seconds: float
    state_file: str | None
    state_start: int | None
    state_length: int | None
    state_bytes: int
    restart_cause: str | None = None
    with_rows: int | None = None
    buffered: int = 0
    released: int = 0
    late: int = 0
    timer_rows: int = 0
    watermark: datetime | None = None
    rows_emitted: int = 0
    planned_at: datetime | None = None
    accepted: list[Accepted] = []
    suspended_sessions: list[SuspendedSession] = []
    catching_up: bool = False
    retired: bool = False
    joined_at: int = 0
    before_snapshot: int = 0
    lifecycle: str | None = None
    erased: list[ErasedRows] = []
    state_checksum: int | None = None
    lookups: list[LookupVersion] | None = None
    gone_since: datetime | None = None
    ending: str | None = None
    last_end: int | None = None
    last_end_age_seconds: float | None = None
    absurd_timestamps: int = 0
    absent_removals: int = 0
    losses: list[StateLoss] = []
    discarded_by: str = ""
    uncounted_skips: list[str] = []
    lost_before: int = 0
    archived_from: int | None = None
    archived_until: int | None = None
    archived_digest: int | None = None

    @property
    def key(self) -> TopicIdPartition:
        """The partition, by the id of its topic."""
        return make_key(self.topic_id, self.partition)

    def find_ending(self) -> Ending | None:
        """The end of a topic that was deleted or re-created."""
        if self.ending:
            return Ending(self.ending, self.last_end, self.last_end_age_seconds)
        return None

    def with_retirement_of(self, now: LedgerRow) -> LedgerRow:
        """The row with the retirement of another row of its partition, and the end of a topic that is gone.

        If the row is from before that end, the next batch counts the states that it discards.
        """
        discarded_by = self.discarded_by
        if now.ending and not self.ending:
            discarded_by = CAUSES_OF_ENDS[now.ending]
        return msgspec.structs.replace(
            self,
            discarded_by=discarded_by,
            retired=now.retired,
            gone_since=now.gone_since,
            ending=now.ending,
            last_end=now.last_end,
            last_end_age_seconds=now.last_end_age_seconds,
        )

    @property
    def is_gone(self) -> bool:
        """Whether the topic is retired, and was deleted or re-created."""
        return self.retired and (self.ending is not None or self.gone_since is not None)

    @property
    def is_loss(self) -> bool:
        """Whether an operator gave up the offsets of this range: none of them was read."""
        return self.until > self.start and not self.messages and any(each.kind in LOSSES for each in self.accepted)


SCHEMA = make_row_schema(LedgerRow)

FORGOTTEN = "forgotten"
"""The last row of a partition whose topic Kafka has not had for long: it has neither position nor state after it."""

_FILE_NAME = re.compile(r"-(\d{4}-\d\d-\d\dT\d\d)-g(\d+)-b(\d+)-(\d+)-[0-9a-f]{32}")


REPEATED_ROWS_MIN = 64
"""In fewer rows a column is made as fast as it is examined."""


def write_ledger(ledger: Path, rows: Iterable[LedgerRow]) -> SideFile:
    """Write the ledger file of a batch, synced and not yet committed."""
    listed = list(rows)
    table = _make_table(listed)
    name = "ledger"
    if listed:
        name = LedgerFileName.of_batch(listed[0]).prefix("ledger")
    file = write_file(ledger, table, prefix=name, counted_only=True, sealed=True)
    return SideFile(path=file.path, size=file.size, rows=file.rows, statistics=file.statistics)


def write_ledger_parts(ledger: Path, parts: Iterable[Sequence[LedgerRow]], name: LedgerFileName) -> SideFile:
    """Write the ledger file of several batches, part by part, synced and not yet committed."""
    prefix = name.prefix("ledger")
    with DataFileWriter(ledger, SCHEMA, commit_hour=None, prefix=prefix, counted_only=True, sealed=True) as writer:
        for part in parts:
            writer.write(_make_table(part))
        file = writer.finish()
    return SideFile(path=file.path, size=file.size, rows=file.rows, statistics=file.statistics)


class LedgerFileName(msgspec.Struct, frozen=True):
    """The parts of a ledger file's name: a reader finds the files it needs without opening any.

    Attributes:
        hour: Hour of its commits, "YYYY-MM-DDTHH" UTC.
        generation: Generation of its batches.
        first: Number of its first batch.
        last: Number of its last batch.
    """

    hour: str
    generation: int
    first: int
    last: int

    @staticmethod
    def of_batch(row: LedgerRow) -> LedgerFileName:
        """The name for the file of one batch."""
        return LedgerFileName(format_hour(row.committed_at), row.generation, row.batch, row.batch)

    @staticmethod
    def parse(path: str) -> LedgerFileName | None:
        """Parse a file's name; None for a name without these parts (a file of a batch without partitions)."""
        match = _FILE_NAME.search(path)
        if match is None:
            return None
        return LedgerFileName(match[1], int(match[2]), int(match[3]), int(match[4]))

    def prefix(self, kind: str) -> str:
        """The prefix of the file's name; a uuid and a checksum follow."""
        return f"{kind}-{self.hour}-g{self.generation}-b{self.first}-{self.last}"


def read_ledger(ledger: Path, *, first_batch: int = 0, last_batch: int | None = None) -> list[LedgerRow]:
    """The rows of all batches from `first_batch` to `last_batch`, in order of batch, topic and partition.

    Only files that may hold such batches are opened.

    Raises:
        TableError: A required file is missing, or any byte of it is wrong.
    """
    return with_defaults(read_columns(ledger, first_batch=first_batch, last_batch=last_batch), LedgerRow)


def read_ledger_file(folder: Path, path: str) -> list[LedgerRow]:
    """The rows of one file as `write_ledger` wrote it, whether a table has it or not. Raises as `read_ledger`."""
    return with_defaults(_read_files(folder, [path], None), LedgerRow)


def iterate_rows(ledger: Path, *, first_batch: int = 0, last_batch: int | None = None) -> Iterator[list[LedgerRow]]:
    """The rows of some batches, in lists and in no order of them; raises as `read_ledger` does.

    A row group of a file is in memory: a compacted hour of a thousand partitions has millions of rows.
    """
    for path in find_live_files(ledger, first_batch=first_batch, last_batch=last_batch):
        for rows in iterate_verified_rows(ledger / path, ledger.parent.name):
            selected = _in_order([rows.filter(_within(first_batch, last_batch))], SCHEMA)
            if wanted := with_defaults(selected, LedgerRow):
                yield wanted


def read_columns(
    ledger: Path, columns: list[str] | None = None, *, first_batch: int = 0, last_batch: int | None = None
) -> pa.Table:
    """Some columns of the rows of some batches, in order of batch, topic and partition. Raises as `read_ledger` does.

    Args:
        ledger: Folder of the ledger.
        columns: Names of columns; by default all. The three sort columns of the rows are required.
        first_batch: First batch.
        last_batch: Last batch; by default the newest.
    """
    paths = find_live_files(ledger, first_batch=first_batch, last_batch=last_batch)
    return _read_files(ledger, paths, columns, first_batch=first_batch, last_batch=last_batch)


def iterate_columns(
    ledger: Path,
    columns: list[str],
    *,
    first_batch: int = 0,
    last_batch: int | None = None,
    without: Mapping[int, int] | None = None,
) -> Iterator[pa.Table]:
    """Some columns of the rows of some batches, in tables and in no order of them. Raises as `read_ledger` does.

    A row group of a file is in memory: the ledger of a year has a hundred million rows.

    Args:
        ledger: Folder of the ledger.
        columns: Names of columns, those by which rows are sorted among them.
        first_batch: First batch.
        last_batch: Last batch; by default the newest.
        without: Last batches of generations; files with none but earlier batches of these generations are not read.
    """
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    left_out = {} if without is None else without
    for path in find_live_files(ledger, first_batch=first_batch, last_batch=last_batch):
        name = LedgerFileName.parse(path)
        if name is not None and name.last <= left_out.get(name.generation, -1):
            continue
        for rows in iterate_verified_rows(ledger / path, ledger.parent.name, columns):
            yield _in_order([rows.filter(_within(first_batch, last_batch))], schema)


def read_positions(folders: StreamFolders, head: Head) -> dict[TopicIdPartition, LedgerRow]:
    """The newest ledger row of every partition as of a head, by (topic id, partition); forgotten ones are left out.

    Reads the newest full set of positions and the ledger files after it, as the commits of the output table name
    them: the number of earlier batches, and of the ledger's files, does not matter.

    Raises:
        TableError: A required file is missing, or any byte of it is wrong.
    """
    if not head.batch:
        return {}
    files = _since_full_set(folders.table, head)
    if files is None:  # log entries with it were cleaned up; the ledger has all of them
        return read_positions_at(folders, head.batch, full_batch=head.full_ledger_batch)
    rows = _read_files(folders.ledger, [file.path for file in files], None)
    return _find_newest(with_defaults(rows, LedgerRow))


_FORGOTTEN_COLUMNS = ["batch", "topic_id", "partition", "lifecycle"]


def read_forgotten(ledger: Path, keys: AbstractSet[TopicIdPartition]) -> dict[TopicIdPartition, LedgerRow]:
    """The last rows of those of the partitions that are forgotten.

    Reads columns of the whole ledger, and once more the files that hold such rows: an old stream has forgotten topics
    in thousands of batches. A row group of a file is in memory.
    """
    last = dict[TopicIdPartition, LedgerRow]()
    if not keys:
        return last
    for path in find_live_files(ledger):
        # First the four columns: few files hold such a row, and whole rows have some sixty columns.
        parts = _iterate_file(ledger, path, _FORGOTTEN_COLUMNS)
        if not any(_find_forgotten(rows, keys).num_rows for rows in parts):
            continue
        for rows in _iterate_file(ledger, path, SCHEMA.names):
            for row in with_defaults(_find_forgotten(rows, keys), LedgerRow):
                key = row.key
                if key not in last or last[key].batch < row.batch:
                    last[key] = row
    return last


def _iterate_file(ledger: Path, path: str, columns: list[str]) -> Iterator[pa.Table]:
    """Some columns of a file, a row group at a time; a column added after the file is null."""
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    for rows in iterate_verified_rows(ledger / path, ledger.parent.name, columns):
        yield _in_order([rows], schema)


def _find_forgotten(rows: pa.Table, keys: AbstractSet[TopicIdPartition]) -> pa.Table:
    """The rows by which one of the partitions is forgotten."""
    forgotten = rows.filter(pc.field("lifecycle") == FORGOTTEN)
    names = zip(forgotten["topic_id"].to_pylist(), forgotten["partition"].to_pylist(), strict=True)
    return forgotten.filter(pa.array([name in keys for name in names], pa.bool_()))


def read_positions_at(folders: StreamFolders, batch: int, *, full_batch: int = 0) -> dict[TopicIdPartition, LedgerRow]:
    """The newest ledger row of every partition as of an earlier batch.

    Rows of another generation than the newest do not count: a rewind starts its own with a full set of positions.

    Args:
        folders: The folders of the stream.
        batch: The batch.
        full_batch: An earlier batch with a full set of positions; by default the first is used.
    """
    rows = read_ledger(folders.ledger, first_batch=full_batch, last_batch=batch)
    return _find_newest(row for row in rows if row.generation == rows[-1].generation)


def _find_newest(rows: Iterable[LedgerRow]) -> dict[TopicIdPartition, LedgerRow]:
    """The last row of each partition, unless it marks the partition as forgotten."""
    newest = {row.key: row for row in rows}
    return {key: row for key, row in newest.items() if row.lifecycle != FORGOTTEN}


def _since_full_set(table: Path, head: Head) -> list[SideFile] | None:
    """The ledger files from the newest full set on, newest first; None if an entry that names a file is gone."""
    files = list[SideFile]()
    current = head
    while current.ledger is not None:
        files.append(current.ledger)
        if current.batch <= head.full_ledger_batch:
            return files
        # Each head names the ledger file of its own batch: that of the batch before is in the entry before.
        previous = delta_log.read_head(table, current.batch_version - 1)
        if previous is None or previous.batch != current.batch - 1:
            return None
        current = previous
    return None


def find_live_files(ledger: Path, *, first_batch: int = 0, last_batch: int | None = None) -> dict[str, int]:
    """The live files of the ledger that may hold some batches, by their names, with their sizes; none is opened."""
    live = pa.table(delta_log.open_delta_table(ledger).get_add_actions()).select(["path", "size_bytes"]).to_pydict()
    files = zip(map(str, live["path"]), live["size_bytes"], strict=True)
    return {path: size for path, size in files if _may_hold(path, first_batch, last_batch)}


def _may_hold(path: str, first_batch: int, last_batch: int | None) -> bool:
    name = LedgerFileName.parse(path)
    return name is None or (name.last >= first_batch and (last_batch is None or name.first <= last_batch))


def _holds_only(path: str, first_batch: int, last_batch: int | None) -> bool:
    name = LedgerFileName.parse(path)
    return name is not None and name.first >= first_batch and (last_batch is None or name.last <= last_batch)


def _read_files(
    ledger: Path,
    paths: Iterable[str],
    columns: list[str] | None,
    *,
    first_batch: int = 0,
    last_batch: int | None = None,
) -> pa.Table:
    """Rows of some files."""
    wanted = _within(first_batch, last_batch)

    def read(path: str) -> pa.Table:
        rows = read_verified_rows(ledger / path, ledger.parent.name, columns)
        if _holds_only(path, first_batch, last_batch):
            return rows
        return rows.filter(wanted)

    parts = list(find_storage(ledger).map_files(read, paths))
    schema = SCHEMA
    if columns is not None:
        schema = pa.schema([SCHEMA.field(name) for name in columns])
    return _in_order(parts, schema)


def _within(first_batch: int, last_batch: int | None) -> pc.Expression:
    since = pc.field("batch") >= first_batch
    if last_batch is None:
        return since
    return since & (pc.field("batch") <= last_batch)


def _in_order(parts: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Rows of several files by batch, topic and partition; a column added after a file is null in its rows."""
    order: list[tuple[str, Literal["ascending", "descending"]]]
    order = [("batch", "ascending"), ("topic_id", "ascending"), ("partition", "ascending")]
    rows = pa.concat_tables([schema.empty_table(), *parts], promote_options="default")
    return rows.select(schema.names).sort_by(order)


def read_clock() -> datetime:
    """The time, for columns that people read; no decision depends on it."""
    return datetime.fromtimestamp(time.time(), UTC)


def _make_table(rows: Sequence[LedgerRow]) -> pa.Table:
    """The rows, column by column: a dictionary of each row costs 30 us, a batch has up to a row of each partition."""
    columns: Iterable[Sequence[Any]] = repeat((), len(SCHEMA))
    if rows:
        columns = zip(*map(msgspec.structs.astuple, rows), strict=True)
    arrays = [_make_column(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _make_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    """A column. Most hold one value in all rows of a batch, which is cheaper to repeat than to convert."""
    if isinstance(kind, pa.ListType):
        if _holds_structs(kind) and any(values):  # most lists are empty, which Arrow takes as they are
            return pa.array(map(_to_mappings, values), kind)
        return pa.array(values, kind)
    count = len(values)
    if count > REPEATED_ROWS_MIN and values[0] is values[-1] and values.count(values[0]) == count:
        one: Any = pa.array(values[:1], kind)[0]
        repeated: pa.Array[Any] = pa.repeat(one, count)
        return repeated
    return pa.array(values, kind)


@lru_cache
def _holds_structs(kind: pa.ListType[Any]) -> bool:
    return pa.types.is_struct(kind.value_type)


def _to_mappings(items: list[msgspec.Struct] | None) -> list[dict[str, object]] | None:
    if items is None:
        return None
    return [msgspec.structs.asdict(item) for item in items]
