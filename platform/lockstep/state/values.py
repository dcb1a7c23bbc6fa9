"""Stored values: type tags and map entries.

A value without a tag is of the segment header's `plain` schema: the schema that started the chain, including all
compatible changes (model/compatibility.py). After an incompatible change, values of the
new type are on top of old values in the same chain, so they carry a tag: a byte that starts no msgpack value,
and the hash of their schema. The next base writes values of the current type without a tag and tags the others,
so that untouched values are carried on unchanged, and are migrated when they are touched.

A row's key is 0xf9, the session, 0xff, the field's name, 0xff, the row's key in msgpack: no byte of a session or
a name is 0xff, so that the rows of one session, and of one of its tables, are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from lockstep.model.map_state import (
    ABSENT,
    Absent,
    MapState,
    bind,
    bind_saved,
    find_changed_rows,
    make_table,
    to_stored,
)
from lockstep.model.number_keys import make_canonical_key
from lockstep.model.state_types import RowsType, StateTypeSchema, hash_of_type_schema, to_untyped
from lockstep.model.storable import StorableType
from lockstep.state.changelog import SegmentHeader
from lockstep.state.entry_order import Change, make_prefix_removal

MARK = 0xC1
"""The only byte that msgpack never uses."""
MARK_BYTES = 17
RESERVED_FROM = 0xF8
ROWS = 0xF9
"""No session starts with a byte from 0xf8 on (UTF-8 has none); rows of tables are under 0xf9. Keys under
the others are lockstep's own and have no state type."""


class StateTypeVersions(msgspec.Struct, frozen=True):
    """The schemas of the values of one partition.

    Attributes:
        plain: Hash of the schema of values without a tag.
        shapes: All schemas that values may have, by hash.
        tagged: Hashes that a tag may have; that of values without a tag may be among them.
    """

    plain: str
    shapes: dict[str, StateTypeSchema]
    tagged: tuple[str, ...] = ()


def read_versions(header: SegmentHeader) -> StateTypeVersions:
    """The schemas of the values in a header's chain."""
    older = {hash_of_type_schema(shape): shape for shape in header.older}
    named = {header.shape_hash: header.shape} | older
    if header.plain is None:
        return StateTypeVersions(header.shape_hash, named, tuple(older))
    plain = hash_of_type_schema(header.plain)
    return StateTypeVersions(plain, named | {plain: header.plain}, tuple(dict.fromkeys((header.shape_hash, *older))))


def is_session(key: bytes) -> bool:
    """Whether an entry is a session's own."""
    return key[:1] < bytes([RESERVED_FROM])


def is_typed(key: bytes) -> bool:
    """Whether an entry is of the state type, or of a part of it."""
    return is_session(key) or key[0] == ROWS


def make_type_tag(hashed: str) -> bytes:
    """The type tag before a value."""
    return bytes([MARK]) + bytes.fromhex(hashed)


def split_type_tag(value: bytes) -> tuple[str | None, bytes]:
    """The hash of a value's tag, if it has one, and the value."""
    if value[0] != MARK:
        return None, value
    return value[1:MARK_BYTES].hex(), value[MARK_BYTES:]


class BaseRewriter:
    """Rewrites values for a base: those of the current type without a tag, all others with theirs.

    Attributes:
        is_other: Whether the bytes of any value changed, once all entries have been taken.
    """

    def __init__(self, stored: StateTypeVersions, plain: str, current: str, *, is_plain: bool) -> None:
        """Read values of these schemas.

        Args:
            stored: The schemas of the stored values.
            plain: The hash assumed for a value without a tag: the current hash if the current type reads it.
            current: Hash of the current schema.
            is_plain: No value has a tag, and none needs one.
        """
        self._stored = stored
        self._plain = plain
        self._current = current
        self._is_plain = is_plain
        self._carried: set[str] = set()
        self.is_other = False

    @property
    def older(self) -> tuple[StateTypeSchema, ...]:
        """Schemas of rewritten values, other than the current one."""
        return tuple(self._stored.shapes[hashed] for hashed in sorted(self._carried))

    def carry(self, entries: Iterable[Change]) -> Iterable[Change]:
        """The entries of the base."""
        if self._is_plain:  # mostly: no value is parsed
            return entries
        return self._carry(entries)

    def _carry(self, entries: Iterable[Change]) -> Iterator[Change]:
        for key, value in entries:
            if value is None or not is_typed(key):
                yield key, value
                continue
            carried = self._value(value)
            self.is_other |= len(carried) != len(value)  # a tag was added or removed
            yield key, carried

    def _value(self, stored: bytes) -> bytes:
        marked, value = split_type_tag(stored)
        hashed = marked or self._plain
        if hashed == self._current:
            return value
        self._carried.add(hashed)
        return make_type_tag(hashed) + value


K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")

_END = b"\xff"
_ENCODER = msgspec.msgpack.Encoder()


class Entries(Protocol):
    """The stored entries of a partition."""

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one."""
        ...

    def scan(self, prefix: bytes) -> Iterable[tuple[bytes, bytes]]:
        """All entries by key prefix."""
        ...


class MapField(Generic[K, V]):
    """One table of a state type, ready to encode and decode. Made once per process and stream."""

    def __init__(self, declared: RowsType) -> None:
        self.attribute = declared.attribute
        self.name = declared.name
        self.key_of: Callable[[bytes], K] = msgspec.msgpack.Decoder(declared.key).decode
        self.row_of: Callable[[bytes], V] = msgspec.msgpack.Decoder(declared.value).decode
        self.encode = _ENCODER.encode
        self.encode_key: Callable[[object], bytes] = _encode_canonical if declared.has_number_keys else self.encode
        self.notes_reads = declared.has_mutable_rows
        self._key = StorableType(declared.key, is_key=True)
        self._row = StorableType(declared.value)
        self.is_key = self._key.holds
        self.is_row = self._row.holds
        self._end = self.name.encode() + _END

    def of(self, state: object) -> object:
        """The table in a state; None before the state's snapshot is complete."""
        return getattr(state, self.attribute, None) if self.attribute else state

    def fill(self, state: object, made: object) -> None:
        """Fill the empty table of a state with the rows of another state's, encoded and decoded: all of them new."""
        table = self.of(state)
        other = self.of(made)
        if isinstance(table, MapState) and isinstance(other, (MapState, dict)):
            rows = [(self.encode_key(key), self.encode(row)) for key, row in other.items()]
            table.update((self.key_of(key), self.row_of(row)) for key, row in rows)

    def check(self, key: object, row: object) -> None:
        """Refuse a row that would be loaded as another value.

        Raises:
            ValueError: Its key or its values are not exactly of the declared types.
        """
        path = self.attribute or "the state"
        if not self._key.holds(key):
            raise ValueError(self._key.find(key, f"a key of {path}"))
        if row is not ABSENT and not self._row.holds(row):
            raise ValueError(self._row.find(row, f"{path}[{key!r}]"))

    def prefix(self, session: bytes) -> bytes:
        """The key prefix of a session's rows."""
        return make_session_prefix(session) + self._end


ROW_BYTES = 400
"""Objects and dict slots of a decoded row, with its key and its stored bytes, besides the bytes themselves."""


class RowReads:
    """Counts the rows that were read in a range.

    Attributes:
        bytes: Their encoded bytes.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def take(self) -> int:
        """The bytes since the last call."""
        taken = self.bytes
        self.bytes = 0
        return taken


class _Stored(Generic[K, V]):
    """The stored rows of one table of one session.

    Attributes:
        prefix: Prefix of their keys.
        notes_reads: See `StoredRows`.
        held_bytes: Bytes of the rows in memory, those that are known to be absent included; about.
    """

    def __init__(self, field: MapField[K, V], session: bytes, entries: Entries, reads: RowReads) -> None:
        self._field = field
        self._entries = entries
        self._reads = reads
        self.prefix = field.prefix(session)
        self.notes_reads = field.notes_reads
        self._rows: dict[bytes, bytes | None] = {}
        self._written: dict[bytes, bytes | None] = {}
        self.held_bytes = 0

    def is_of(self, prefix: bytes, entries: Entries) -> bool:
        """Whether these are the rows under a prefix, of a range."""
        return self.prefix == prefix and self._entries is entries

    def move(self, entries: Entries, reads: RowReads) -> None:
        """Read from the entries of the next range; the rows in memory are the same."""
        self._entries = entries
        self._reads = reads

    def note_saved(self) -> None:
        """Take the written rows for the stored ones."""
        rows = self._rows
        for key, row in self._written.items():
            previous = rows.get(key, _NOTHING)
            self.held_bytes += len(row or b"") - len(previous or b"")
            if previous is _NOTHING:
                self.held_bytes += ROW_BYTES + 2 * len(key)
        rows |= self._written
        self._written.clear()

    def write_all(self, entries: Mapping[bytes, bytes]) -> None:
        """Note the entries of a table that replaces the rows."""
        start = len(self.prefix)
        self._written = {key[start:]: row for key, row in entries.items()}

    def list_changes(self, table: MapState[K, V], mark: bytes) -> Iterator[Change]:
        """The entries of assigned and deleted rows whose bytes differ from the stored ones."""
        field = self._field
        written = self._written
        find_stored = self._rows.get
        for key, row in find_changed_rows(table):
            if not (field.is_key(key) and (row is ABSENT or field.is_row(row))):
                field.check(key, row)
            encoded = field.encode_key(key)
            value = None if row is ABSENT else mark + field.encode(row)
            written[encoded] = value
            if find_stored(encoded, _NOTHING) != value:
                yield self.prefix + encoded, value

    def get(self, key: K) -> V | Absent:
        """One row, decoded.

        A key of another type finds what equals it, as in a dict: `rows[True]` is `rows[1]`.
        """
        if not self._field.is_key(key):
            equal = [stored for _, stored in self.all_keys() if stored == key]
            return self.get(equal[0]) if equal else ABSENT
        encoded = self._field.encode_key(key)
        value = self._entries.get(self.prefix + encoded)
        self._note(encoded, value)
        if value is None:
            return ABSENT
        return self._field.row_of(split_type_tag(value)[1])

    def all_keys(self) -> Iterator[tuple[bytes, K]]:
        """All keys, encoded and decoded."""
        start = len(self.prefix)
        for key, _ in self._entries.scan(self.prefix):
            yield key[start:], self._field.key_of(key[start:])

    def read_others(self, held: Container[K]) -> Iterator[tuple[K, V]]:
        """All rows whose keys are not in memory, decoded."""
        start = len(self.prefix)
        for prefixed, value in self._entries.scan(self.prefix):
            encoded = prefixed[start:]
            key = self._field.key_of(encoded)
            if key not in held:
                self._note(encoded, value)
                yield key, self._field.row_of(split_type_tag(value)[1])

    def _note(self, key: bytes, row: bytes | None) -> None:
        """Record the stored bytes of a row that is in memory, by its encoded key."""
        size = len(row or b"")
        self._reads.bytes += len(key) + size
        previous = self._rows.get(key, _NOTHING)
        self.held_bytes += size - len(previous or b"")
        if previous is _NOTHING:
            self.held_bytes += ROW_BYTES + 2 * len(key)
        self._rows[key] = row


_NOTHING = b""
"""No row is encoded as this."""


class MapStateStore:
    """Binds the tables of states to the stored rows, and finds their changes.

    Attributes:
        reads: The rows that were read.
    """

    def __init__(self, fields: tuple[MapField[Any, Any], ...], entries: Entries) -> None:
        self._fields = fields
        self._entries = entries
        self.reads = RowReads()
        self._replacing: dict[bytes, _Stored[Any, Any]] = {}

    def bind(self, session: bytes, state: object) -> None:
        """Bind the tables of a newly decoded state to the stored rows."""
        for field in self._fields:
            table = field.of(state)
            if isinstance(table, MapState):
                bind(table, _Stored(field, session, self._entries, self.reads))

    def keep(self, session: bytes, state: S) -> tuple[S, int]:
        """Bind the tables of a state that has just been saved to their stored rows.

        Returns:
            The state, whose dict in place of a table is that table, and the bytes of rows in memory.
        """
        held_bytes = 0
        for field in self._fields:
            table = field.of(state)
            prefix = field.prefix(session)
            if type(table) is dict:  # a ready fold's state, which is the table itself
                state = cast("Any", make_table(table))
                table = state
            if not isinstance(table, MapState):
                continue
            stored = self._find_stored(table, prefix) or self._replacing.pop(prefix, None)
            if stored is None:
                raise AssertionError(f"the table {field.name!r} of session {session!r} was not encoded")
            stored.note_saved()
            bind_saved(table, stored)
            held_bytes += stored.held_bytes
        return state, held_bytes

    def forget(self) -> None:
        """Forget the tables of states that have moved to the local disk."""
        self._replacing.clear()

    def take(self, session: bytes, state: object) -> None:
        """Let the tables of a state that an earlier range has kept read from the entries of this range."""
        for field in self._fields:
            table = field.of(state)
            stored = to_stored(table) if isinstance(table, MapState) else None
            if isinstance(stored, _Stored):
                stored.move(self._entries, self.reads)

    def _find_stored(self, table: MapState[Any, Any], prefix: bytes) -> _Stored[Any, Any] | None:
        """The rows of this range that a table is bound to; None without."""
        stored = to_stored(table)
        if isinstance(stored, _Stored) and stored.is_of(prefix, self._entries):
            return stored
        return None

    def old_rows(self, session: bytes, name: str, shape: StateTypeSchema) -> dict[object, object]:
        """The rows of a table of an older state type, without types."""
        key_shape, row_shape = shape.items
        prefix = make_session_prefix(session) + name.encode() + _END
        rows = dict[object, object]()
        for entry_key, value in self._entries.scan(prefix):
            key = to_untyped(msgspec.msgpack.decode(entry_key[len(prefix) :]), key_shape)
            row = to_untyped(msgspec.msgpack.decode(split_type_tag(value)[1]), row_shape)
            rows[_hashable(key)] = row
        return rows

    def changes(self, session: bytes, state: object, mark: bytes, *, is_migrated: bool) -> Iterator[Change]:
        """The changes of a fold in the tables of a state.

        Raises:
            TypeError: A table was replaced by an object that is not a MapState.
        """
        entries: dict[bytes, bytes] = {}
        replaced: list[bytes] = []
        for field in () if state is None else self._fields:
            table = field.of(state)
            prefix = field.prefix(session)
            if not isinstance(table, (MapState, dict)) or (isinstance(table, dict) and field.attribute):
                raise TypeError(f"{field.attribute or 'the state'} is a {type(table).__name__}, not Rows")
            stored = self._find_stored(table, prefix) if isinstance(table, MapState) else None
            if stored is not None and not is_migrated:
                yield from stored.list_changes(cast("MapState[Any, Any]", table), mark)
            else:
                replaced.append(prefix)
                entries |= self._encode_whole(field, session, table, mark)
        if is_migrated or state is None:  # tables that the type no longer has are removed, too
            replaced = [make_session_prefix(session)]
        for prefix in replaced:
            yield from self._difference(prefix, entries)
        yield from entries.items()

    def _encode_whole(
        self, field: MapField[K, V], session: bytes, table: Mapping[K, V], mark: bytes
    ) -> dict[bytes, bytes]:
        """The entries of a table that replaces the stored one; notes its rows for `keep`."""
        stored = _Stored(field, session, self._entries, self.reads)
        self._replacing[stored.prefix] = stored
        entries: dict[bytes, bytes] = {}
        for key, row in table.items():
            field.check(key, row)
            entries[stored.prefix + field.encode_key(key)] = mark + field.encode(row)
        stored.write_all(entries)
        return entries

    def removals(self, session: bytes) -> Iterator[Change]:
        """The removal of all rows of a session."""
        return self._difference(make_session_prefix(session), {})

    def _difference(self, prefix: bytes, entries: dict[bytes, bytes]) -> Iterator[Change]:
        """Removals of stored rows that a new table lacks; equal rows are not written again, unless all are removed."""
        stored = dict(self._entries.scan(prefix))
        removed = [key for key in stored if key not in entries]
        equal = [key for key, value in entries.items() if stored.get(key) == value]
        # One removal of all costs the equal rows, which are then written again.
        if sum(map(len, removed)) > len(prefix) + sum(len(key) + len(entries[key]) for key in equal):
            yield make_prefix_removal(prefix)
            return
        for key in equal:
            del entries[key]
        for key in removed:
            yield key, None


def make_session_prefix(session: bytes) -> bytes:
    """The key prefix of all rows of a session."""
    return bytes([ROWS]) + session + _END


def _encode_canonical(key: object) -> bytes:
    return _ENCODER.encode(make_canonical_key(key))


def _hashable(key: object) -> object:
    if isinstance(key, (list, tuple)):
        return tuple(map(_hashable, key))
    return key
