"""Parquet files with exact Delta statistics, synced.

Readers skip files by these statistics and answer min, max and count from them, so a wrong one silently
loses rows. So does a missing one: deltalake's dataset takes a file without bounds of a
column for one that no filter on that column can match. Known traps and their handling:

- NaN is above every number for Spark, but no Parquet or Arrow maximum shows it. Spark also skips
  row groups by Parquet's own statistics, so `find_written_columns` leaves float columns out of those,
  and `ColumnStatistics` watches the values instead. NaN and infinities are written as strings, as
    Delta's own writer does. One reader is not helped by that: `DeltaTable.to_pyarrow_dataset` answers
    filters on a float column wrongly for files with a NaN in it, from any writer; Spark and
    deltalake's QueryBuilder answer correctly.
- Delta keeps timestamps in milliseconds: minima are rounded down, maxima up.
- Long strings are truncated; a truncated maximum gets a last character that sorts after the removed rest.
- Parquet counts nulls inside lists and maps as their elements: their nulls are counted here.
"""

from __future__ import annotations

import math
import time
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, Self, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import Buffer, override

from lockstep.errors import TableError
from lockstep.storage import find_storage
from lockstep.table.delta_log import AddAction, open_delta_table

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence
    from decimal import Decimal


UNREADABLE: Final = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Raised for a damaged file: mostly for its footer, its pages and its names, in this order.

OSError is raised where disk or object store do not answer, too: see `explain_unreadable`.
"""


def explain_unreadable(path: Path, error: Exception) -> TableError:
    """The error of a file at which one of `UNREADABLE` was raised, before anything is changed."""
    if isinstance(error, MemoryError):  # also of Arrow: it proves nothing about the file
        return TableError(
            f"{path} cannot be read for lack of memory: {str(error).strip()}",
            next_step=(
                "repeat the command with more memory: nothing was changed; a size that no machine has is due to a "
                "damaged file: restore it from a copy"
            ),
        )
    return TableError(
        f"{path} cannot be read: {str(error).strip()}",
        next_step="repeat the command; if the file stays unreadable, restore it from a copy: nothing was changed",
    )


STRING_CHARACTERS: Final = 32
"""Longest string kept, Delta's own limit: longer ones make commits larger and skip little more."""

_LAST_CHARACTER: Final = "\U0010ffff"
_ABOVE_ALL_TEXT: Final = _LAST_CHARACTER * STRING_CHARACTERS
"""Sorts after any text: it is not a character, and no text contains it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_US: Final = (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""The end of the year 9999, the last that all readers parse alike."""

FieldPath = tuple[str, ...]
"""Names from the column down to the leaf; lists and maps are leaves."""


@dataclass(frozen=True, slots=True)
class WrittenColumns:
    """Column options of a Parquet writer, as arguments of pyarrow.parquet.ParquetWriter.

    Attributes:
        use_dictionary: Strings only: with a dictionary of floats, Spark misses -0.0 in a search for 0.0.
        write_statistics: All leaves except floats, lists and maps.
        column_encoding: Integers and timestamps as differences: offsets, sequences and times grow by small steps.
    """

    use_dictionary: list[str]
    write_statistics: list[str]
    column_encoding: dict[str, str]


@lru_cache(maxsize=64)
def find_written_columns(schema: pa.Schema) -> WrittenColumns:
    """The column options for a file of this schema."""
    # Spark skips row groups by Parquet's statistics, in which no NaN shows: floats have none.
    leaves = [leaf for leaf in _leaves(schema) if not _watched(leaf.kind)]
    strings = [".".join(leaf.path) for leaf in leaves if pa.types.is_string(leaf.kind)]
    numbers = [leaf for leaf in leaves if pa.types.is_integer(leaf.kind) or pa.types.is_timestamp(leaf.kind)]
    return WrittenColumns(
        use_dictionary=strings,
        write_statistics=[".".join(leaf.path) for leaf in leaves],
        column_encoding={".".join(leaf.path): "DELTA_BINARY_PACKED" for leaf in numbers},
    )


def is_self_describing(schema: pa.Schema) -> bool:
    """Whether Arrow reads the same types from a file of this schema that does not hold the schema itself.

    So it is for all columns of a stream's table; large texts, or times of another zone than UTC, are known by the
    schema alone.
    """
    return _is_read_alike(schema.serialize().to_pybytes())


@lru_cache(maxsize=16)
def _is_read_alike(serialized: bytes) -> bool:
    # Schemas that differ only in the metadata of a field are equal and have one hash, so they would be no key.
    schema = pa.ipc.open_stream(pa.BufferReader(serialized)).schema
    schemas = [_read_schema_back(schema, store_schema=stored) for stored in (True, False)]
    return schemas[0].equals(schemas[1], check_metadata=True)


def _read_schema_back(schema: pa.Schema, *, store_schema: bool) -> pa.Schema:
    content = pa.BufferOutputStream()
    pq.ParquetWriter(content, schema, store_schema=store_schema).close()
    return pq.read_schema(pa.BufferReader(content.getvalue()))


def decode_schema(schema: pa.Schema, *, keep: Container[str] = ()) -> pa.Schema:
    """The schema with texts in the place of dictionaries, except in the columns to keep."""
    for n, kind in enumerate(schema.types):
        if not pa.types.is_dictionary(kind):
            continue
        field = schema.field(n)
        if field.name not in keep:
            schema = schema.set(n, field.with_type(cast("pa.DictionaryType[Any, Any]", kind).value_type))
    return schema


def decode_texts(rows: pa.Table, *, keep: Container[str] = ()) -> pa.Table:
    """The rows with the texts of dictionaries in their place, except in the columns to keep."""
    schema = rows.schema
    decoded = decode_schema(schema, keep=keep)
    if decoded is schema:  # no column is a dictionary
        return rows
    for n in range(len(schema)):
        if decoded.field(n) != schema.field(n):
            column: Any = rows.column(n).cast(decoded.field(n).type)
            rows = rows.set_column(n, decoded.field(n), column)
    return rows


class ColumnStatistics:
    """Tracks statistics of written rows that Parquet's metadata lacks: floats, and nulls of lists and maps.

    Add written rows, row group by row group: the cost is per call and column, not per row.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._leaves = [leaf for leaf in _leaves(schema) if _watched(leaf.kind)]
        self._nulls = dict.fromkeys((leaf.path for leaf in self._leaves), 0)
        self._minima: dict[FieldPath, float] = {}
        self._maxima: dict[FieldPath, float] = {}

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Track written rows."""
        for leaf in self._leaves:
            values = leaf.values(rows)
            # Parquet's count of nulls in a list or a map is of its elements.
            self._nulls[leaf.path] += values.null_count
            if pa.types.is_floating(leaf.kind):
                self._floats(leaf.path, values)

    def _floats(self, path: FieldPath, values: pa.ChunkedArray[Any] | pa.Array[Any]) -> None:
        if values.null_count == len(values):
            return
        found: Any = pc.min_max(values).as_py()  # ignores NaN next to a number
        # For Spark a NaN is above every number.
        highest = math.nan if _has_nan(values) else found["max"]
        self._minima[path] = min(self._minima.get(path, math.nan), found["min"], key=_nan_last)
        self._maxima[path] = max(self._maxima.get(path, -math.inf), highest, key=_nan_last)

    def bounds(self, path: FieldPath) -> Bounds:
        """The statistics of one tracked leaf."""
        return Bounds(self._nulls[path], _number(self._minima.get(path)), _number(self._maxima.get(path)))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Statistics of one leaf in the form of the log; None is left out.

    Attributes:
        nulls: Rows in which the leaf is null.
        minimum: A lower bound of the values.
        maximum: An upper bound of the values.
    """

    nulls: int | None
    minimum: object = None
    maximum: object = None


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: FieldPath
    kind: pa.DataType

    def values(self, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray[Any] | pa.Array[Any]:
        column = rows.column(self.path[0])
        if len(self.path) > 1:
            nested: pa.ChunkedArray[Any] | pa.Array[Any] = pc.struct_field(column, list(self.path[1:]))
            return nested
        return column


def compute_file_statistics(
    metadata: pq.FileMetaData,
    schema: pa.Schema,
    seen: ColumnStatistics | None = None,
    *,
    hidden: Container[str] = (),
) -> str:
    """Delta's statistics of one file as JSON: numRecords, minValues, maxValues, nullCount.

    Args:
        metadata: The written file's own.
        schema: The file's Arrow schema.
        seen: Statistics tracked while writing. Without it floats have no bounds, and floats, lists
            and maps no null counts: safe, but nothing is skipped by them.
        hidden: Text columns with bounds that tell none of their values, and that every filter matches.
    """
    chunks = _chunks(metadata)
    statistics = {"minValues": dict[str, Any](), "maxValues": dict[str, Any](), "nullCount": dict[str, Any]()}
    for leaf in _leaves(schema):
        bounds = _bounds(leaf, chunks, seen)
        if leaf.path[0] in hidden and bounds.minimum is not None:
            # Bounds that every filter matches, and that tell no value: a missing bound hides the file from deltalake.
            bounds = Bounds(bounds.nulls, "", _ABOVE_ALL_TEXT)
        _put(statistics["minValues"], leaf.path, bounds.minimum)
        _put(statistics["maxValues"], leaf.path, bounds.maximum)
        _put(statistics["nullCount"], leaf.path, bounds.nulls)
    return msgspec.json.encode({"numRecords": metadata.num_rows, **statistics}).decode()


def _bounds(leaf: _Leaf, chunks: dict[str, list[pq.Statistics | None]], seen: ColumnStatistics | None) -> Bounds:
    if _watched(leaf.kind):
        return _seen_bounds(leaf, seen)
    of_groups = chunks.get(".".join(leaf.path), [])
    statistics = [one for one in of_groups if one is not None]
    if len(statistics) < len(of_groups):  # bounds of some row groups are not those of the file
        return Bounds(nulls=None)
    nulls = sum(one.null_count or 0 for one in statistics)
    bounded = [one for one in statistics if one.num_values]
    if not bounded or pa.types.is_binary(leaf.kind):
        return Bounds(nulls)
    if not all(one.has_min_max for one in bounded):  # Parquet omits strings above 4 kB
        if pa.types.is_string(leaf.kind):
            return Bounds(nulls, "", _ABOVE_ALL_TEXT)
        return Bounds(nulls)
    return Bounds(nulls, *_round_outwards(leaf.kind, bounded))


def _seen_bounds(leaf: _Leaf, seen: ColumnStatistics | None) -> Bounds:
    if seen is None:
        return Bounds(nulls=None)
    return seen.bounds(leaf.path)


def _round_outwards(kind: pa.DataType, statistics: Sequence[Any]) -> tuple[object, object]:
    """Least and greatest value in Delta's JSON form, rounded outwards if the form is coarser."""
    if pa.types.is_timestamp(kind):
        return _timestamps(min(one.min_raw for one in statistics), max(one.max_raw for one in statistics))
    least = min(one.min for one in statistics)
    greatest = max(one.max for one in statistics)
    if pa.types.is_string(kind):
        return least[:STRING_CHARACTERS], _cut_maximum(greatest)
    if pa.types.is_decimal(kind):
        return _exact(least), _exact(greatest)
    if pa.types.is_date(kind):
        return least.isoformat(), greatest.isoformat()
    return least, greatest


def _cut_maximum(text: str) -> str:
    if len(text) <= STRING_CHARACTERS:
        return text
    if text[STRING_CHARACTERS] == _LAST_CHARACTER:  # the removed rest may sort after one such character
        return _ABOVE_ALL_TEXT
    return text[:STRING_CHARACTERS] + _LAST_CHARACTER


def _timestamps(least_us: int, greatest_us: int) -> tuple[str | None, str | None]:
    """Bounds in milliseconds; none if a date is outside the years 1 to 9999."""
    # Delta's form has milliseconds: a maximum that is rounded down would hide its rows.
    rounded_up_us = -(-greatest_us // 1000) * 1000
    highest_us = min(rounded_up_us, max(_LATEST_US, greatest_us))
    try:
        return _instant(least_us // 1000 * 1000), _instant(highest_us)
    except OverflowError:
        return None, None


def _instant(microseconds: int) -> str:
    instant = (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None)
    # Only a time at the end of the year 9999 is not rounded to milliseconds: a later year would be no date.
    timespec = "microseconds" if microseconds % 1000 else "milliseconds"
    return instant.isoformat(timespec=timespec) + "Z"


def _exact(value: Decimal) -> msgspec.Raw:
    return msgspec.Raw(format(value, "f").encode())


def _number(value: float | None) -> float | str | None:
    """A float in the JSON form of Delta's own writer: JSON has no NaN and no infinities."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "Infinity"
    return "-Infinity"


def _has_nan(values: pa.ChunkedArray[Any] | pa.Array[Any]) -> bool:
    # A sum is NaN when a part is, and costs half of a search; opposite infinities make it NaN too.
    if not math.isnan(pc.sum(values).as_py()):
        return False
    return bool(pc.any(pc.is_nan(values)).as_py())


def _nan_last(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value)


def _put(tree: dict[str, Any], path: FieldPath, value: object) -> None:
    if value is None:
        return
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _leaves(fields: Iterable[pa.Field[Any]], above: FieldPath = ()) -> Iterator[_Leaf]:
    for field in fields:
        path = (*above, field.name)
        if isinstance(field.type, pa.StructType):
            yield from _leaves(field.type, path)
        else:
            yield _Leaf(path, field.type)


def _watched(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)


def _chunks(metadata: pq.FileMetaData) -> dict[str, list[pq.Statistics | None]]:
    """Statistics of every row group by the leaf's path."""
    found: dict[str, list[pq.Statistics | None]] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for i in range(row_group.num_columns):
            column = row_group.column(i)
            found.setdefault(column.path_in_schema, []).append(column.statistics)
    return found


ROW_GROUP_ROWS = 1_000_000
ROW_GROUP_BYTES = 256_000_000
"""Rows of a row group, and their bytes, at most; a batch's file has one, which is what compaction holds in memory."""


class Compression(NamedTuple):
    """Parquet's compression: a codec, and its level if it has levels."""

    codec: Literal["zstd", "snappy", "lz4", "none"]
    level: int | None = None


FAST = Compression("zstd", 1)
"""zstd's fastest usual level, for compacted files too: numbers are differences and texts are codes before zstd sees
them, so level 3 makes an hour at most 2 % smaller, for up to a sixth of the time to write it (measured)."""

BATCH_ROWS = 4_096
"""Rows that the writer encodes at once: with Parquet's 1,024 codes cost a half more to write, with 16,384 a hundredth
less, and a page, which ends after a batch, could be that much larger."""

LZ4_BYTES_MAX = 64 * 1024 * 1024
"""Files of fewer decoded bytes are compressed by LZ4 (LZ4_RAW). They live until the compaction of their hour.

zstd makes them a fifth smaller, for 1.3 to 1.6 times the CPU time to write them and to read them for the compaction
(2,500 to 100,000 rows of 26 columns, measured)."""

SNAPPY_ROWS = 64
"""Up to this number of rows of the ledger, Snappy is not larger than zstd: its fixed cost a column is half of the CPU
time of such a file (8 rows: 9.6 kB in 1.2 ms, zstd 10.3 kB in 2.0 ms, measured)."""


IN_MEMORY_BYTES_MAX = 1 << 20
"""Decoded bytes of the files that are written at once."""


class DataFile(msgspec.Struct, frozen=True):
    """A finished file that a commit may name.

    Attributes:
        path: Relative to its table.
        size: Bytes.
        rows: Number of rows.
        statistics: Delta statistics as JSON.
        commit_hour: Value of the partition column; None for tables without partitions.
        added_ms: Time of the commit of its newest row, in milliseconds since 1970; None for that of the file's own.
    """

    path: str
    size: int
    rows: int
    statistics: str
    commit_hour: str | None = None
    added_ms: int | None = None

    def action(self) -> AddAction:
        """The action that adds the file to its table."""
        added_ms = self.added_ms
        if added_ms is None:
            added_ms = int(time.time() * 1000)
        return AddAction(
            path=self.path,
            size=self.size,
            statistics=self.statistics,
            commit_hour=self.commit_hour,
            added_ms=added_ms,
        )


class DataFileWriter:
    """Writes one Parquet file. The name ends in a uuid generated here and is created exclusively."""

    def __init__(  # noqa: PLR0913  # the options of a file
        self,
        table: Path,
        schema: pa.Schema,
        *,
        commit_hour: str | None,
        prefix: str,
        compression: Compression = FAST,
        counted_only: bool = False,
        sealed: bool = False,
        hidden: Container[str] = (),
        in_memory: bool = False,
    ) -> None:
        """Create the file.

        Args:
            table: Folder of the table.
            schema: Of the rows. Columns that are dictionaries are written by their codes if all rows of a call of
                `write` have one dictionary, and read as text.
            commit_hour: Value of the partition column; None for tables without partitions.
            prefix: Prefix of the name.
            compression: Of its pages; see `choose_compression`.
            counted_only: Write the number of rows only, without statistics of their values: a small file that is read
                whole is half as large, and its log entry a tenth. Bounds of some columns only would be wrong: see
                `statistics`.
            sealed: Its name contains the checksum of its bytes: see `lockstep.table.file_checksum`.
            hidden: Text columns whose values the log must not hold.
            in_memory: Write a small file at once: Parquet writes header and body of each column, a call of Python each.
        """
        folder = f"commit_hour={commit_hour}/" if commit_hour is not None else ""
        self._commit_hour = commit_hour
        self._schema = decode_schema(schema)
        # A uuid: attempts restart with each job, so a worker assumed dead could overwrite a committed file.
        self._path = f"{folder}{prefix}-{uuid.uuid4().hex}.parquet"
        self._file = find_storage(table).open_pending(table / self._path)
        self._sink = _SummedSink(self._file.sink)
        self._sealed = sealed
        self._memory = pa.BufferOutputStream() if in_memory else None
        self._written = list[pq.FileMetaData]()
        self._rows = 0
        self._hidden = hidden
        # Floats have no Parquet statistics: a NaN would hide rows. Tracked values make Delta's statistics instead.
        self._seen = None if counted_only else ColumnStatistics(self._schema)
        # With dictionaries in the stored schema, Arrow's readers would turn the texts into dictionaries.
        needs_schema = not (counted_only or is_self_describing(self._schema))
        written = self._schema if needs_schema else schema
        self._coded = [field.name for field in written if pa.types.is_dictionary(field.type)]
        self._parquet = self._open_parquet(written, compression, store_schema=needs_schema)

    def _open_parquet(self, schema: pa.Schema, compression: Compression, *, store_schema: bool) -> pq.ParquetWriter:
        columns = find_written_columns(self._schema)
        has_statistics = self._seen is not None
        # The sum of a file in memory is formed when it is written to the sink, in `finish`.
        sink = cast("IO[bytes]", self._sink) if self._sealed else self._file.sink
        return pq.ParquetWriter(
            self._memory or sink,
            schema,
            compression=compression.codec,
            compression_level=compression.level,
            use_dictionary=cast("bool", columns.use_dictionary or False),  # or a list, which the stubs omit
            write_statistics=cast("bool", has_statistics and (columns.write_statistics or False)),
            # A few rows are larger as differences.
            column_encoding=columns.column_encoding if has_statistics else None,
            store_schema=store_schema,
            write_batch_size=BATCH_ROWS,
            metadata_collector=self._written,
        )

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows, as one row group unless they are very many or large."""
        if isinstance(batch, pa.RecordBatch):
            batch = pa.Table.from_batches([batch])
        table = decode_texts(batch, keep=self._coded)
        self._parquet.write_table(table, row_group_size=_count_group_rows(table))
        self._rows += table.num_rows
        if self._seen is not None:
            self._seen.add(table)

    def finish(self) -> DataFile:
        """Close and sync the file and its folder; returns the finished file."""
        self._parquet.close()
        if self._memory is not None:
            self._sink.write(self._memory.getvalue())
        if self._sealed:
            self._path = f"{self._path.removesuffix('.parquet')}-{self._sink.checksum:08x}.parquet"
            size = self._file.finish(Path(self._path).name)
        else:
            size = self._file.finish(None)
        return DataFile(
            path=self._path,
            size=size,
            rows=self._rows,
            statistics=self._statistics(),
            commit_hour=self._commit_hour,
        )

    def _statistics(self) -> str:
        if self._seen is None:
            return msgspec.json.encode({"numRecords": self._rows}).decode()
        (metadata,) = self._written
        return compute_file_statistics(metadata, self._schema, self._seen, hidden=self._hidden)

    def abandon(self) -> None:
        """Remove the file: nothing refers to it."""
        self._parquet.close()
        self._file.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file.is_open:
            self.abandon()


def _count_group_rows(table: pa.Table) -> int:
    """Rows of each row group of a table; one row may have more bytes than a row group."""
    size = table.get_total_buffer_size()
    if size <= ROW_GROUP_BYTES:
        return ROW_GROUP_ROWS
    return max(1, table.num_rows * ROW_GROUP_BYTES // size)


class _SummedSink(RawIOBase):
    """Passes bytes on, and sums them up.

    Attributes:
        checksum: CRC-32 of the bytes so far.
    """

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self.checksum = 0

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, content: Buffer, /) -> int:
        self.checksum = zlib.crc32(content, self.checksum)
        return self._sink.write(content)


def choose_compression(rows: pa.Table, *, counted_only: bool = False) -> Compression:
    """The compression of a file that holds all of these rows; see the constants."""
    if counted_only:
        if rows.num_rows > SNAPPY_ROWS:
            return FAST
        return Compression("snappy")
    # Whole buffers: `nbytes` visits each array, at 0.1 us a row.
    if rows.get_total_buffer_size() < LZ4_BYTES_MAX:
        return Compression("lz4")
    return FAST


def write_file(
    table: Path,
    rows: pa.Table,
    *,
    prefix: str,
    commit_hour: str | None = None,
    counted_only: bool = False,
    sealed: bool = False,
    hidden: Container[str] = (),
) -> DataFile:
    """Write a whole table of rows as one file; see `DataFileWriter`."""
    with DataFileWriter(
        table,
        rows.schema,
        commit_hour=commit_hour,
        prefix=prefix,
        counted_only=counted_only,
        compression=choose_compression(rows, counted_only=counted_only),
        sealed=sealed,
        hidden=hidden,
        in_memory=rows.get_total_buffer_size() < IN_MEMORY_BYTES_MAX,
    ) as writer:
        writer.write(rows)
        return writer.finish()


def list_named_files(table: Path, version: int | None = None) -> list[tuple[Path, int]]:
    """The files of a version, by default the newest, with their sizes."""
    actions = open_delta_table(table, version=version).get_add_actions(flatten=True).select(["path", "size_bytes"])
    named = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
    return [(table / path, size) for path, size in named]


def find_wrong_files(files: Iterable[tuple[Path, int]]) -> list[str]:
    """Files that are missing or of another size."""
    named = list(files)
    if not named:
        return []
    # One call for all files: an object store answers several requests at the same time.
    statuses = find_storage(named[0][0]).get_statuses([path for path, _ in named])
    wrong = list[str]()
    for (path, size), status in zip(named, statuses, strict=True):
        if status is None or status.size != size:
            wrong.append(str(path))
    return wrong
