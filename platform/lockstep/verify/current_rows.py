"""The current rows of a partition: the newest row of each key of a session, compared with the row of the state.

Both sides are Arrow tables: a table may have millions of keys, too many for an object each. A removed key is dropped as
soon as its removal is read, so memory holds as many keys as the states of the partition do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.declare.replay import ReplayKey
from lockstep.verify.ledger import RowPosition
from lockstep.verify.rows import CONVERSION_ERRORS, ORDER_COLUMNS, is_equal, read_value, to_column

MERGED_ROWS = 262_144
MERGED_BYTES = 256_000_000
"""Rows and bytes that are merged into the current rows together: each merge copies the current rows."""
COMPARED_ROWS = 65_536
"""Rows that are made or compared together."""
_NUMBER = "number"
Numbers = npt.NDArray[np.int64]


class RowDifference(NamedTuple):
    """A key whose current row is not the row of the state.

    Attributes:
        session: The session.
        key: The values of the key columns.
        column: The column that differs; None if one of both rows is missing.
        expected: The value of the state.
        found: The value of the row.
        position: Emit offset and number of the row; None if the table has no current row of the key.
    """

    session: str
    key: tuple[object, ...]
    column: str | None
    expected: object
    found: object
    position: RowPosition | None


def make_replay_schema(key: ReplayKey, columns: pa.Schema) -> pa.Schema:
    """The columns of a replay: session, key, removal and values, position.

    Args:
        key: The columns of key, removal and values.
        columns: All columns of a data file.
    """
    names = dict.fromkeys(("_session", *key.columns, key.removed, *key.values, *ORDER_COLUMNS))
    return pa.schema([(name, _LARGE.get(columns.field(name).type, columns.field(name).type)) for name in names])


_LARGE: dict[pa.DataType, pa.DataType] = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
"""Types of texts and bytes of which a column may hold more than 2 GiB."""


class CurrentRows:
    """Finds the newest row of each key; without the removed keys."""

    def __init__(self, key: ReplayKey, schema: pa.Schema) -> None:
        self._key = key
        self._schema = schema
        self._current = schema.empty_table()
        self._later: list[pa.Table] = []
        self._later_rows = 0
        self._later_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, which were emitted after those that were added before."""
        self._later.append(_conform(pa.Table.from_batches([rows]), self._schema))
        self._later_rows += rows.num_rows
        self._later_bytes += self._later[-1].nbytes
        is_many = self._later_rows >= max(MERGED_ROWS, self._current.num_rows)
        if is_many or self._later_bytes >= max(MERGED_BYTES, self._current.nbytes):
            self._merge()

    def finish(self) -> pa.Table:
        """The current rows."""
        self._merge()
        return self._current

    def _merge(self) -> None:
        rows = pa.concat_tables([self._current, *self._later])
        _, newest = find_key_rows(rows, self._key)
        found = rows.take(np.sort(newest))
        self._current = found.filter(found[self._key.removed].is_valid()).combine_chunks()
        self._later = []
        self._later_rows = 0
        self._later_bytes = 0


class StateRows:
    """Makes the rows of states: in the columns of the current rows, without a position."""

    def __init__(self, key: ReplayKey, schema: pa.Schema) -> None:
        self._key = key
        self._schema = schema
        self._tables = [schema.empty_table()]
        self._rows: list[tuple[str, object, object]] = []

    def add(self, session: str, rows: Iterable[tuple[object, object]]) -> None:
        """Add the rows of a session."""
        for key, value in rows:
            self._rows.append((session, key, value))
            if len(self._rows) >= COMPARED_ROWS:
                self._flush()

    def finish(self) -> pa.Table:
        """All rows."""
        self._flush()
        return pa.concat_tables(self._tables)

    def _flush(self) -> None:
        if not self._rows:
            return
        sessions, keys, values = zip(*self._rows, strict=True)
        parts = zip(*map(self._key.parts_of, keys), strict=True)
        columns: dict[str, Sequence[object]] = {"_session": sessions}
        columns |= dict(zip(self._key.columns, parts, strict=True))
        columns |= {name: list(map(attrgetter(name), values)) for name in self._key.values}
        if self._key.is_scalar:
            columns[self._key.removed] = values
        arrays = [_make_column(columns.get(field.name), len(values), field.type) for field in self._schema]
        self._tables.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows = []


def find_differences(key: ReplayKey, rows: pa.Table, states: pa.Table) -> Iterator[RowDifference]:
    """Compare the current rows of some sessions with the rows of their states."""
    # Joined, so that a key that one side lacks is a group as well.
    both = pa.concat_tables([rows, states])
    first, last = find_key_rows(both, key)
    is_current = first < rows.num_rows
    is_of_state = last >= rows.num_rows
    # Keys that only one side has.
    for number in np.sort(last[~(is_current & is_of_state)]).tolist():
        yield _describe(both, key, number, None, None, None, is_row=number < rows.num_rows)
    pairs = is_current & is_of_state
    compared = key.values
    if not compared and key.is_scalar:
        compared = (key.removed,)
    for at in range(0, int(pairs.sum()), COMPARED_ROWS):
        block = slice(at, at + COMPARED_ROWS)
        yield from _compare(both, key, compared, first[pairs][block], last[pairs][block])


def find_key_rows(rows: pa.Table, key: ReplayKey) -> tuple[Numbers, Numbers]:
    """The number of the first and of the last row of each key of a session."""
    names = ("_session", *key.columns)
    columns = [_make_comparable(rows[name]) for name in names]
    grouped = pa.Table.from_arrays(columns, names=[f"key {at}" for at in range(len(names))])
    numbered = grouped.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    groups = numbered.group_by(grouped.column_names, use_threads=False)
    found = groups.aggregate([(_NUMBER, "min"), (_NUMBER, "max")])
    return found[f"{_NUMBER}_min"].to_numpy(), found[f"{_NUMBER}_max"].to_numpy()


def _make_comparable(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """A key column as Arrow groups it: 0.0 and -0.0 are one key, and a nested value is grouped by its text."""
    if pa.types.is_floating(column.type):
        add: Any = pc.add
        normalized: pa.ChunkedArray[Any] = add(column, pa.scalar(0.0, column.type))
        return normalized
    if pa.types.is_nested(column.type):
        return pa.chunked_array([pa.array(list(map(repr, column.to_pylist())), pa.string())])
    return column


def _compare(
    both: pa.Table, key: ReplayKey, names: Sequence[str], rows: Numbers, states: Numbers
) -> Iterator[RowDifference]:
    """Compare pairs of rows, in Arrow, and one by one only if a column differs; one difference a key."""
    differing: set[int] = set()
    for name in names:
        found = both[name].take(rows)
        expected = both[name].take(states)
        if found.equals(expected):
            continue
        for number, left, right in zip(rows.tolist(), expected, found, strict=True):
            wanted = read_value(left)
            value = read_value(right)
            if number not in differing and not is_equal(wanted, value):
                differing.add(number)
                yield _describe(both, key, number, name, wanted, value, is_row=True)


def _describe(
    both: pa.Table, key: ReplayKey, number: int, column: str | None, expected: object, found: object, *, is_row: bool
) -> RowDifference:
    row = {name: read_value(both[name][number]) for name in both.column_names}
    position = (row["_emit_offset"], row["_row"]) if is_row else None
    return RowDifference(row["_session"], tuple(row[name] for name in key.columns), column, expected, found, position)


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the columns of a schema; a column that they lack was added to the table later."""
    arrays = list[Any]()
    for field in schema:
        if field.name in rows.column_names:
            arrays.append(rows[field.name].cast(field.type))
        else:
            arrays.append(_make_column(None, rows.num_rows, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _make_column(values: Sequence[object] | None, rows: int, kind: pa.DataType) -> pa.Array[Any]:
    """A column of values of a state; null for a value that no column of this type holds, which no row has either."""
    if values is None:
        return pa.array([None] * rows, kind)
    plain = list(map(to_column, values))
    try:
        return pa.array(plain, kind)
    except CONVERSION_ERRORS:
        return pa.array([_fit(value, kind) for value in plain], kind)


def _fit(value: object, kind: pa.DataType) -> object:
    try:
        pa.scalar(value, kind)
    except CONVERSION_ERRORS:
        return None
    return value
