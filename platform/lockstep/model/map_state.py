"""MapState: a table inside a session's state of which a message touches a few rows; decoded and saved row by row."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final, Generic, Protocol, TypeVar, cast, get_origin, overload

import msgspec
from typing_extensions import override

from lockstep.model.number_keys import make_canonical_key

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
Row_co = TypeVar("Row_co", covariant=True)


class Absent:
    """Marks a row that is known to be absent."""


ABSENT: Final = Absent()
_UNKNOWN: Final = Absent()
_ENCODER = msgspec.msgpack.Encoder()
_HELD = "_held"
_CHANGED = "_changed"
_STORED = "_stored"
_NOTES_READS = "_notes_reads"


class StoredRows(Protocol[K, Row_co]):
    """The rows of a table as stored before this range; implemented by lockstep.

    Attributes:
        notes_reads: A row that was read may have been changed in place: it counts as assigned.
    """

    notes_reads: bool

    def get(self, key: K) -> Row_co | Absent:
        """One row, decoded."""
        ...

    def read_others(self, held: Container[K]) -> Iterable[tuple[K, Row_co]]:
        """All rows whose keys are not in memory, decoded."""
        ...

    def all_keys(self) -> Iterable[tuple[bytes, K]]:
        """All keys, encoded and decoded."""
        ...


class MapState(MutableMapping[K, V], Generic[K, V]):
    """A table of rows V by key K: the state type of a transform, or the type of fields of its state Struct.

    Used like a dict, for tables of more than about a thousand rows, of which a message touches a few: a row is decoded
    when it is first touched and saved when it was assigned or deleted.

    - Rows are values: `rows[key] = changed_row`, never a change in place. So V is immutable, for example a frozen
    Struct.

    - Iteration is in the order of the encoded keys (whole numbers from 0 on: ascending; texts: by length, then by
    bytes); it and `len` read all keys.

    - If a table is assigned to another state, it is copied.
    """

    __slots__ = ("_changed", "_held", "_stored")

    def __init__(self, rows: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        """A table with these rows, all of them new."""
        self._held: dict[K, V | Absent] = dict(rows)
        self._changed: dict[K, None] = {}
        self._stored: StoredRows[K, V] | None = None

    def __getitem__(self, key: K) -> V:
        """A row; KeyError without one."""
        value = self._look(key)
        if value is ABSENT:
            raise KeyError(key)
        return cast("V", value)

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        """A row, or the default."""
        value = self._look(key)
        return default if value is ABSENT else cast("V", value)

    def __contains__(self, key: object) -> bool:
        """Whether there is such a row."""
        return self._look(cast("K", key)) is not ABSENT

    def __setitem__(self, key: K, value: V) -> None:
        """Set a row; it is saved with the batch."""
        self._held[key] = value
        if self._stored is not None:
            self._changed[key] = None

    def __delitem__(self, key: K) -> None:
        """Remove a row; KeyError without one."""
        if self._look(key) is ABSENT:
            raise KeyError(key)
        if self._stored is None:
            del self._held[key]
        else:
            self._held[key] = ABSENT
            self._changed[key] = None

    def __iter__(self) -> Iterator[K]:
        """The keys, in the order of their encoding."""
        keys = {_ENCODER.encode(key): key for key, value in self._held.items() if value is not ABSENT}
        if self._stored is not None:
            keys |= {encoded: key for encoded, key in self._stored.all_keys() if key not in self._held}
        return iter([keys[encoded] for encoded in sorted(keys)])

    def __len__(self) -> int:
        """The number of rows."""
        count = sum(value is not ABSENT for value in self._held.values())
        if self._stored is None:
            return count
        return count + sum(key not in self._held for _, key in self._stored.all_keys())

    def clear(self) -> None:
        """Remove all rows."""
        for key in self:
            del self[key]

    def __repr__(self) -> str:
        """The rows that are in memory."""
        return f"Rows({list_held_rows(self)})"

    def _look(self, key: K) -> V | Absent:
        value = self._held.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        if self._stored is None:
            return ABSENT
        value = self._stored.get(key)
        self._held[key] = value  # also an absent row: it is searched once
        return value


class TableState(MapState[K, V]):
    """The table of a ready fold whose hooks are the library's own: a dict for its declaration, stored row by row.

    No code of a user holds it, only rows of it. So unlike those of a `MapState` these may be changed in place: a row
    that was read is compared with its stored bytes. Keys may be numbers with several spellings (number_keys.py).
    """

    __slots__ = ("_notes_reads",)

    def __init__(self, rows: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        """A table with these rows, all of them new."""
        super().__init__(rows)
        self._notes_reads = False

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    @override
    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        value = self._held.get(key, _UNKNOWN)
        if value is _UNKNOWN or self._notes_reads:
            value = self._look(key)
        return default if value is ABSENT else cast("V", value)

    @override
    def __iter__(self) -> Iterator[K]:
        rows = self.read_rows()
        return iter(sorted(rows, key=_encode_canonical))

    def read_rows(self) -> dict[K, V]:
        """All rows, those that are not in memory by one pass over the stored ones; in no order."""
        if self._stored is not None:
            self._held.update(self._stored.read_others(self._held))
        return {key: cast("V", row) for key, row in self._held.items() if row is not ABSENT}

    @override
    def _look(self, key: K) -> V | Absent:
        if self._notes_reads:
            self._changed[key] = None
        return super()._look(key)


def _encode_canonical(key: object) -> bytes:
    return _ENCODER.encode(make_canonical_key(key))


def make_table(rows: dict[K, V]) -> TableState[K, V]:
    """A table whose rows are those of a dict, without a copy of it."""
    table = TableState[K, V]()
    setattr(table, _HELD, rows)
    return table


def list_held_rows(rows: MapState[K, V]) -> dict[K, V]:
    """The rows that are in memory."""
    in_memory = cast("Mapping[K, V | Absent]", getattr(rows, _HELD))
    return {key: cast("V", row) for key, row in in_memory.items() if row is not ABSENT}


def is_table_type(declared: object) -> bool:
    """Whether a type is a table that is stored row by row."""
    return (get_origin(declared) or declared) in _TABLES


_TABLES: tuple[Any, ...] = (MapState, TableState)


def bind(rows: MapState[K, V], stored: StoredRows[K, V]) -> None:
    """Bind a table to stored rows: lockstep's side of the class. Rows that it has, as those of a default, are new."""
    _set_stored(rows, stored)
    getattr(rows, _CHANGED).update(dict.fromkeys(getattr(rows, _HELD)))


def bind_saved(rows: MapState[K, V], stored: StoredRows[K, V]) -> None:
    """Bind a table whose rows in memory are all stored, such as one that an earlier range has saved."""
    _set_stored(rows, stored)
    getattr(rows, _CHANGED).clear()


def _set_stored(rows: MapState[K, V], stored: StoredRows[K, V]) -> None:
    setattr(rows, _STORED, stored)
    if isinstance(rows, TableState):
        setattr(rows, _NOTES_READS, stored.notes_reads)


def to_stored(rows: MapState[K, V]) -> StoredRows[K, V] | None:
    """The stored rows that a table is bound to; None for one made by a fold."""
    return cast("StoredRows[K, V] | None", getattr(rows, _STORED))


def find_changed_rows(rows: MapState[K, V]) -> Iterator[tuple[K, V | Absent]]:
    """The rows that were assigned or deleted since the table was bound."""
    in_memory = cast("Mapping[K, V | Absent]", getattr(rows, _HELD))
    changed = cast("Iterable[K]", getattr(rows, _CHANGED))
    return ((key, in_memory[key]) for key in changed)
