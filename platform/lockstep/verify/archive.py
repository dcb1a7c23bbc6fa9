"""The archive as stored, by the prover's own reading: the claims of the ledger, and the messages."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.model.position import TopicIdPartition
from lockstep.table import delta_log, transactions
from lockstep.table.commit import OutputLog
from lockstep.table.file_checksum import read_verified
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.verify.files import open_parquet, open_table

ERASED: Final = "erased"
_CLAIM_COLUMNS: Final = ["topic_id", "partition", "batch", "archived_from", "archived_until", "archived_digest"]
_NUMBERS: Final = ["offset", "until", "timestamp_ms", "timestamp_type", "leader_epoch"]
_MESSAGE_COLUMNS: Final = ["offset", "timestamp_type", "timestamp_ms", "key", "value", "headers"]


class ArchiveClaim(NamedTuple):
    """The offsets [start, until) of a partition that a batch has archived, by the ledger."""

    batch: int
    start: int
    until: int
    digest: int


class ArchivedCopy:
    """A message of the archive, as the fold of the proof reads it."""

    __slots__ = ("_at", "_headers", "_key", "_time", "_value")

    def __init__(self, at: int, time: tuple[int, int], key: object, value: object, headers: object) -> None:
        self._at = at
        self._time = time
        self._key = key
        self._value = value
        self._headers = headers

    def offset(self) -> int:
        """The offset."""
        return self._at

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        return self._time

    def key(self) -> object:
        """The key."""
        return self._key

    def value(self) -> object:
        """The value."""
        return self._value

    def headers(self) -> object:
        """Pairs of name and value."""
        return self._headers

    def leader_epoch(self) -> None:
        """No rule of the proof needs it."""


class ArchivedPiece(msgspec.Struct, frozen=True):
    """The next messages of one partition; every offset before `reached` was seen, or holds no message."""

    messages: list[ArchivedCopy]
    reached: int


class ArchiveFile(NamedTuple):
    """A live file of the archive, and its batches."""

    first_batch: int
    last_batch: int
    path: str


class StoredArchive:
    """The archive of a stream; that of its stream for a shadow.

    Attributes:
        claims: Those of the ledger, by partition, in order of batches; without batches that retention has dropped.
        dropped_up_to: The last batch whose messages retention has dropped; 0 for none.
        files: The live files, in order of batches.
        folder: Its folder.
    """

    def __init__(self, folders: StreamFolders, head: Head) -> None:
        """Read ledger and log; of a stream without an archive nothing.

        Raises:
            TableError: A ledger file is damaged.
        """
        if head.origin is not None:
            folders = StreamFolders(head.origin.stream, folders.root)
        self.folder = folders.archive
        self.claims: dict[TopicIdPartition, list[ArchiveClaim]] = {}
        self.files: tuple[ArchiveFile, ...] = ()
        self.dropped_up_to = 0
        self._erased_up_to = 0
        if not delta_log.has_log(self.folder) or not delta_log.has_log(folders.table):
            return
        if head.origin is not None:
            head = OutputLog(folders.table).base().head
        table = open_table(self.folder)
        self.dropped_up_to = table.transaction_version(transactions.DROPPED) or 0
        self._erased_up_to = 0 if head.erasure is None else head.erasure.batch
        self.files = tuple(sorted(_list_files(pa.table(table.get_add_actions(flatten=True)))))
        # The archive is committed after the table, so a batch of the head may not be in it yet.
        newest = table.transaction_version(transactions.BATCH) or 0
        self.claims = _read_claims(folders, self.dropped_up_to, min(newest, head.batch))

    def find_first(self, key: TopicIdPartition, log_start: int) -> int:
        """The first offset from which on archive and Kafka together have everything.

        Batches before an erasure lack the messages of a session.
        """
        first = log_start
        for claim in reversed(self.claims.get(key, ())):
            if claim.batch <= self._erased_up_to or claim.until < first:
                break
            first = min(first, claim.start)
        return first

    def read(self, key: TopicIdPartition, start: int, until: int) -> Iterator[ArchivedPiece]:
        """The messages [start, until) of a partition, in order.

        Raises:
            FileNotFoundError: A compaction has replaced a file meanwhile.
        """
        wanted = [claim for claim in self.claims.get(key, ()) if claim.start < until and claim.until > start]
        if not wanted:
            return
        first = wanted[0].batch
        last = wanted[-1].batch
        reached = start
        for file in self.files:
            if file.last_batch < first or file.first_batch > last:
                continue
            for rows in read_groups(self.folder / file.path, key):
                mine = _select(rows, key, start, until)
                if mine.num_rows:
                    reached = max(reached, min(until, int(mine["until"][-1].as_py())))
                    yield ArchivedPiece(_make_messages(mine), reached)
        yield ArchivedPiece([], reached)


def read_groups(path: Path, key: TopicIdPartition | None = None) -> Iterator[pa.Table]:
    """The rows of a file, a row group at a time; of one partition only the groups that may have it."""
    with open_parquet(path) as parquet:
        for group in range(parquet.num_row_groups):
            if key is None or _may_hold(parquet.metadata.row_group(group), key):
                yield parquet.read_row_group(group, use_threads=False)


def _may_hold(group: pq.RowGroupMetaData, key: TopicIdPartition) -> bool:
    """Whether a row group may have rows of a partition, by its bounds."""
    wanted: Mapping[str, object] = {"topic_id": key.topic_id, "partition": key.partition}
    columns = (group.column(number) for number in range(group.num_columns))
    statistics: dict[str, Any] = {column.path_in_schema: column.statistics for column in columns}
    for name, value in wanted.items():
        bounds = statistics[name]
        if bounds is not None and bounds.has_min_max and not bounds.min <= value <= bounds.max:
            return False
    return True


def _select(rows: pa.Table, key: TopicIdPartition, start: int, until: int) -> pa.Table:
    expression: Any = (pc.field("partition") == key.partition) & (pc.field("topic_id") == key.topic_id)
    within: Any = (pc.field("offset") < until) & (pc.field("until") > start)
    return rows.filter(expression & within).sort_by("offset")


def _make_messages(rows: pa.Table) -> list[ArchivedCopy]:
    messages = rows.filter(cast("Any", pc.field("cause").is_null()))
    columns = (messages[name].to_pylist() for name in _MESSAGE_COLUMNS)
    copies = list[ArchivedCopy]()
    for offset, kind, at_ms, key, value, headers in zip(*columns, strict=True):
        timestamp = (kind, -1 if at_ms is None else at_ms)
        copies.append(ArchivedCopy(offset, timestamp, key, value, list(map(_to_pair, headers)) or None))
    return copies


def _to_pair(header: Mapping[str, object]) -> tuple[object, object]:
    return header["name"], header["value"]


def _list_files(actions: pa.Table) -> Iterator[ArchiveFile]:
    if not actions.num_rows:  # without files the actions lack the columns of bounds
        return
    for row in actions.select(["path", "min.batch", "max.batch"]).to_pylist():
        yield ArchiveFile(row["min.batch"], row["max.batch"], row["path"])


def _read_claims(
    folders: StreamFolders, dropped_up_to: int, last_batch: int
) -> dict[TopicIdPartition, list[ArchiveClaim]]:
    claims = dict[TopicIdPartition, list[ArchiveClaim]]()
    for path in pa.table(open_table(folders.ledger).get_add_actions())["path"].to_pylist():
        content = read_verified(folders.ledger / str(path), folders.stream)
        with pq.ParquetFile(pa.BufferReader(content), pre_buffer=False) as parquet:
            if "archived_from" not in parquet.schema_arrow.names:
                continue  # of an older release
            rows = parquet.read(columns=_CLAIM_COLUMNS, use_threads=False)
        rows = rows.filter(cast("Any", pc.field("archived_from").is_valid()))
        for topic_id, partition, *claim in zip(*rows.select(_CLAIM_COLUMNS).to_pydict().values(), strict=True):
            if dropped_up_to < claim[0] <= last_batch:
                claims.setdefault(TopicIdPartition(topic_id, partition), []).append(ArchiveClaim(*claim))
    return {key: sorted(of_key) for key, of_key in claims.items()}


class _Sums:
    """The two sums of a digest."""

    def __init__(self) -> None:
        self._numbers = 0
        self._texts = 0

    def add_numbers(self, numbers: Sequence[int | None]) -> None:
        """Add a column of numbers."""
        filled = [-1 if number is None else number for number in numbers]
        self._numbers = zlib.crc32(np.array(filled, np.int64).tobytes(), self._numbers)

    def add_texts(self, texts: Sequence[bytes | None]) -> None:
        """Add the bytes of a column of texts."""
        self._texts = zlib.crc32(b"".join(filter(None, texts)), self._texts)

    @property
    def digest(self) -> int:
        """Both sums as a signed number."""
        return int(np.array([self._numbers << 32 | self._texts], np.uint64).view(np.int64)[0])


def digest_claim(rows: pa.Table) -> int:
    """The digest of the rows of a claim, in order of offsets, as docs/archive.md defines it."""
    headers = cast("list[list[dict[str, object]]]", rows["headers"].to_pylist())
    flat = list(chain.from_iterable(headers))
    columns: list[list[object]] = [rows[name].to_pylist() for name in ("cause", "key", "value")]
    if flat:
        columns += [list(map(itemgetter(part), flat)) for part in ("name", "value")]
    texts = [list(map(_encode, column)) for column in columns]
    sums = _Sums()
    for name in _NUMBERS:
        sums.add_numbers(rows[name].to_pylist())
    sums.add_numbers(list(map(len, headers)))
    for column in texts:
        sums.add_numbers(list(map(_find_length, column)))
    for column in texts:
        sums.add_texts(column)
    return sums.digest


def _encode(text: object) -> bytes | None:
    if isinstance(text, str):
        return text.encode()
    return cast("bytes | None", text)


def _find_length(text: bytes | None) -> int | None:
    if text is None:
        return None
    return len(text)


def find_damage(claim: ArchiveClaim, rows: pa.Table) -> str:
    """Describe the damage of the rows of a claim, in order of offsets; empty if they fit it. Pure."""
    offsets, ends = (rows[name].to_numpy() for name in ("offset", "until"))
    if not len(ends):
        return f"nothing from offset {claim.start} on"
    expected = np.concatenate([[claim.start], ends[:-1]])
    wrong = np.flatnonzero(offsets != expected)
    if len(wrong):
        next_offset = int(expected[wrong[0]])
        offset = int(offsets[wrong[0]])
        problem = "repeated" if offset < next_offset else "some are missing"
        return f"offset {offset} after {next_offset - 1}: {problem}"
    if int(ends[-1]) != claim.until:
        return f"nothing from offset {int(ends[-1])} on"
    if ERASED in rows["cause"].to_pylist():
        return ""  # the digest is of before the erasure
    digest = digest_claim(rows)
    return "" if digest == claim.digest else f"digest {digest}"


def split_claims(rows: pa.Table) -> Mapping[tuple[TopicIdPartition, int], pa.Table]:
    """Rows by partition and batch, in order of offsets. Pure."""
    ordered = rows.sort_by([(name, "ascending") for name in ("topic_id", "partition", "batch", "offset")])
    keys = list(zip(*(ordered[name].to_pylist() for name in ("topic_id", "partition", "batch")), strict=True))
    found = dict[tuple[TopicIdPartition, int], pa.Table]()
    begin = 0
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at] != keys[begin]:
            topic_id, partition, batch = keys[begin]
            found[TopicIdPartition(topic_id, partition), batch] = ordered.slice(begin, at - begin)
            begin = at
    return found
