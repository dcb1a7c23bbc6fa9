"""Rows to Arrow, fast path and strict path.

Arrow alone is too lenient: it truncates 1.5 to 1 in an integer column, takes a naive datetime for UTC
and drops the time of a datetime in a date column.

Measured on a row of 17 columns (integers, floats, strings, booleans, half of them optional) in
chunks of 1,000: tuples into one struct array 0.65 us a row, generated list comprehensions per
column 0.89, zip of tuples 0.97, attrgetter per column 1.2, dicts 1.8. So plain rows take the first
path; rows with enums, nested structs, lists or dicts take zip, and convert only those columns.

Because Arrow accepts 1.5 as an integer and a naive datetime as UTC, msgspec checks the tuples
first: 0.2 us a row for all columns, less than a check of the integers alone in Python. A chunk
with anything doubtful is converted again value by value, which either succeeds (a subclass of
int) or names the wrong row and column. Where `lockstep-native` is installed, it checks and encodes the plain
columns in one pass, 0.1 us a row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter, index, itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from lockstep.errors import LockstepError
from lockstep.model.column_types import MAX_PRECISION
from lockstep.model.columns import ColumnKind
from lockstep.model.readable_times import EARLIEST, EARLIEST_US, LATEST, LATEST_US, describe_unreadable
from lockstep.model.row_cause import RowCause
from lockstep.model.table_schema import TIMESTAMP, make_file_schema, make_row_columns
from lockstep.native import KINDS, extension, make_array
from lockstep.table.decimal_column import DecimalColumn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from lockstep.model.columns import Column, ColumnType


Convert = Callable[[Any], object]
"""From a value of the user's row to Arrow's form; raises ValueError with the problem."""


def make_converter(column: ColumnType) -> Convert:
    """The strict conversion of one value of this column, None included."""
    convert = _make_present_converter(column)
    if column.nullable:
        return _nullable(convert)
    return _required(convert)


def _make_present_converter(column: ColumnType) -> Convert:
    """The strict conversion of a value that is not None."""
    if column.kind in _OF_COLUMN:
        return _OF_COLUMN[column.kind](column)
    return _SCALARS[column.kind]


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _required(convert: Convert) -> Convert:
    def required(value: Any) -> object:
        if value is None:
            raise ValueError("None in a column that is not optional")
        return convert(value)

    return required


def _wrong(value: object, wanted: str) -> ValueError:
    return ValueError(f"is of type {type(value).__name__}, not {wanted}")


def _of(kinds: type | tuple[type, ...], wanted: str) -> Convert:
    def check(value: Any) -> object:
        if not isinstance(value, kinds):
            raise _wrong(value, wanted)
        return value

    return check


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(value, "int")
    return index(value)


def _float(value: Any) -> object:
    if isinstance(value, bool) or not isinstance(value, (float, int)):
        raise _wrong(value, "float")
    return value


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise _wrong(value, "datetime")
    if value.utcoffset() is None:
        raise ValueError("is a datetime without a zone; the table holds UTC, so set its zone")
    if not EARLIEST <= value <= LATEST:
        raise ValueError(describe_unreadable("the time"))
    return value


def _date(value: Any) -> date:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _wrong(value, "date")
    return value


def _enum(column: ColumnType) -> Convert:
    wanted = column.python
    if wanted is None:  # pragma: no cover  the mapping sets it for every enum
        raise TypeError("an enum column without its class")
    check = _of(wanted, wanted.__name__)
    value_of = attrgetter("value")
    return lambda value: value_of(check(value))


def _decimal(column: ColumnType) -> Convert:
    """The same number with the column's own places: of a thousand places Arrow makes 0, of a billion it dies."""
    kind: Any = column.arrow
    unit = Decimal((0, (1,), -kind.scale))
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    check = _of(Decimal, "Decimal")

    def convert(value: Any) -> object:
        check(value)
        try:
            return value.quantize(unit, None, exact)  # a third of the time that names of arguments take
        except ArithmeticError:
            exponent = value.as_tuple().exponent
            if isinstance(exponent, int) and abs(exponent) > MAX_PRECISION:
                places = f"has {-exponent} decimal places" if exponent < 0 else f"ends with {exponent} zeros"
                raise ValueError(f"{places}; the column is {kind}") from None
            return value  # Arrow's error names the cause

    return convert


def _struct(column: ColumnType) -> Convert:
    fields = [(child.name, attrgetter(child.name), make_converter(child.type)) for child in column.children]
    check = _of(column.python or msgspec.Struct, getattr(column.python, "__name__", "Struct"))

    def convert(value: Any) -> object:
        check(value)
        return tuple(_inside(f".{name}", each, read(value)) for name, read, each in fields)

    return convert


def _list(column: ColumnType) -> Convert:
    convert_item = make_converter(column.children[0].type)
    check = _of((list, tuple), "list or tuple")

    def convert(values: Any) -> object:
        check(values)
        return [_inside(f"[{position}]", convert_item, value) for position, value in enumerate(values)]

    return convert


def _map(column: ColumnType) -> Convert:
    convert_value = make_converter(column.children[0].type)
    check = _of(dict, "dict")
    check_key = _of(str, "str")

    def convert(values: Any) -> object:
        check(values)
        return [(check_key(key), _inside(f"[{key!r}]", convert_value, value)) for key, value in values.items()]

    return convert


def _inside(where: str, convert: Convert, value: object) -> object:
    """Convert a nested value; an error names its place inside the column."""
    try:
        return convert(value)
    except ValueError as wrong:
        text = str(wrong)
        # The error of a deeper value starts with its own place, which continues this path.
        separator = "" if text[:1] in ".[" else ": "
        raise ValueError(f"{where}{separator}{text}") from None


_SCALARS: Final[dict[ColumnKind, Convert]] = {
    ColumnKind.STRING: _of(str, "str"),
    ColumnKind.BINARY: _of((bytes, bytearray, memoryview), "bytes"),
    ColumnKind.BOOLEAN: _of(bool, "bool"),
    ColumnKind.INTEGER: _integer,
    ColumnKind.FLOAT: _float,
    ColumnKind.TIMESTAMP: _timestamp,
    ColumnKind.DATE: _date,
}
_OF_COLUMN: Final[dict[ColumnKind, Callable[[ColumnType], Convert]]] = {
    ColumnKind.DECIMAL: _decimal,
    ColumnKind.ENUM: _enum,
    ColumnKind.STRUCT: _struct,
    ColumnKind.LIST: _list,
    ColumnKind.MAP: _map,
}

if TYPE_CHECKING:
    Tuples = list[tuple[Any, ...]]

VALUE_ERRORS: Final = (
    pa.ArrowNotImplementedError,
    pa.ArrowCapacityError,
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
)
"""Raised by conversions of a value that does not fit. Arrow's lack of memory is none of them."""

BATCH_ROWS_MAX: Final = 500
"""Rows of a record batch: a whole batch at once costs 2.5 times as much (caches), smaller record batches cost calls."""
BATCH_BYTES_MAX: Final = 64_000_000
"""Bytes of text of a column of a record batch of several rows: rows that are encoded together are in memory twice."""
VALUE_BYTES_MAX: Final = 2**30
"""Bytes of text of a column of one row: Arrow, Parquet and the arrays of Java count to 2 GiB, headers included."""
SHOWN_MAX: Final = 300
"""Characters of a value in the text of an error."""

_PLAIN: Final[dict[ColumnKind, Any]] = {
    ColumnKind.STRING: str,
    ColumnKind.BINARY: bytes,
    ColumnKind.BOOLEAN: bool,
    ColumnKind.INTEGER: int,
    ColumnKind.FLOAT: float,
    ColumnKind.TIMESTAMP: Annotated[datetime, msgspec.Meta(tz=True)],
    ColumnKind.DATE: date,
}
"""The kinds that Arrow takes unchanged; the others need their converter."""

_AS_THEY_ARE: Final = (bytes, datetime, date)
"""Types that msgspec must not accept as text."""


@dataclass(frozen=True, slots=True)
class PartitionRun:
    """A run of rows of one topic-partition inside a chunk.

    Attributes:
        topic: Name.
        topic_id: Kafka's topic id.
        partition: Number.
        rows: Number of consecutive rows.
    """

    topic: str
    topic_id: str
    partition: int
    rows: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """The sources of the rows of a chunk; each list has one entry per row, in the rows' order.

    Attributes:
        runs: The topic-partitions, in order; their rows add up to the chunk.
        offsets: Offset of the source message.
        row_numbers: Number of the row inside its emit offset.
        sessions: Session of the row.
        sequences: Producer's number, or None.
        event_times_us: Event time in microseconds since 1970 UTC, or None.
        emit_offsets: Offset processed when the row was emitted; None if it is that of the source.
        causes: Hook that emitted the row; None if all rows are of updates.
        first: Position of the first row in the chunk of which these rows are a part.
    """

    runs: Sequence[PartitionRun]
    offsets: Sequence[int]
    row_numbers: Sequence[int]
    sessions: Sequence[str]
    sequences: Sequence[int | None]
    event_times_us: Sequence[int | None]
    emit_offsets: Sequence[int] | None = None
    causes: Sequence[RowCause] | None = None
    first: int = 0

    def origin(self, position: int) -> RowOrigin:
        """The source of the row at a position of the chunk."""
        ends = list(accumulate(run.rows for run in self.runs))
        run = self.runs[bisect_right(ends, position)]
        offset = self.offsets[position]
        row = self.row_numbers[position]
        return RowOrigin(run.topic, run.partition, offset, row, self.first + position)

    def slice(self, start: int, until: int) -> Provenance:
        """The sources of some of the rows."""
        emit_offsets = None if self.emit_offsets is None else self.emit_offsets[start:until]
        causes = None if self.causes is None else self.causes[start:until]
        return Provenance(
            tuple(self._slice_runs(start, until)),
            self.offsets[start:until],
            self.row_numbers[start:until],
            self.sessions[start:until],
            self.sequences[start:until],
            self.event_times_us[start:until],
            emit_offsets,
            causes,
            self.first + start,
        )

    def _slice_runs(self, start: int, until: int) -> Iterator[PartitionRun]:
        begin = 0
        for run in self.runs:
            end = begin + run.rows
            rows = min(end, until) - max(begin, start)
            if rows > 0:
                yield replace(run, rows=rows)
            begin = end


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """The source of one row.

    Attributes:
        topic: Name.
        partition: Number.
        offset: Offset of the source message.
        row: Number of the row inside its emit offset.
        position: Position of the row in the chunk that is built.
    """

    topic: str
    partition: int
    offset: int
    row: int
    position: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset} row {self.row}"


class BatchTooLarge(Exception):
    """A column of a record batch has more bytes of text than it may: it is made of fewer rows."""


class RowRejected(LockstepError):
    """A value does not fit its column.

    Attributes:
        origin: The row.
        topic: Topic of its source message.
        partition: Its partition.
        offset: Its offset.
        column: Name of the column, or "*" for the row as a whole.
        value: The value.
    """

    def __init__(self, origin: RowOrigin, column: str, value: object, problem: str) -> None:
        super().__init__(
            f"{origin}: column {column} = {show_value(value)}: {problem}",
            next_step="correct the transform that emits the row, or the column's type in the row type",
        )
        self.origin = origin
        self.topic = origin.topic
        self.partition = origin.partition
        self.offset = origin.offset
        self.column = column
        self.value = value
        self._problem = problem

    def __reduce__(self) -> tuple[object, ...]:
        return (RowRejected, (self.origin, self.column, self.value, self._problem))


def show_value(value: object) -> str:
    """A value as text of bounded length."""
    if isinstance(value, (str, bytes)) and len(value) > SHOWN_MAX:
        return f"{value[:SHOWN_MAX]!r}... of length {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


class PlainBatch(NamedTuple):
    """The rows of updates.

    Attributes:
        batch: The rows with their provenance.
        times_us: Their smallest and largest event time; None without any.
    """

    batch: pa.RecordBatch
    times_us: tuple[int, int] | None


class RowsBuilder:
    """Builds record batches of a row type's data file, without the commit hour."""

    def __init__(self, row_type: type[msgspec.Struct], *, native: bool = True) -> None:
        """Prepare the columns.

        Args:
            row_type: The stream's row type.
            native: Use `lockstep-native` if it is installed.
        """
        self.schema: pa.Schema = make_file_schema(row_type)
        self._row_type = row_type
        self._extension = extension if native else None
        self._columns = make_row_columns(row_type)
        self._types = [column.type.arrow for column in self._columns]
        self._strict = [make_converter(column.type) for column in self._columns]
        self._measures = [make_measure(column.type) for column in self._columns]
        kinds: list[str | None] = [None] * len(self._columns)
        if native:
            kinds = [_find_native_kind(column.type) for column in self._columns]
        self._native = kinds if any(kinds) else None
        decimals = [n for n, column in enumerate(self._columns) if column.type.kind is ColumnKind.DECIMAL]
        self._decimals = {n: DecimalColumn(self._columns[n].type) for n in decimals}
        self._places = [n for n, kind in enumerate(kinds) if kind is None and n not in self._decimals]
        self._others = _GeneralColumns(self._columns, self._places)

    @property
    def is_native(self) -> bool:
        """Whether `lockstep-native` encodes the rows or their provenance."""
        return self._extension is not None

    def encode(self, rows: Sequence[msgspec.Struct], proof: Provenance) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk with their provenance, in order, in record batches of bounded size.

        Raises:
            RowRejected: A value does not fit its column; names the first such row.
        """
        if len(rows) <= BATCH_ROWS_MAX:
            yield from self._split(rows, proof)
            return
        for start in range(0, len(rows), BATCH_ROWS_MAX):
            until = min(len(rows), start + BATCH_ROWS_MAX)
            yield from self._split(rows[start:until], proof.slice(start, until))

    def _split(self, rows: Sequence[msgspec.Struct], proof: Provenance) -> Iterator[pa.RecordBatch]:
        """The rows as one record batch, or halved until each is small enough."""
        try:
            batch = self.build(rows, proof)
        except BatchTooLarge:  # only of several rows, so halving ends
            half = len(rows) // 2
            yield from self._split(rows[:half], proof.slice(0, half))
            yield from self._split(rows[half:], proof.slice(half, len(rows)))
        else:
            yield batch

    def build(self, rows: Sequence[msgspec.Struct], proof: Provenance) -> pa.RecordBatch:
        """The rows of a chunk with their provenance, in order, as one record batch.

        Raises:
            RowRejected: A value does not fit its column; names the first such row.
            BatchTooLarge: A column of several rows has more than `BATCH_BYTES_MAX` bytes of text.
        """
        bytes_max = BATCH_BYTES_MAX if len(rows) > 1 else VALUE_BYTES_MAX
        arrays = self._encode_fast(rows, bytes_max)
        if arrays is None:
            # Value by value, which succeeds (a subclass of int) or names the row and the column.
            arrays = self._encode_strict(rows, proof, bytes_max)
        try:
            proven = _proof_arrays(proof, self._extension, bytes_max)
        except VALUE_ERRORS:
            _refuse_proof(proof)
            raise
        return pa.RecordBatch.from_arrays([*arrays, *proven], schema=self.schema)

    def build_plain(
        self, rows: Sequence[msgspec.Struct], run: PartitionRun, origins: Sequence[object]
    ) -> PlainBatch | None:
        """The rows of updates that have a row each, as one record batch; None if anything needs a closer check.

        Args:
            rows: The rows of a chunk, at most `BATCH_ROWS_MAX`.
            run: Their partition.
            origins: Of each row offset, 1, session, sequence number, event time and offset.
        """
        if self._extension is None:
            return None
        try:
            made = self._extension.encode_origins(origins, BATCH_BYTES_MAX)
            arrays = None if made is None else self._encode_fast(rows, BATCH_BYTES_MAX)
        except BatchTooLarge:
            return None
        if made is None or arrays is None:
            return None
        columns = [make_array(kind, len(rows), each[2], each[:2]) for kind, each in zip(_ORIGIN, made[0], strict=True)]
        proven = _prove_updates(run, columns)
        return PlainBatch(pa.RecordBatch.from_arrays([*arrays, *proven], schema=self.schema), made[1])

    def _encode_fast(self, rows: Sequence[msgspec.Struct], bytes_max: int) -> list[pa.Array[Any]] | None:
        """The user's columns, or None where anything needs a closer check."""
        # A subclass may have other fields: `astuple` would shift the columns.
        if not set(map(type, rows)) <= {self._row_type}:
            return None
        tuples = list(map(astuple, rows))
        try:
            arrays = {} if self._native is None else self._encode_native(tuples, self._native, bytes_max)
            if arrays is None:
                return None
            arrays |= {n: column.encode(list(map(itemgetter(n), tuples))) for n, column in self._decimals.items()}
            arrays |= zip(self._places, self._others.encode(tuples, bytes_max), strict=True)
        except VALUE_ERRORS:
            return None
        return [arrays[n] for n in range(len(self._types))]

    def _encode_native(
        self, tuples: Tuples, kinds: list[str | None], bytes_max: int
    ) -> dict[int, pa.Array[Any]] | None:
        """The columns that the extension makes, by place; None if it refuses a value."""
        encode: Any = extension.encode_rows  # type: ignore[union-attr]  # there with `kinds`
        columns = _call_extension(encode, tuples, kinds, len(tuples), bytes_max)
        if columns is None:
            return None
        return {
            n: make_array(self._types[n], len(tuples), made[2], made[:2])
            for n, made in enumerate(columns)
            if made is not None
        }

    def _encode_strict(self, rows: Sequence[msgspec.Struct], proof: Provenance, bytes_max: int) -> list[pa.Array[Any]]:
        """Convert value by value; raises at the first value that does not fit."""
        values = [self._strict_row(row, position, proof) for position, row in enumerate(rows)]
        columns = list(zip(*values, strict=True))
        for measure, column in zip(self._measures, columns, strict=True):
            _check_size(measure, column, bytes_max)
        return [pa.array(column, kind) for column, kind in zip(columns, self._types, strict=True)]

    def _strict_row(self, row: msgspec.Struct, position: int, proof: Provenance) -> list[object]:
        if type(row) is not self._row_type:
            problem = f"the stream declares rows of type {self._row_type.__name__}"
            raise RowRejected(proof.origin(position), "*", row, problem)
        return [self._strict_value(row, i, position, proof) for i in range(len(self._columns))]

    def _strict_value(self, row: msgspec.Struct, i: int, position: int, proof: Provenance) -> object:
        name = self._columns[i].name
        value = getattr(row, name)
        try:
            converted = self._strict[i](value)
            _check_value(self._measures[i], converted)
            pa.array([converted], self._types[i])
        except VALUE_ERRORS as wrong:
            raise RowRejected(proof.origin(position), name, value, str(wrong)) from None
        return converted


class _GeneralColumns:
    """Columns that are checked by msgspec and made by Arrow."""

    def __init__(self, columns: Sequence[Column], places: Sequence[int]) -> None:
        """Of the columns of a row those at these places."""
        self._columns = [columns[place] for place in places]
        # Without columns of the extension or decimals, rows are encoded as they are, without picking from each.
        self._pick = None
        if len(places) != len(columns):
            self._pick = [itemgetter(place) for place in places]
        self._types = [column.type.arrow for column in self._columns]
        self._struct = pa.struct([pa.field(c.name, c.type.arrow) for c in self._columns])
        kinds = enumerate(column.type for column in self._columns)
        self._converts = {n: make_converter(kind) for n, kind in kinds if kind.kind not in _PLAIN}
        self._times = [n for n, column in enumerate(self._columns) if column.type.kind is ColumnKind.TIMESTAMP]
        measures = {n: make_measure(self._columns[n].type) for n in self._converts}
        self._measures = {n: measure for n, measure in measures.items() if measure is not None}
        row = tuple(_checked_type(column.type) for column in self._columns)
        # A Struct, whose type description is built once.
        self._checked = msgspec.defstruct("Checked", [("rows", list[tuple[row]])])  # type: ignore[valid-type]  # made at run time

    def encode(self, rows: Tuples, bytes_max: int) -> list[pa.Array[Any]]:
        """The columns of whole rows.

        Raises:
            BatchTooLarge: A column of several rows has more bytes of text.
            ValueError: Anything needs a closer check; also the other VALUE_ERRORS.
        """
        if not self._columns:
            return []
        tuples = self._pick_columns(rows)
        # First msgspec: Arrow would take 1.5 for an integer and a naive datetime for UTC.
        msgspec.convert({"rows": tuples}, self._checked, builtin_types=_AS_THEY_ARE)
        columns = self._converted(tuples, bytes_max) if self._converts else self._plain(tuples)
        _check_text(columns, len(rows), bytes_max)
        for n in self._times:
            _check_readable(columns[n])
        return columns

    def _pick_columns(self, rows: Tuples) -> Tuples:
        """The values of these columns, of each row."""
        if self._pick is None:
            return rows
        columns = (map(pick, rows) for pick in self._pick)
        return list(zip(*columns, strict=True))

    def _plain(self, tuples: Tuples) -> list[pa.Array[Any]]:
        # One struct array of tuples takes 0.65 us a row, dicts 1.8 us (17 columns, measured).
        struct: Any = pa.array(tuples, self._struct)  # the stubs lack flatten()
        return list(struct.flatten())

    def _converted(self, tuples: Tuples, bytes_max: int) -> list[pa.Array[Any]]:
        transposed = list(zip(*tuples, strict=True)) or [()] * len(self._types)  # no rows have no columns
        for n, convert in self._converts.items():
            transposed[n] = tuple(map(convert, transposed[n]))
        for n, measure in self._measures.items():
            _check_size(measure, transposed[n], bytes_max)
        return [pa.array(values, kind) for values, kind in zip(transposed, self._types, strict=True)]


def _check_readable(times: pa.Array[Any]) -> None:
    """Raise ValueError if a time is outside of what readers can return; nulls are zeros here."""
    numbers = np.frombuffer(cast("Any", times.buffers()[1]), np.int64, len(times), 8 * times.offset)
    if len(numbers) and not EARLIEST_US <= numbers.min() <= numbers.max() <= LATEST_US:
        raise ValueError(describe_unreadable("a time"))


def _call_extension(
    encode: Callable[[list[Any], list[Any], int], Any], values: list[Any], kinds: list[Any], rows: int, bytes_max: int
) -> Any:
    """Columns made by the extension; None if it refuses a value, or one row has too much text.

    Raises:
        BatchTooLarge: A column of several rows has more bytes of text.
    """
    try:
        return encode(values, kinds, bytes_max)
    except OverflowError:
        if rows > 1:
            raise BatchTooLarge from None
        return None


def _check_text(columns: Sequence[pa.Array[Any]], rows: int, bytes_max: int) -> None:
    """Refuse columns of text that are too large; Arrow makes several arrays of one of more than 2 GiB.

    Raises:
        BatchTooLarge: A column of several rows has more bytes.
        ValueError: A column of one row has more.
    """
    made: Sequence[Any] = columns  # the stubs do not know of several arrays
    for column in made:
        if not _is_too_large(column, bytes_max):
            continue
        if rows > 1:
            raise BatchTooLarge
        raise ValueError(f"a column of more than {bytes_max} bytes")


def _is_too_large(column: Any, bytes_max: int) -> bool:
    if isinstance(column, pa.ChunkedArray):  # Arrow splits only what exceeds 2 GiB
        return True
    if column.type not in _TEXTS:
        return False
    content = column.buffers()[-1]
    return content is not None and content.size > bytes_max


_TEXTS: Final = (pa.string(), pa.binary())

Measure = Callable[[Any], int]
"""From a converted value to the bytes of text in it."""


def make_measure(column: ColumnType) -> Measure | None:
    """Measures the text of a converted value of a column; None if it has no text.

    Of more than 2 GiB inside a list or a map Arrow makes no array, and no error: it ends the process.
    """
    measures = [make_measure(child.type) for child in column.children]
    match column.kind:
        case ColumnKind.STRING | ColumnKind.ENUM:
            return _measure_text
        case ColumnKind.BINARY:
            return lambda value: 0 if value is None else len(value)
        case ColumnKind.STRUCT:
            return _measure_fields(measures)
        case ColumnKind.LIST:
            return _measure_all(measures[0])
        case ColumnKind.MAP:
            return _measure_all(_measure_fields([_measure_text, measures[0]]))
        case _:
            return None


def _measure_text(value: object) -> int:
    if not isinstance(value, str):
        return 0
    if value.isascii():
        return len(value)
    return len(value.encode("utf-8", "surrogatepass"))


def _measure_fields(measures: Sequence[Measure | None]) -> Measure | None:
    with_text = [(n, measure) for n, measure in enumerate(measures) if measure is not None]
    if not with_text:
        return None
    return lambda values: 0 if values is None else sum(measure(values[n]) for n, measure in with_text)


def _measure_all(measure: Measure | None) -> Measure | None:
    if measure is None:
        return None
    return lambda values: 0 if values is None else sum(map(measure, values))


def _check_size(measure: Measure | None, values: Sequence[object], bytes_max: int) -> None:
    """Refuse a column of converted values before Arrow sees it.

    Raises:
        BatchTooLarge: It has more bytes of text, in several rows.
        ValueError: One row has more.
    """
    if measure is not None and sum(map(measure, values)) > bytes_max:
        if len(values) > 1:
            raise BatchTooLarge
        _check_value(measure, values[0])


def _check_value(measure: Measure | None, value: object) -> None:
    """Refuse a converted value with more text than a column of one row holds.

    Raises:
        ValueError: It has more.
    """
    if measure is None:
        return
    size = measure(value)
    if size > VALUE_BYTES_MAX:
        raise ValueError(f"has {size} bytes of text, more than the {VALUE_BYTES_MAX} that a column of one row holds")


def _find_native_kind(column: ColumnType) -> str | None:
    """The type of a column for the extension; None if the extension cannot make it, or is missing."""
    is_plain = extension is not None and column.kind in _PLAIN and column.arrow in KINDS
    if not is_plain:
        return None
    return KINDS[column.arrow] + "?" * column.nullable


def _checked_type(column: ColumnType) -> Any:
    kind = _PLAIN.get(column.kind, Any)  # converted values are checked by their converter
    if column.nullable and kind is not Any:
        return kind | None
    return kind


def _proof_arrays(proof: Provenance, native: ModuleType | None, bytes_max: int) -> list[pa.Array[Any]]:
    """The provenance columns; topics and partitions are repeated by Arrow at no cost per row."""
    offsets, sessions, sequences, times = _origin_arrays(proof, native, bytes_max)
    emitted = offsets
    if proof.emit_offsets is not None:
        emitted = pa.array(proof.emit_offsets, pa.int64())
    return [
        _repeated(proof.runs, [run.topic for run in proof.runs], pa.string()),
        _repeated(proof.runs, [run.topic_id for run in proof.runs], pa.string()),
        _repeated(proof.runs, [run.partition for run in proof.runs], pa.int32()),
        offsets,
        emitted,
        pa.array(proof.row_numbers, pa.int32()),
        sessions,
        sequences,
        times,
        make_causes(proof.causes, len(proof.offsets)),
    ]


def make_causes(causes: Sequence[RowCause] | None, rows: int) -> pa.Array[Any]:
    """The column of causes; None: all rows are of updates."""
    if causes is None:
        return _repeat(RowCause.UPDATE.value, pa.string(), rows)
    return pa.array(causes, pa.string())


def _prove_updates(run: PartitionRun, origin: list[pa.Array[Any]]) -> list[pa.Array[Any]]:
    """The provenance columns of updates that have a row each.

    Args:
        run: Their partition.
        origin: Offsets, sessions, sequence numbers and event times.
    """
    offsets, *others = origin
    return [
        _repeat(run.topic, pa.string(), run.rows),
        _repeat(run.topic_id, pa.string(), run.rows),
        _repeat(run.partition, pa.int32(), run.rows),
        offsets,
        offsets,
        _repeat(0, pa.int32(), run.rows),
        *others,
        make_causes(None, run.rows),
    ]


@lru_cache(maxsize=64)
def _repeat(value: str | int, kind: pa.DataType, rows: int) -> pa.Array[Any]:
    """A column of equal values. Most chunks of a partition have as many rows, so that they share it."""
    constant: Any = pa.array([value], kind)
    repeated: pa.Array[Any] = pa.repeat(constant[0], rows)
    return repeated


_ORIGIN: Final[tuple[pa.DataType, ...]] = (pa.int64(), pa.string(), pa.int64(), TIMESTAMP)
"""The types of what `_origin_arrays` makes."""


def _origin_arrays(proof: Provenance, native: ModuleType | None, bytes_max: int) -> list[pa.Array[Any]]:
    """Offsets, sessions, sequence numbers and event times."""
    values = [proof.offsets, proof.sessions, proof.sequences, proof.event_times_us]
    rows = len(proof.offsets)
    kinds = ["int", "str", "int?", "int?"]
    made = None
    if native is not None:
        made = _call_extension(native.encode_columns, values, kinds, rows, bytes_max)
    if made is None:
        columns = [pa.array(each, kind) for each, kind in zip(values, _ORIGIN, strict=True)]
        _check_text(columns, rows, bytes_max)
        return columns
    return [make_array(kind, rows, each[2], each[:2]) for kind, each in zip(_ORIGIN, made, strict=True)]


def _refuse_proof(proof: Provenance) -> None:
    """Name the first row whose `envelope` has values that no column can hold."""
    columns: tuple[tuple[str, Sequence[object], pa.DataType], ...] = (
        ("_session", proof.sessions, pa.string()),
        ("_sequence", proof.sequences, pa.int64()),
        ("_event_time", proof.event_times_us, TIMESTAMP),
    )
    for name, values, kind in columns:
        for position, value in enumerate(values):
            try:
                _check_value(_measure_text, value)
                pa.array([value], kind)
            except VALUE_ERRORS as wrong:
                raise RowRejected(proof.origin(position), name, value, str(wrong)) from None


def _repeated(runs: Sequence[PartitionRun], values: Sequence[str | int], kind: pa.DataType) -> pa.Array[Any]:
    if len(runs) == 1:
        return _repeat(values[0], kind, runs[0].rows)
    repeated = list[str | int]()
    for value, run in zip(values, runs, strict=True):
        repeated += [value] * run.rows
    return pa.array(repeated, kind)
