"""Compares the rows that the fold gives with those of the table, value by value.

All rows of a piece at once, column by column, in Arrow; only where that finds a difference, or cannot be done, row by
row in Python.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from lockstep.operations.verify.kept import KeptMessages
from lockstep.operations.verify.proof import Place, ViolationKind, Violations
from lockstep.table.schema import row_schema

CONVERSION_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError)
NOT_COMPARED = ("commit_hour",)
"""Outside of row equality: a batch that was planned again may lie in another hour."""


class Source(NamedTuple):
    """Whose rows these are: the message, or the session's last one where a timer emitted them."""

    offset: int
    session: str
    sequence: int | None
    event_time_us: int | None


class Emitted:
    """Rows that the fold gives, column by column, in order.

    Attributes:
        proof: The proof columns, but for topic and partition.
        rows: The user's rows.
    """

    def __init__(self) -> None:
        self.proof: dict[str, list[Any]] = {
            name: [] for name in ("_offset", "_emit_offset", "_row", "_session", "_sequence", "_event_time")
        }
        self._add = [held.append for held in self.proof.values()]
        self.rows: list[msgspec.Struct] = []

    def add(self, source: Source, at: int, first: int, rows: Sequence[msgspec.Struct]) -> None:
        """Rows that were emitted together.

        Args:
            source: Whose they are.
            at: The offset that was worked on then.
            first: The number of the first among the rows emitted there.
            rows: The rows.
        """
        columns = (source.offset, at, first, source.session, source.sequence, source.event_time_us)
        if len(rows) == 1:
            for add, value in zip(self._add, columns, strict=True):
                add(value)
        else:
            for (name, held), value in zip(self.proof.items(), columns, strict=True):
                held.extend(range(first, first + len(rows)) if name == "_row" else [value] * len(rows))
        self.rows += rows

    def since(self, rows: int) -> Emitted:
        """Take out all but the first so many rows."""
        taken = Emitted()
        for name, held in self.proof.items():
            taken.proof[name] += held[rows:]
            del held[rows:]
        taken.rows += self.rows[rows:]
        del self.rows[rows:]
        return taken

    def emitted_before(self, offset: int) -> int:
        """How many rows were emitted before an offset."""
        return bisect_left(self.proof["_emit_offset"], offset)


class RowComparison:
    """Compares the rows of one partition.

    Attributes:
        compared: How many rows of the table were compared.
    """

    def __init__(self, place: Place, violations: Violations) -> None:
        self._place, self._violations = place, violations
        self.compared = 0

    def compare(self, emitted: Emitted, table: Sequence[pa.RecordBatch], kept: KeptMessages) -> None:
        """Compare what the fold gave for some offsets with what the table holds of them.

        Args:
            emitted: What the fold gave.
            table: What the table holds.
            kept: The quarantine, whose messages must have no rows.
        """
        self.compared += sum(batch.num_rows for batch in table)
        if not self._alike(emitted, table):
            self._differences(emitted, table, kept)

    def _alike(self, emitted: Emitted, table: Sequence[pa.RecordBatch]) -> bool:
        if sum(batch.num_rows for batch in table) != len(emitted.rows):
            return False
        at = 0
        for batch in table:
            until = at + batch.num_rows
            if not all(self._column_alike(emitted, batch, name, at, until) for name in batch.schema.names):
                return False
            at = until
        return True

    def _column_alike(self, emitted: Emitted, batch: pa.RecordBatch, name: str, at: int, until: int) -> bool:
        if name in NOT_COMPARED:
            return True
        values = self._values(emitted, name, at, until)
        try:
            return bool(pa.array(values, batch.schema.field(name).type).equals(batch[name]))
        except CONVERSION_ERRORS:
            return False

    def _values(self, emitted: Emitted, name: str, at: int, until: int) -> list[Any]:
        if name in emitted.proof:
            return emitted.proof[name][at:until]
        if name in _PLACE:
            return [getattr(self._place, _PLACE[name])] * (until - at)
        values = list(map(attrgetter(name), emitted.rows[at:until]))
        return values if _PLAIN.issuperset(map(type, values)) else list(map(as_column, values))

    def _differences(self, emitted: Emitted, table: Sequence[pa.RecordBatch], kept: KeptMessages) -> None:
        """Row by row, by their identity (emit offset, row)."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        kinds: dict[str, pa.DataType] = {}
        for batch in table:
            kinds |= {field.name: field.type for field in batch.schema if field.name not in NOT_COMPARED}
            for row in batch.to_pylist():
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
        kept: KeptMessages,
    ) -> None:
        offset, row = identity
        if found is None:
            self._violations.add(ViolationKind.ROW_MISSING, self._place, offset, f"row {row}", "no such row")
        elif expected is None:
            kind = ViolationKind.QUARANTINE_AND_ROWS if kept.holds(offset) else ViolationKind.ROW_EXTRA
            self._violations.add(kind, self._place, offset, f"no row {row}", f"session {found.get('_session')!r}")
        else:
            # A file from before a column was added does not have it.
            wrong = [name for name in expected if name in found and not _equal(expected[name], found[name])]
            for name in wrong[:1]:
                wanted, actual = f"row {row}: {name} = {expected[name]!r}", repr(found[name])
                self._violations.add(ViolationKind.ROW_CHANGED, self._place, offset, wanted, actual)


_PLAIN = frozenset({str, bytes, bool, int, float, Decimal, datetime, date, type(None)})
"""What Arrow takes as it is."""
_PLACE = {"_topic": "topic", "_topic_id": "topic_id", "_partition": "partition"}


def as_column(value: Any) -> Any:
    """A value of the user's row as Arrow takes it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {name: as_column(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return [(key, as_column(held)) for key, held in value.items()]
    if isinstance(value, (list, tuple)):
        return [as_column(held) for held in value]
    return value


def unfit(rows: Iterable[msgspec.Struct], row_type: type[msgspec.Struct]) -> bool:
    """Whether a row is not of its declared type, or holds what its columns cannot."""
    kinds = {field.name: field for field in row_schema(row_type)}
    return any(type(row) is not row_type or _unfit(row, row_type, kinds) for row in rows)


def unfit_proof(source: Source) -> bool:
    """Whether the columns of the proof cannot hold what is said of a message."""
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
            pa.array([as_column(value)], field.type)
            if (value is None and not field.nullable) or (isinstance(value, datetime) and value.utcoffset() is None):
                return True
    except (*CONVERSION_ERRORS, msgspec.MsgspecError):
        return True
    return False


def _as_read(value: Any, kind: pa.DataType) -> Any:
    """A value as it comes back from a column of this type."""
    try:
        column: Any = pa.array([value], kind)
        return column.to_pylist()[0]
    except CONVERSION_ERRORS:
        return value


def _equal(expected: Any, found: Any) -> bool:
    return bool(expected == found) or repr(expected) == repr(found)  # the second for NaN, wherever it is
