"""Table rows read and compared.

Data files hold many partitions each, and the fold needs one partition at a time. So all files are read once, in one
pass, into a scratch file of uncompressed Arrow, mapped into memory: slices of it are free.

All rows of a piece are compared at once, column by column, in Arrow; only on a difference, or where Arrow cannot
compare, row by row in Python.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import make_row_schema
from lockstep.verify.bounds import FileBounds
from lockstep.verify.files import UNREADABLE, ask_each, open_if_there, require_bytes
from lockstep.verify.gates.base import is_readable_time
from lockstep.verify.ledger import LedgerChain, RowPosition
from lockstep.verify.removed_sessions import NONE_REMOVED, RemovedSessions
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations
from lockstep.verify.side_tables import ExpectedSideRows
from lockstep.verify.stored_tables import BatchStamp, StoredFile

BATCH_ROWS = 65_536
PLACE_COLUMNS = ("_topic", "_topic_id", "_partition")
ORDER_COLUMNS = ("_emit_offset", "_row")


class Slice(msgspec.Struct, frozen=True):
    """Consecutive rows of one partition in a data file.

    Attributes:
        file: Which scratch file.
        index: Which record batch of it.
        rows: How many.
        first: Emit offset and row number of the first.
        last: The same of the last.
        ordered: Whether they rise.
        hour: Their commit hour, in which batches never go back.
    """

    file: int
    index: int
    rows: int
    first: tuple[int, int]
    last: tuple[int, int]
    ordered: bool
    hour: str


class TableRows:
    """All rows of a table by partition. Close it: the scratch files stay mapped until then.

    Attributes:
        slices: By (topic id, partition), in order of their first rows.
        places: Each partition with the topic's name from its rows.
        rows: How many rows there are.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._schemas: list[pa.Schema] = []
        self._readers: list[pa.ipc.RecordBatchFileReader] = []
        self._stack = ExitStack()
        self.slices: dict[TopicIdPartition, list[Slice]] = {}
        self.places: dict[TopicIdPartition, ViolationPlace] = {}
        self.rows = 0

    def load(self, table: Path, files: Iterable[StoredFile], statistics: pa.Table, violations: Violations) -> None:
        """Read all files. Files that are missing, or do not name the partition of their rows, are reported elsewhere.

        Args:
            table: Folder of the table.
            files: Its live files.
            statistics: The log's statistics of each file, which are compared with its rows.
            violations: Where differences are noted.
        """
        with ExitStack() as stack:
            writers: list[tuple[pa.ipc.RecordBatchFileWriter, int]] = []
            there = list(files)
            opened = ask_each(table, open_if_there, [table / file.path for file in there])
            for file, held in zip(there, opened, strict=True):
                if held is not None and {*PLACE_COLUMNS, *ORDER_COLUMNS} <= set(held.schema_arrow.names):
                    bounds = FileBounds()
                    for batch in _read_rows(held, table / file.path, violations):
                        bounds.add(batch)
                        self._add(batch, file.hour, writers, stack)
                    stated = {name: statistics[name][file.at] for name in statistics.column_names}
                    for expected, found in bounds.find_differences(stated):
                        where = f"{file.path}: {expected}"
                        violations.add(ViolationKind.DATA_FILE_DAMAGED, None, None, where, found)
                    for name, time_us in bounds.find_unreadable():
                        expected = f"{file.path}: {name} between 0001-01-03 and 9999-12-31 (UTC)"
                        violations.add(ViolationKind.ROW_UNREADABLE, None, None, expected, f"{time_us} us since 1970")
        for number in range(len(self._schemas)):
            mapped = self._stack.enter_context(pa.memory_map(str(self._path(number))))
            self._readers.append(self._stack.enter_context(pa.ipc.open_file(mapped)))
        for key in self.slices:
            # Files are read in any order; the rows of a partition must rise over all of them.
            self.slices[key].sort(key=lambda each: each.first)

    def check_order(self, violations: Violations) -> None:
        """Find rows that do not rise within their partition, duplicate rows, and commit hours that fall."""
        for key, slices in self.slices.items():
            if not _is_ordered(slices):
                _name_disorder(self.places[key], self._positions(key), violations)
            for before, after in pairwise(slices):
                if after.hour < before.hour:
                    expected = f"a file of commit_hour {before.hour} or later"
                    violations.add(ViolationKind.ROW_ORDER, self.places[key], after.first[0], expected, after.hour)

    def check_hours(
        self, chains: Mapping[TopicIdPartition, LedgerChain], stamps: Mapping[int, BatchStamp], violations: Violations
    ) -> None:
        """Find rows in another commit hour than that of their batch: retention would drop them by it."""
        for key in self.slices.keys() & chains.keys():
            ends = list[tuple[RowPosition, str]]()
            for part in self.slices[key]:
                ends += [(part.first, part.hour), (part.last, part.hour)]
            batches = chains[key].find_batches(end for end, _ in ends)
            for (end, hour), batch in zip(ends, batches, strict=True):
                if batch is None:  # a row that no batch emitted is reported where rows are compared
                    continue
                stamp = stamps.get(batch)
                if stamp is not None and stamp.hour != hour:
                    expected = f"commit_hour {stamp.hour}, of batch {batch}"
                    violations.add(ViolationKind.ROW_ORDER, self.places[key], end[0], expected, hour)

    def cursor(self, key: TopicIdPartition) -> RowCursor:
        """The rows of a partition, sorted if they are not in order."""
        slices = self.slices.get(key, [])
        batches = (self._readers[each.file].get_batch(each.index) for each in slices)
        if _is_ordered(slices):
            return RowCursor(batches)
        order: Any = [(name, "ascending") for name in ORDER_COLUMNS]
        # Files from before a column was added do not have it.
        rows = pa.concat_tables([pa.Table.from_batches([each]) for each in batches], promote_options="default")
        return RowCursor(iter(rows.sort_by(order).combine_chunks().to_batches()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readers.clear()
        self._stack.close()

    def _path(self, number: int) -> Path:
        return self._scratch / f"rows-{number}.arrow"

    def _add(self, batch: pa.RecordBatch, hour: str, writers: list[tuple[Any, int]], stack: ExitStack) -> None:
        if batch.schema not in self._schemas:
            path = str(self._path(len(self._schemas)))
            self._schemas.append(batch.schema)
            writers.append((stack.enter_context(pa.ipc.new_file(path, batch.schema)), 0))
        file = self._schemas.index(batch.schema)
        self.rows += batch.num_rows
        for start, until in _runs(batch):
            run = batch.slice(start, until - start)
            writer, index = writers[file]
            # A run of one partition is one record batch, which the fold of that partition finds without a search.
            writer.write_batch(run)
            writers[file] = (writer, index + 1)
            self._note(run, file, index, hour)

    def _note(self, run: pa.RecordBatch, file: int, index: int, hour: str) -> None:
        topic, topic_id, partition = (run[name][0].as_py() for name in PLACE_COLUMNS)
        emitted, numbers = (_numbers(run, name) for name in ORDER_COLUMNS)
        rises = (emitted[1:] > emitted[:-1]) | ((emitted[1:] == emitted[:-1]) & (numbers[1:] > numbers[:-1]))
        first = (int(emitted[0]), int(numbers[0]))
        last = (int(emitted[-1]), int(numbers[-1]))
        part = Slice(file, index, run.num_rows, first, last, bool(rises.all()), hour)
        key = TopicIdPartition(topic_id, partition)
        self.slices.setdefault(key, []).append(part)
        self.places.setdefault(key, ViolationPlace(topic, topic_id, partition))

    def _positions(self, key: TopicIdPartition) -> list[tuple[int, int]]:
        """Emit offset and row number of each row, in the order of the table."""
        found: list[tuple[int, int]] = []
        for each in self.slices[key]:
            batch = self._readers[each.file].get_batch(each.index)
            found += zip(*(_numbers(batch, name).tolist() for name in ORDER_COLUMNS), strict=True)
        return found


class RowCursor:
    """Iterates over the rows of one partition."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._batch: pa.RecordBatch | None = next(batches, None)

    def before(self, offset: int) -> list[pa.RecordBatch]:
        """The next rows, up to those emitted at `offset` or later."""
        taken: list[pa.RecordBatch] = []
        while self._batch is not None:
            rows = int(np.searchsorted(_numbers(self._batch, "_emit_offset"), offset))
            if rows:
                taken.append(self._batch.slice(0, rows))
            if rows < self._batch.num_rows:
                self._batch = self._batch.slice(rows)
                break
            self._batch = next(self._batches, None)
        return taken

    def skip(self, rows: int) -> None:
        """Skip a number of rows."""
        while rows and self._batch is not None:
            passed = min(rows, self._batch.num_rows)
            rows = rows - passed
            self._batch = self._batch.slice(passed)
            if not self._batch.num_rows:
                self._batch = next(self._batches, None)


def _read_rows(file: pq.ParquetFile, path: Path, violations: Violations) -> Iterator[pa.RecordBatch]:
    """The rows of a data file, as far as they can be read."""
    batches = file.iter_batches(BATCH_ROWS)
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)  # a text may be none
        except UNREADABLE as error:
            require_bytes(path, error)
            expected = f"{path.parent.name}/{path.name}: rows that can be read"
            violations.add(ViolationKind.DATA_FILE_DAMAGED, None, None, expected, str(error).splitlines()[0])
            return
        yield batch


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return batch[name].to_numpy(zero_copy_only=False)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Runs of rows of one partition."""
    if batch.num_rows == 0:
        return
    changed = np.zeros(max(0, batch.num_rows - 1), dtype=bool)
    for name in ("_topic_id", "_partition"):
        column = batch[name]
        changed |= pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
    edges = [0, *(np.flatnonzero(changed) + 1).tolist(), batch.num_rows]
    yield from pairwise(edges)


def _is_ordered(slices: list[Slice]) -> bool:
    return all(each.ordered for each in slices) and all(before.last < after.first for before, after in pairwise(slices))


def _name_disorder(place: ViolationPlace, positions: list[tuple[int, int]], violations: Violations) -> None:
    seen: set[tuple[int, int]] = set()
    highest = (-1, -1)
    for position in positions:
        offset, row = position
        if position in seen:
            violations.add(ViolationKind.ROW_DOUBLED, place, offset, f"row {row} once", "the row again")
        elif position < highest:
            actual = f"row {row} behind row {highest[1]} of offset {highest[0]}"
            violations.add(ViolationKind.ROW_ORDER, place, offset, "rising offsets and rows", actual)
        seen.add(position)
        highest = max(highest, position)


CONVERSION_ERRORS = (
    *(ValueError, TypeError, OverflowError, AttributeError),
    *(pa.ArrowNotImplementedError, pa.ArrowCapacityError, pa.ArrowKeyError),
)
"""Raised for a value that a column cannot have. Arrow's other errors, such as lack of memory, are not due to values."""

NONE_ADDED: Mapping[str, RowPosition] = {}


class Source(NamedTuple):
    """The source of rows: the message, or the session's last message if a timer emitted them.

    Attributes:
        offset: Offset of the message.
        session: Its session.
        sequence: The producer's number.
        event_time_us: Event time of the message, or the time at which the timer was due.
        cause: The hook that emitted the rows.
    """

    offset: int
    session: str
    sequence: int | None
    event_time_us: int | None
    cause: str


class Emitted:
    """Rows emitted by the fold, column by column, in order.

    Attributes:
        proof: The provenance columns, except topic and partition.
        rows: The user's rows.
    """

    def __init__(self) -> None:
        self.proof: dict[str, list[Any]] = {
            name: [] for name in ("_offset", "_emit_offset", "_row", "_session", "_sequence", "_event_time", "_cause")
        }
        self._add = [held.append for held in self.proof.values()]
        self.rows: list[msgspec.Struct] = []

    def add(self, source: Source, at: int, first: int, rows: Sequence[msgspec.Struct]) -> None:
        """Add rows that were emitted together.

        Args:
            source: Their source.
            at: The offset processed then.
            first: The number of the first among the rows emitted there.
            rows: The rows.
        """
        columns = (source.offset, at, first, source.session, source.sequence, source.event_time_us, source.cause)
        if len(rows) == 1:
            for add, value in zip(self._add, columns, strict=True):
                add(value)
        else:
            for (name, held), value in zip(self.proof.items(), columns, strict=True):
                if name == "_row":
                    held.extend(range(first, first + len(rows)))
                else:
                    held.extend([value] * len(rows))
        self.rows += rows

    def since(self, rows: int) -> Emitted:
        """Remove and return all but the first so many rows."""
        later = Emitted()
        for name, values in self.proof.items():
            later.proof[name] += values[rows:]
            del values[rows:]
        later.rows += self.rows[rows:]
        del self.rows[rows:]
        return later

    def without(self, removed: RemovedSessions) -> Emitted:
        """All but the rows of removed sessions."""
        sessions = self.proof["_session"]
        remaining = Emitted()
        numbers = [
            number for number in range(len(self.rows)) if not removed.has_row(sessions[number], self._position(number))
        ]
        for name, values in self.proof.items():
            remaining.proof[name] = [values[number] for number in numbers]
        remaining.rows = [self.rows[number] for number in numbers]
        return remaining

    def emitted_before(self, offset: int) -> int:
        """The number of rows emitted before an offset."""
        return bisect_left(self.proof["_emit_offset"], offset)

    def emitted_before_row(self, position: RowPosition) -> int:
        """The number of rows before one."""
        return bisect_left(range(len(self.rows)), position, key=self._position)

    def _position(self, at: int) -> RowPosition:
        return self.proof["_emit_offset"][at], self.proof["_row"][at]


class RowComparison:
    """Compares the rows of one partition.

    Attributes:
        compared: Number of compared table rows.
    """

    def __init__(
        self,
        place: ViolationPlace,
        violations: Violations,
        absent: Mapping[str, RowPosition] = NONE_ADDED,
        *,
        dropped_before: RowPosition | None = None,
        removed: RemovedSessions = NONE_REMOVED,
    ) -> None:
        """Start a comparison.

        Args:
            place: The partition.
            violations: Where differences are noted.
            absent: Columns that were added to the table, each with the first row that has it: the rows before hold no
                value in it, and null after a compaction into one file with later rows.
            dropped_before: Position of the first row that retention kept; None if it dropped none.
            removed: Sessions whose rows an erasure has removed.
        """
        self._place = place
        self._violations = violations
        self._absent = absent
        self._dropped_before = dropped_before
        self._removed = removed
        self.compared = 0

    def compare(self, emitted: Emitted, table: Sequence[pa.RecordBatch], kept: ExpectedSideRows) -> None:
        """Compare the fold's rows of some offsets with the table's.

        Args:
            emitted: The fold's rows.
            table: The table's rows.
            kept: The quarantine, whose messages must have no rows.
        """
        self.compared += sum(batch.num_rows for batch in table)
        if self._dropped_before is not None:
            emitted = emitted.since(emitted.emitted_before_row(self._dropped_before))
        if self._removed:
            emitted = emitted.without(self._removed)
        if not self._alike(emitted, table):
            self._differences(emitted, table, kept)

    def _alike(self, emitted: Emitted, table: Sequence[pa.RecordBatch]) -> bool:
        if sum(batch.num_rows for batch in table) != len(emitted.rows):
            return False
        start = 0
        for batch in table:
            until = start + batch.num_rows
            for name in self._list_columns(emitted, batch):
                if not self._column_alike(emitted, batch, name, start, until):
                    return False
            start = until
        return True

    def _list_columns(self, emitted: Emitted, batch: pa.RecordBatch) -> list[str]:
        """The columns of the fold that a batch has, and those that were added later, which it may lack."""
        fields: tuple[str, ...] = ()
        if emitted.rows:
            fields = type(emitted.rows[0]).__struct_fields__
        names = (*emitted.proof, *_PLACE, *fields)
        return [name for name in names if name in batch.schema.names or name in self._absent]

    def _column_alike(self, emitted: Emitted, batch: pa.RecordBatch, name: str, at: int, until: int) -> bool:
        first = self._first_of(name, batch)
        values = self._values(emitted, name, at + first, until)
        if name not in batch.schema.names:
            return all(value is None for value in values)
        if batch[name].slice(0, first).null_count < first:
            return False
        try:
            return bool(pa.array(values, batch.schema.field(name).type).equals(batch[name].slice(first)))
        except CONVERSION_ERRORS:
            return False

    def _first_of(self, name: str, batch: pa.RecordBatch) -> int:
        """The first row of a batch that was written when its table had a column."""
        if name not in self._absent:
            return 0
        return bisect_left(range(batch.num_rows), self._absent[name], key=lambda at: _position(batch, at))

    def _values(self, emitted: Emitted, name: str, at: int, until: int) -> list[Any]:
        if name in emitted.proof:
            return emitted.proof[name][at:until]
        if name in _PLACE:
            return [getattr(self._place, _PLACE[name])] * (until - at)
        values = list(map(attrgetter(name), emitted.rows[at:until]))
        if _PLAIN.issuperset(map(type, values)):
            return values
        return list(map(to_column, values))

    def _differences(self, emitted: Emitted, table: Sequence[pa.RecordBatch], kept: ExpectedSideRows) -> None:
        """Row by row, by their identity (emit offset, row)."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        kinds: dict[str, pa.DataType] = {}
        for batch in table:
            kinds |= {name: pa.null() for name in self._list_columns(emitted, batch) if name not in kinds}
            kinds |= {field.name: field.type for field in batch.schema if field.name in kinds}
            for row in _as_rows(batch):
                found.setdefault((row["_emit_offset"], row["_row"]), row)
        expected = self._expected(emitted, kinds)
        for identity in sorted(expected.keys() | found.keys()):
            self._difference(identity, expected.get(identity), found.get(identity), kept)

    def _expected(self, emitted: Emitted, kinds: Mapping[str, pa.DataType]) -> dict[tuple[int, int], dict[str, Any]]:
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        for at in range(len(emitted.rows)):
            names = {name: self._values(emitted, name, at, at + 1)[0] for name in kinds}
            identity = (emitted.proof["_emit_offset"][at], emitted.proof["_row"][at])
            rows[identity] = {name: _as_read(value, kinds[name]) for name, value in names.items()}
        return rows

    def _difference(
        self,
        identity: tuple[int, int],
        expected: dict[str, Any] | None,
        found: dict[str, Any] | None,
        kept: ExpectedSideRows,
    ) -> None:
        offset, row = identity
        if found is None:
            self._violations.add(ViolationKind.ROW_MISSING, self._place, offset, f"row {row}", "no such row")
        elif expected is None:
            kind = ViolationKind.QUARANTINE_AND_ROWS if kept.holds(offset) else ViolationKind.ROW_EXTRA
            self._violations.add(kind, self._place, offset, f"no row {row}", f"session {found.get('_session')!r}")
        else:
            for name, value in expected.items():
                if self._is_absent(name, identity, found) or is_equal(value, found.get(name)):
                    continue
                wanted = f"row {row}: {name} = {value!r}"
                self._violations.add(ViolationKind.ROW_CHANGED, self._place, offset, wanted, repr(found.get(name)))
                return  # one violation a row

    def _is_absent(self, name: str, identity: RowPosition, found: Mapping[str, Any]) -> bool:
        """Whether a row was written before a column was added."""
        return found.get(name) is None and name in self._absent and identity < self._absent[name]


_PLAIN = frozenset({str, bytes, bool, int, float, Decimal, datetime, date, type(None)})
"""Types that Arrow takes unchanged."""
TEXT_MAX = 2**30
"""Bytes of text of a column of one row, at most."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PLACE = {"_topic": "topic", "_topic_id": "topic_id", "_partition": "partition"}


def to_column(value: Any) -> Any:
    """A value of the user's row in a form that Arrow takes."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {name: to_column(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return [(key, to_column(held)) for key, held in value.items()]
    if isinstance(value, (list, tuple)):
        return [to_column(held) for held in value]
    return value


def find_unfit(rows: Iterable[msgspec.Struct], row_type: type[msgspec.Struct]) -> bool:
    """Whether a row is not of its declared type, or has values that its columns cannot hold."""
    kinds = {field.name: field for field in make_row_schema(row_type)}
    return any(type(row) is not row_type or _unfit(row, row_type, kinds) for row in rows)


def find_unfit_provenance(source: Source) -> bool:
    """Whether the provenance columns cannot hold a message's metadata."""
    if _count_text(source.session) > TEXT_MAX:
        return True
    try:
        pa.array([source.session], pa.string())
        pa.array([source.sequence, source.event_time_us], pa.int64())
    except CONVERSION_ERRORS:
        return True
    return False


def _unfit(row: msgspec.Struct, row_type: type[msgspec.Struct], kinds: Mapping[str, pa.Field[Any]]) -> bool:
    try:
        msgspec.convert(msgspec.to_builtins(row), row_type)
        for name, field in kinds.items():
            value = getattr(row, name)
            column = to_column(value)
            is_null = value is None and not field.nullable
            if is_null or _has_unreadable_time(value) or _count_text(column) > TEXT_MAX:
                return True
            pa.array([column], field.type)
    except (*CONVERSION_ERRORS, msgspec.MsgspecError):
        return True
    return False


def _count_text(value: Any) -> int:
    """Bytes of text in a column of one row; of too many in a list or a map Arrow would end the process."""
    match value:
        case str():
            if value.isascii():
                return len(value)
            return len(value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray() | memoryview():
            return len(value)
        case dict():
            return sum(_count_text(held) for held in value.values())
        case list() | tuple():
            return sum(map(_count_text, value))
        case _:
            return 0


def _has_unreadable_time(value: Any) -> bool:
    """Whether a value is or contains a time without a zone, or one that not every reader can return."""
    match value:
        case datetime():
            return value.utcoffset() is None or not is_readable_time((value - _EPOCH) // _MICROSECOND)
        case msgspec.Struct():
            return any(_has_unreadable_time(getattr(value, name)) for name in value.__struct_fields__)
        case dict():
            return any(map(_has_unreadable_time, value.values()))
        case list() | tuple():
            return any(map(_has_unreadable_time, value))
        case _:
            return False


def _position(batch: pa.RecordBatch, at: int) -> RowPosition:
    return batch["_emit_offset"][at].as_py(), batch["_row"][at].as_py()


def _as_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows; a time outside of Python's calendar, which the file should not have, as its number since 1970."""
    columns = list[list[Any]]()
    for column in batch.columns:
        columns.append([read_value(scalar) for scalar in column])
    return (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _as_read(value: Any, kind: pa.DataType) -> Any:
    """A value as read back from a column of this type."""
    try:
        return read_value(pa.scalar(value, kind))
    except CONVERSION_ERRORS:
        return value


def read_value(scalar: Any) -> Any:
    """A value of a column; a time outside of Python's calendar as its number."""
    try:
        return scalar.as_py()
    except OverflowError:
        return scalar.value


def is_equal(expected: Any, found: Any) -> bool:
    """Whether two values are equal; NaN equals NaN."""
    return bool(expected == found) or repr(expected) == repr(found)  # the second for NaN, wherever it is
