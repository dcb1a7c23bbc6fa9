"""The rows of the states after a batch, from durable state files: no row of the table is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from lockstep.declare.stream import AnyStream
from lockstep.declare.transform import find_migration, is_overridden
from lockstep.features.current.columns import PLACE, CurrentColumns
from lockstep.model.map_state import TableState
from lockstep.model.table_schema import COMMIT_HOUR, make_row_columns
from lockstep.operations.inspect.state import find_state_version
from lockstep.state.chain_reader import BlockCache, ChainReader
from lockstep.state.changelog import SegmentHeader, StateDamaged, read_header
from lockstep.state.codec import StateMigrator, StateSchema
from lockstep.state.entry_order import KEY_BYTES_MAX
from lockstep.state.values import ROWS, MapStateStore, is_session, read_versions
from lockstep.table.ledger import LedgerRow
from lockstep.table.row_encoder import make_converter

CHUNK_ROWS = 65_536
"""Rows that are converted to columns together."""
_SEPARATOR = b"\xff"
_Stored = tuple[bytes, bytes, dict[bytes, bytes]]
"""A session, its own entry, and the entries of its rows."""


def read_state_rows(
    stream: AnyStream, durable: Path, partitions: Iterable[LedgerRow], columns: CurrentColumns, hour: str
) -> Iterator[pa.Table]:
    """Read the rows of all states, in tables of bounded size.

    Memory holds the entries of the sessions of one partition, without their rows if these are stored one by one.

    Args:
        stream: The declaration.
        durable: Folder of the state files.
        partitions: The newest ledger row of each partition.
        columns: The columns of the rows.
        hour: Commit hour of the rows.

    Raises:
        StateDamaged: A durable file is missing or damaged.
        StateTypeChanged: The declared type cannot read the stored state.
    """
    schema: StateSchema[object] = StateSchema(stream.types.stored, find_migration(stream.transform))
    list_rows = _find_rows(stream)
    made = _RowColumns(stream, columns, hour)
    for row in partitions:
        for session, state in _read_states(row, durable, schema):
            made.add(row, session, list_rows(state))
            if made.rows >= CHUNK_ROWS:
                yield made.take()
    yield made.take()


def _find_rows(stream: AnyStream) -> Callable[[object], Iterable[tuple[object, object]]]:
    """The function that lists the rows of a state."""
    if is_overridden(type(stream.transform), "list_rows"):
        return cast("Callable[[object], Iterable[tuple[object, object]]]", stream.transform.list_rows)
    return _list_items


def _list_items(state: object) -> Iterable[tuple[object, object]]:
    if isinstance(state, TableState):
        return cast("dict[object, object]", state.read_rows()).items()
    return cast("Mapping[object, object]", state).items()


def _read_states(row: LedgerRow, durable: Path, schema: StateSchema[object]) -> Iterator[tuple[str, object]]:
    """The states of a partition by session, each to be used before the next state is read."""
    version = find_state_version(row)
    if version.segment is None:
        return
    header = read_header(durable, version.segment)
    # Refuse first: a state of another type decodes to wrong values.
    schema.accept(read_versions(header).shapes, f"the state of {row.topic}/{row.partition}")
    chain = ChainReader(durable, version, (*header.chain, version.segment), BlockCache())
    decoder = _StateDecoder(schema, header)
    for session, value, rows in _read_sessions(chain):
        name = session.decode("utf-8", "surrogatepass")
        state = decoder.decode(name, session, value, rows)
        if state is not None:  # None: its first snapshot is not complete
            yield name, state


def _read_sessions(chain: ChainReader) -> Iterator[_Stored]:
    """The stored sessions. In the order of entries, all sessions are before all rows, and long names before short."""
    sessions = dict[bytes, bytes]()
    long_rows = defaultdict[bytes, dict[bytes, bytes]](dict)
    short_rows = _read_entries(chain, sessions, long_rows)
    for session, group in groupby(short_rows, itemgetter(0)):
        rows = {key: value for _, key, value in group}
        # All sessions are read before the first row, so that it is missing.
        if session not in sessions:
            raise StateDamaged(f"rows of session {session!r}", "a state of the session", "none")
        yield session, sessions.pop(session), rows | long_rows.pop(session, {})
    for session, value in sessions.items():
        yield session, value, long_rows.pop(session, {})


def _read_entries(
    chain: ChainReader, sessions: dict[bytes, bytes], long_rows: defaultdict[bytes, dict[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The rows with short names, in order, as (session, key, value); adds to the others."""
    for key, value in chain.iterate(b""):
        if is_session(key):
            sessions[key] = value
        elif key[0] == ROWS:
            session = key[1 : key.index(_SEPARATOR, 1)]
            if len(key) >= KEY_BYTES_MAX:
                long_rows[session][key] = value
            else:
                yield session, key, value


class _StateDecoder:
    """Decodes sessions of a partition, also of older types; has the entries of the session in work."""

    def __init__(self, schema: StateSchema[object], header: SegmentHeader) -> None:
        self._schema = schema
        self._migrator = StateMigrator(schema, header)
        self._tables = MapStateStore(schema.tables, self)
        self._rows: Mapping[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one."""
        return self._rows.get(key)

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries with keys of this prefix."""
        return [(key, value) for key, value in self._rows.items() if key.startswith(prefix)]

    def decode(self, name: str, session: bytes, value: bytes, rows: Mapping[bytes, bytes]) -> object:
        """The state of a session."""
        self._rows = rows
        tables = self._tables
        current = self._migrator.migrate(name, value, lambda table, shape: tables.old_rows(session, table, shape))
        if current.migrated is not None:
            return current.migrated.state
        _, state = self._schema.decode(name, current.value)
        tables.bind(session, state)
        return state


class _RowColumns:
    """Collects rows of states as columns.

    Attributes:
        rows: Rows since the last `take`.
    """

    def __init__(self, stream: AnyStream, columns: CurrentColumns, hour: str) -> None:
        types = {column.name: column.type for column in make_row_columns(stream.types.row)}
        self._columns = columns
        self._hour = hour
        self._converters = {name: make_converter(types[name]) for name in (*columns.replay.columns, *columns.values)}
        self.rows = 0
        self._places = list[tuple[LedgerRow, str, int]]()
        self._keys = list[object]()
        self._values = list[object]()

    def add(self, row: LedgerRow, session: str, rows: Iterable[tuple[object, object]]) -> None:
        """Add the rows of a session."""
        rows_before = len(self._keys)
        for key, value in rows:
            self._keys.append(key)
            self._values.append(value)
        self.rows = len(self._keys)
        self._places.append((row, session, self.rows - rows_before))

    def take(self) -> pa.Table:
        """Take the collected rows."""
        columns: dict[str, list[Any]] = {name: [] for name in PLACE}
        for row, session, count in self._places:
            for name, value in zip(PLACE, (row.topic, row.topic_id, row.partition, session), strict=True):
                columns[name] += [value] * count
        replay = self._columns.replay
        parts = zip(*map(replay.parts_of, self._keys), strict=True)
        columns |= dict(zip(replay.columns, map(list, parts), strict=False))  # no parts without rows
        for name in self._columns.values:
            is_whole = replay.is_scalar
            columns[name] = self._values if is_whole else [getattr(value, name) for value in self._values]
        columns[COMMIT_HOUR] = [self._hour] * self.rows
        arrays = [self._convert(field, columns.get(field.name, [])) for field in self._columns.schema]
        self.rows = 0
        self._places = []
        self._keys = []
        self._values = []
        return pa.Table.from_arrays(arrays, schema=self._columns.schema)

    def _convert(self, field: pa.Field[Any], values: list[Any]) -> pa.Array[Any]:
        convert = self._converters.get(field.name)
        made: pa.Array[Any] = pa.array(values if convert is None else list(map(convert, values)), field.type)
        return made
