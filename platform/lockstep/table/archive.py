"""The archive table: the messages of a stream as Kafka had them, and the offsets without a message.

It is keyed by topic id, partition and offset, outside of generations: a rewind neither restores nor repeats it. The
ledger records for each batch and partition which offsets the batch has archived, with a digest of them. So a reader
knows the content of the archive from the ledger alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.errors import TableError
from lockstep.model.finding import Hole
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import make_row_schema
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, transactions
from lockstep.table.head import FIRST_GENERATION, Head, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import UNREADABLE, explain_unreadable, write_file
from lockstep.table.quarantine import Header

NUMBER_COLUMNS = ("offset", "until", "timestamp_ms", "timestamp_type", "leader_epoch")
NO_TIMESTAMP_MS = -1
"""The client library's time of a message without a timestamp."""
ERASED_MESSAGE = "erased"
"""Cause of an offset whose message was of an erased session."""
HIDDEN = frozenset({"session"})
"""Columns without bounds in the log and the head: both outlive an erased session's messages."""


class ArchivedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message, or a run of offsets without one.

    Attributes:
        topic_id: Kafka's topic id.
        topic: Name of the topic.
        partition: Partition number.
        offset: Offset of the message; first of the offsets without a message.
        until: First offset after it.
        cause: Why the offsets have no message: "aborted", "marker", ... (docs/ledger.md); "erased" of a message whose
            session was erased; null for a message.
        batch: The batch that archived it.
        timestamp_ms: Kafka's timestamp in milliseconds since 1970 (UTC), even an absurd one.
        timestamp_type: 0 without a timestamp, 1 set by the producer, 2 set by the broker.
        leader_epoch: Leader epoch under which the message was written; null if the broker does not send it.
        session: The session, if that is not the key.
        key: The key, as bytes.
        value: The value, as bytes; null for a tombstone.
        headers: The headers, in order.
    """

    topic_id: str
    topic: str
    partition: int
    offset: int
    until: int
    cause: str | None
    batch: int
    timestamp_ms: int | None
    timestamp_type: int
    leader_epoch: int | None
    session: str | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]


SCHEMA = make_row_schema(ArchivedRow)


class ArchivedRange(msgspec.Struct, frozen=True):
    """Offsets [start, until) of a partition that a batch has archived.

    Attributes:
        start: First offset.
        until: First offset after them.
        digest: Digest of their rows: see `digest_rows`.
    """

    start: int
    until: int
    digest: int


def digest_rows(rows: pa.Table) -> int:
    """The digest of archived rows of one partition, in order of offsets, as a signed number of 64 bits.

    The high half is the CRC-32 of the numbers, column by column, each of 8 bytes: of a text its length, -1 for null.
    The low half is the CRC-32 of the bytes of the texts, column by column.
    """
    headers: Any = rows["headers"].combine_chunks()
    fields: Any = headers.flatten()
    texts: list[Any] = [rows[name].combine_chunks() for name in ("cause", "key", "value")]
    if len(fields):
        texts += [pc.struct_field(fields, name) for name in ("name", "value")]
    numbers: list[Any] = [rows[name].combine_chunks() for name in NUMBER_COLUMNS]
    numbers += [pc.list_value_length(headers), *(pc.binary_length(values) for values in texts)]
    of_numbers = 0
    of_texts = 0
    for values in numbers:
        of_numbers = zlib.crc32(_to_numbers(values), of_numbers)
    for values in texts:
        of_texts = zlib.crc32(_to_bytes(values), of_texts)
    return int.from_bytes(of_numbers.to_bytes(4, "big") + of_texts.to_bytes(4, "big"), "big", signed=True)


def _to_numbers(values: Any) -> memoryview:
    filled = values.cast(pa.int64())
    if values.null_count:
        filled = filled.fill_null(-1)
    return memoryview(cast("Any", np.ascontiguousarray(filled.to_numpy(zero_copy_only=False))))


def _to_bytes(values: Any) -> memoryview:
    if values.null_count == len(values):
        return memoryview(b"")
    _, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if content is not None:
        return memoryview(content)[bounds[0] : bounds[-1]]
    return memoryview(b"")


def write_archive(archive: Path, rows: pa.Table, *, label: str) -> SideFile:
    """Write a file of the archive, synced and not yet committed; `label` names the batch that writes it."""
    file = write_file(archive, rows, prefix=f"archive-{label}", hidden=HIDDEN)
    return SideFile(path=file.path, size=file.size, rows=file.rows, statistics=file.statistics)


class ArchivedBlock(NamedTuple):
    """Offsets [start, until) of a partition that consecutive batches have archived, and these batches."""

    start: int
    until: int
    first_batch: int
    last_batch: int


BLOCK_OFFSETS = 50_000
"""Offsets of a block at least: a month of batches has as many ranges as batches, and needs no more memory than this."""
_COLUMNS = ["batch", "topic_id", "partition", "archived_from", "archived_until"]


def read_blocks(
    folders: StreamFolders, head: Head, wanted: Mapping[TopicIdPartition, int]
) -> dict[TopicIdPartition, list[ArchivedBlock]]:
    """The archived offsets of partitions without a gap up to the newest, in order.

    An erasure removes messages from the archive, so batches before it can be read message by message, and be folded
    again no more.

    Args:
        folders: Folders of the stream.
        head: Its head.
        wanted: For each partition an offset; archived offsets before it may be left out.

    Raises:
        TableError: A ledger file is missing or damaged.
    """
    if head.archive is None or not delta_log.has_log(folders.archive):
        return {}
    # An erasure removes messages, so batches before it can be read and not be folded again.
    erased = 0 if head.erasure is None else head.erasure.batch
    ranges_of: dict[TopicIdPartition, list[tuple[int, int, int]]] = {key: [] for key in wanted}
    first = max(_read_last_dropped(folders), erased) + 1
    for rows in ledger.iterate_columns(folders.ledger, _COLUMNS, first_batch=first, last_batch=head.batch):
        archived = rows.filter(cast("Any", pc.field("archived_from").is_valid()))
        for batch, topic_id, partition, start, until in zip(*archived.to_pydict().values(), strict=True):
            ranges = ranges_of.get(TopicIdPartition(topic_id, partition))
            if ranges is not None and until > wanted[TopicIdPartition(topic_id, partition)]:
                ranges.append((batch, start, until))
    return {key: merge_ranges(sorted(ranges)) for key, ranges in ranges_of.items() if ranges}


def merge_ranges(ranges: Iterable[tuple[int, int, int]]) -> list[ArchivedBlock]:
    """Join ranges (batch, start, until), in order of batches, to blocks; only those after the last gap. Pure."""
    blocks = list[ArchivedBlock]()
    for batch, start, until in ranges:
        last = blocks[-1] if blocks else None
        if last is None or last.until != start:
            blocks = [ArchivedBlock(start, until, batch, batch)]
        elif last.until - last.start < BLOCK_OFFSETS:
            blocks[-1] = ArchivedBlock(last.start, until, last.first_batch, batch)
        else:
            blocks.append(ArchivedBlock(start, until, batch, batch))
    return blocks


class ArchivedEnd(NamedTuple):
    """The end of the archived offsets of a partition.

    Attributes:
        until: First offset after them; None if none was archived.
        is_gone: No run reads the partition again: its topic was deleted or re-created.
    """

    until: int | None
    is_gone: bool


_END_COLUMNS = ["batch", "topic_id", "partition", "archived_until", "retired", "ending", "gone_since"]


def read_archived_ends(folders: StreamFolders, head: Head) -> dict[TopicIdPartition, ArchivedEnd]:
    """The end of the archive in each partition, also of those that have no position since a rewind.

    Args:
        folders: Folders of the stream.
        head: Its head.

    Raises:
        TableError: A ledger file is missing or damaged.
    """
    if head.archive is None or not delta_log.has_log(folders.archive):
        return {}
    positions = ledger.read_positions(folders, head)
    now = {key: ArchivedEnd(row.archived_until, row.is_gone) for key, row in positions.items()}
    if head.generation == FIRST_GENERATION:  # nothing was ever undone
        return now
    # A rewind leaves the messages of undone batches in the archive: their ledger rows count here, too.
    first = _read_last_dropped(folders) + 1
    parts = ledger.iterate_columns(
        folders.ledger, _END_COLUMNS, first_batch=first, last_batch=head.batch, without=head.valid_batches
    )
    return merge_ends(now, chain.from_iterable(map(_find_ends, parts)))


def merge_ends(
    now: Mapping[TopicIdPartition, ArchivedEnd], undone: Iterable[tuple[TopicIdPartition, int, ArchivedEnd]]
) -> dict[TopicIdPartition, ArchivedEnd]:
    """The ends of the archive, of which undone batches may have reached further than those that count. Pure.

    Args:
        now: The end in each partition that has a position.
        undone: Partition, batch and end of other batches, in any order.
    """
    merged = dict(now)
    newest = dict[TopicIdPartition, int]()
    for key, batch, end in undone:
        previous = merged.get(key, end)
        is_gone = previous.is_gone
        if key not in now and batch >= newest.get(key, 0):
            newest[key] = batch
            is_gone = end.is_gone
        reached = [until for until in (previous.until, end.until) if until is not None]
        merged[key] = ArchivedEnd(max(reached, default=None), is_gone)
    return merged


def _find_ends(rows: pa.Table) -> Iterator[tuple[TopicIdPartition, int, ArchivedEnd]]:
    """The last batch of each partition in some rows of the ledger, and the end of the archive."""
    has_ended: Any = pc.field("ending").is_valid() | pc.field("gone_since").is_valid()
    is_gone: Any = pc.field("retired") & has_ended
    place = ["topic_id", "partition"]
    # Of several batches of a partition the last decides whether its topic is gone.
    gone = rows.filter(is_gone).group_by(place).aggregate([("batch", "max")])
    gone_at = set(zip(*gone.select([*place, "batch_max"]).to_pydict().values(), strict=True))
    ends = rows.group_by(place).aggregate([("batch", "max"), ("archived_until", "max")])
    columns = ends.select([*place, "batch_max", "archived_until_max"]).to_pydict().values()
    for topic_id, partition, batch, until in zip(*columns, strict=True):
        is_gone_then = (topic_id, partition, batch) in gone_at
        yield TopicIdPartition(topic_id, partition), batch, ArchivedEnd(until, is_gone_then)


def _read_last_dropped(folders: StreamFolders) -> int:
    """The last batch whose archived messages retention has dropped; 0 for none."""
    return delta_log.open_delta_table(folders.archive).transaction_version(transactions.DROPPED) or 0


class ArchiveLacks(TableError):
    """The archive does not have offsets that the ledger claims for it."""

    def __init__(self, archive: Path, place: str, start: int, until: int) -> None:
        stream = archive.parent.name
        super().__init__(
            f"{archive}: offsets {start} to {until - 1} of {place} are not in the archive, which must have them",
            next_step=f"lockstep verify {stream} shows what is missing; restore the archive from a backup",
        )


class WantedMessages(msgspec.Struct, frozen=True):
    """Offsets [start, until) of a partition that batches have archived.

    Attributes:
        archive: Folder of the archive table.
        topic_id: Kafka's id of the topic.
        partition: Partition number.
        start: First offset.
        until: First offset after them.
        first_batch: The first batch that may have archived one of them.
        last_batch: The last such batch.
    """

    archive: Path
    topic_id: str
    partition: int
    start: int
    until: int
    first_batch: int
    last_batch: int


class ArchivedMessage:
    """A message of the archive, with the methods of a client library's message."""

    __slots__ = ("_epoch", "_headers", "_key", "_offset", "_timestamp", "_value")

    def __init__(
        self,
        offset: int,
        timestamp: tuple[int, int],
        epoch: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        self._offset = offset
        self._timestamp = timestamp
        self._epoch = epoch
        self._key = key
        self._value = value
        self._headers = headers

    def offset(self) -> int:
        """The offset."""
        return self._offset

    def key(self) -> bytes | None:
        """The key."""
        return self._key

    def value(self) -> bytes | None:
        """The value."""
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Pairs of name and value, or None."""
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        return self._timestamp

    def leader_epoch(self) -> int | None:
        """Leader epoch, if the broker had sent it."""
        return self._epoch


class ArchivedRun(msgspec.Struct, frozen=True):
    """The next offsets of a partition: messages, and runs of offsets without one.

    Attributes:
        messages: In order of offsets.
        holes: Runs of offsets without a message, in order.
        until: First offset after them.
    """

    messages: list[ArchivedMessage]
    holes: tuple[Hole, ...]
    until: int


RUN_ROWS = 1_000
"""Rows that are made to messages at once."""


def read_messages(wanted: WantedMessages) -> Iterator[ArchivedRun]:
    """Read messages in order of offsets; the last run ends at `until`.

    Raises:
        ArchiveLacks: An offset is not there, or is there twice.
        TableError: A file is damaged.
        FileNotFoundError: A compaction replaced a file meanwhile, and it was deleted.
    """
    next_offset = wanted.start
    place = f"topic id {wanted.topic_id}, partition {wanted.partition}"
    for path in _find_files(wanted):
        for rows in _read_rows(wanted, path, pc.field("topic_id") == wanted.topic_id):
            gap = find_gap(rows, next_offset, wanted.start)
            if gap is not None:
                raise ArchiveLacks(wanted.archive, place, *gap)
            next_offset = min(int(rows["until"][-1].as_py()), wanted.until)
            for first in range(0, rows.num_rows, RUN_ROWS):
                yield make_run(rows.slice(first, RUN_ROWS), wanted.start, wanted.until)
    if next_offset != wanted.until:
        raise ArchiveLacks(wanted.archive, place, next_offset, wanted.until)


def find_gap(rows: pa.Table, at: int, first: int) -> tuple[int, int] | None:
    """The first offsets [start, until) that rows, in order of offsets, lack or repeat; None if there are none. Pure.

    Args:
        rows: Rows of one partition.
        at: The offset that the first row must have.
        first: Offsets before it do not count: the first row may start earlier.
    """
    starts = np.maximum(rows["offset"].to_numpy(), first)
    ends = rows["until"].to_numpy()
    expected = np.concatenate([[at], ends[:-1]])
    wrong = np.flatnonzero(starts != expected)
    if not len(wrong):
        return None
    pair = (int(expected[wrong[0]]), int(starts[wrong[0]]))
    return min(pair), max(pair)


def make_run(rows: pa.Table, start: int, until: int) -> ArchivedRun:
    """Make a run of rows of one partition, in order of offsets, within offsets [start, until). Pure."""
    reached = min(int(rows["until"][-1].as_py()), until)
    messages = rows
    holes = tuple[Hole, ...]()
    if rows["cause"].null_count < rows.num_rows:
        gaps = rows.filter(cast("Any", pc.field("cause").is_valid())).select(["offset", "until", "cause"]).to_pylist()
        holes = tuple(_clip_hole(gap, start, until) for gap in gaps)
        messages = rows.filter(cast("Any", pc.field("cause").is_null()))
    return ArchivedRun(list_messages(messages), holes, reached)


def _clip_hole(gap: Mapping[str, Any], start: int, until: int) -> Hole:
    """The part of an archived gap within offsets [start, until)."""
    return Hole(start=max(gap["offset"], start), until=min(gap["until"], until), cause=gap["cause"])


def list_messages(rows: pa.Table) -> list[ArchivedMessage]:
    """The messages of rows that all are messages."""
    names = ["offset", "timestamp_type", "timestamp_ms", "leader_epoch", "key", "value", "headers"]
    columns = (rows[name].to_pylist() for name in names)
    messages = list[ArchivedMessage]()
    for offset, kind, at_ms, epoch, key, value, headers in zip(*columns, strict=True):
        timestamp = (kind, NO_TIMESTAMP_MS if at_ms is None else at_ms)
        messages.append(ArchivedMessage(offset, timestamp, epoch, key, value, list(map(_to_pair, headers))))
    return messages


def _to_pair(header: Mapping[str, Any]) -> tuple[str, bytes | None]:
    return header["name"], header["value"]


def find_message(archive: Path, topic: str, partition: int, offset: int) -> ArchivedMessage | None:
    """The message at an offset of a topic, of the newest one of that name; None if the archive does not have it.

    Raises:
        TableError: A file is damaged.
    """
    if not delta_log.has_log(archive):
        return None
    actions = pa.table(delta_log.open_delta_table(archive).get_add_actions(flatten=True))
    names = ["max.batch", "path", "min.partition", "max.partition", "min.offset", "max.until"]
    if not actions.num_rows:  # without files the actions lack the columns of bounds
        return None
    files = [tuple(file.values()) for file in actions.select(names).to_pylist()]
    for _, path, least, greatest, first, end in sorted(files, reverse=True):  # the newest batches first
        if least <= partition <= greatest and first <= offset < end:
            wanted = WantedMessages(archive, "", partition, offset, offset + 1, 0, 0)
            for rows in _read_rows(wanted, archive / path, pc.field("topic") == topic):
                if messages := make_run(rows, offset, offset + 1).messages:
                    return messages[0]
    return None


def _find_files(wanted: WantedMessages) -> Sequence[Path]:
    """The files that may have the messages, in order of batches."""
    actions = pa.table(delta_log.open_delta_table(wanted.archive).get_add_actions(flatten=True))
    names = ["path", "min.batch", "max.batch", "min.topic_id", "max.topic_id", "min.partition", "max.partition"]
    files = list[tuple[int, str]]()
    for row in actions.select(names).to_pylist():
        path, first, last, least_id, greatest_id, least, greatest = row.values()
        is_within = first <= wanted.last_batch and last >= wanted.first_batch
        if is_within and least <= wanted.partition <= greatest and least_id <= wanted.topic_id <= greatest_id:
            files.append((first, path))
    return [wanted.archive / path for _, path in sorted(files)]


def _read_rows(wanted: WantedMessages, path: Path, is_of_topic: Any) -> Iterator[pa.Table]:
    """The rows of a file with wanted offsets of a topic, in order, a row group at a time."""
    is_within: Any = (pc.field("offset") < wanted.until) & (pc.field("until") > wanted.start)
    is_wanted = (pc.field("partition") == wanted.partition) & is_of_topic & is_within
    try:
        with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
            for group in range(parquet.num_row_groups):
                if not _may_hold(parquet.metadata.row_group(group), wanted):
                    continue
                rows = parquet.read_row_group(group, use_threads=False).filter(is_wanted)
                if rows.num_rows:
                    yield rows.sort_by("offset")
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise explain_unreadable(path, error) from error


def _may_hold(group: pq.RowGroupMetaData, wanted: WantedMessages) -> bool:
    """Whether a row group may have a wanted offset, by its statistics."""
    bounds: Mapping[str, tuple[int, int]] = {"partition": (wanted.partition, wanted.partition + 1)}
    bounds = {**bounds, "offset": (0, wanted.until), "until": (wanted.start + 1, 2**63)}
    for number in range(group.num_columns):
        column = group.column(number)
        first, end = bounds.get(column.path_in_schema, (0, 0))
        statistics: Any = column.statistics
        if (
            end
            and statistics is not None
            and statistics.has_min_max
            and not (statistics.min < end and statistics.max >= first)
        ):
            return False
    return True
