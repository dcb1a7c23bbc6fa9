"""The tables inside the states of one partition, stored as an entry a row.

A row's key is 0xf9, the session, 0xff, the field's name, 0xff, the row's key in msgpack: no byte of a session or
a name is 0xff, so that the rows of one session, and of one of its tables, lie together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from lockstep.declare.rows import ABSENT, Absent, Rows, bind, changed_rows, stored_of
from lockstep.state.builtins import as_builtins
from lockstep.state.rowtypes import RowsType
from lockstep.state.section import Change
from lockstep.state.shape import Shape
from lockstep.state.versions import ROWS, parted

K = TypeVar("K")
V = TypeVar("V")

_END = b"\xff"
_ENCODER = msgspec.msgpack.Encoder()


class Entries(Protocol):
    """What is stored of a partition."""

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one."""
        ...

    def scan(self, prefix: bytes) -> Iterable[tuple[bytes, bytes]]:
        """All entries whose keys begin so."""
        ...


class RowsField(Generic[K, V]):
    """One table of a state type, ready to encode and decode. Made once per process and stream."""

    def __init__(self, declared: RowsType) -> None:
        self.attribute, self.name = declared.attribute, declared.name
        self.key_of: Callable[[bytes], K] = msgspec.msgpack.Decoder(declared.key).decode
        self.row_of: Callable[[bytes], V] = msgspec.msgpack.Decoder(declared.value).decode
        self.encode = _ENCODER.encode
        self._end = self.name.encode() + _END

    def of(self, state: object) -> object:
        """The table in a state; None in a state that is on its way."""
        return getattr(state, self.attribute, None) if self.attribute else state

    def fill(self, state: object, made: object) -> None:
        """Fill the empty table of a state with the rows of another state's, encoded and decoded: all of them new."""
        table, other = self.of(state), self.of(made)
        if isinstance(table, Rows) and isinstance(other, Rows):
            table.update({self.key_of(self.encode(key)): self.row_of(self.encode(row)) for key, row in other.items()})

    def prefix(self, session: bytes) -> bytes:
        """What the keys of a session's rows begin with."""
        return session_prefix(session) + self._end


class _Stored(Generic[K, V]):
    """The stored rows of one table of one session."""

    def __init__(self, field: RowsField[K, V], session: bytes, entries: Entries) -> None:
        self._field, self._entries = field, entries
        self.prefix = field.prefix(session)

    def get(self, key: K) -> V | Absent:
        """One row, decoded."""
        value = self._entries.get(self.prefix + self._field.encode(key))
        return ABSENT if value is None else self._field.row_of(parted(value)[1])

    def all_keys(self) -> Iterator[tuple[bytes, K]]:
        """All keys, encoded and decoded."""
        begin = len(self.prefix)
        for key, _ in self._entries.scan(self.prefix):
            yield key[begin:], self._field.key_of(key[begin:])


class RowStore:
    """Binds the tables of states to what is stored, and finds what changed in them."""

    def __init__(self, fields: tuple[RowsField[Any, Any], ...], entries: Entries) -> None:
        self._fields, self._entries = fields, entries

    def bind(self, session: bytes, state: object) -> None:
        """Let the tables of a state that was just decoded stand for the stored rows."""
        for field in self._fields:
            table = field.of(state)
            if isinstance(table, Rows):
                bind(table, _Stored(field, session, self._entries))

    def old_rows(self, session: bytes, name: str, shape: Shape) -> dict[object, object]:
        """The rows of a table of an older state type, without types."""
        key_shape, row_shape = shape.items
        prefix = session_prefix(session) + name.encode() + _END
        return {
            _hashable(as_builtins(msgspec.msgpack.decode(key[len(prefix) :]), key_shape)): as_builtins(
                msgspec.msgpack.decode(parted(value)[1]), row_shape
            )
            for key, value in self._entries.scan(prefix)
        }

    def changes(self, session: bytes, state: object, mark: bytes, *, is_migrated: bool) -> Iterator[Change]:
        """What a fold changed in the tables of a state.

        Raises:
            TypeError: A table was replaced by something else than Rows.
        """
        whole: dict[bytes, bytes] = {}
        replaced: list[RowsField[Any, Any]] = []
        for field in self._fields if state is not None else ():
            table, prefix = field.of(state), field.prefix(session)
            if not isinstance(table, Rows):
                raise TypeError(f"{field.attribute or 'the state'} is a {type(table).__name__}, not Rows")
            stored = stored_of(table)
            if not is_migrated and isinstance(stored, _Stored) and self._is_own(stored, prefix):
                yield from _changed(field, prefix, table, mark)
            else:
                replaced.append(field)
                whole |= {prefix + field.encode(key): mark + field.encode(row) for key, row in table.items()}
        is_whole = is_migrated or state is None
        prefixes = [session_prefix(session)] if is_whole else [field.prefix(session) for field in replaced]
        for prefix in prefixes:
            yield from self._difference(prefix, whole)
        yield from whole.items()

    def removals(self, session: bytes) -> Iterator[Change]:
        """The removal of all rows of a session."""
        return ((key, None) for key, _ in self._entries.scan(session_prefix(session)))

    def _is_own(self, stored: _Stored[Any, Any], prefix: bytes) -> bool:
        return stored.prefix == prefix and stored._entries is self._entries  # noqa: SLF001  # both of this module

    def _difference(self, prefix: bytes, whole: dict[bytes, bytes]) -> Iterator[Change]:
        """Stored rows that a new table has not; those that it has as they are need not be written."""
        for key, value in self._entries.scan(prefix):
            if key not in whole:
                yield key, None
            elif whole[key] == value:
                del whole[key]


def session_prefix(session: bytes) -> bytes:
    """What the keys of all rows of a session begin with."""
    return bytes([ROWS]) + session + _END


def _changed(field: RowsField[Any, Any], prefix: bytes, table: Rows[Any, Any], mark: bytes) -> Iterator[Change]:
    for key, row in changed_rows(table):
        yield prefix + field.encode(key), None if row is ABSENT else mark + field.encode(row)


def _hashable(key: object) -> object:
    return tuple(map(_hashable, key)) if isinstance(key, (list, tuple)) else key
