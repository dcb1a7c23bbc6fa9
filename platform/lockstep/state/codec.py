"""Encodes and decodes session state; migrates older types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

import msgspec

from lockstep.errors import StateError
from lockstep.integrity.gate_states import GateState
from lockstep.model.aliases import find_alias
from lockstep.model.compatibility import Incompatibility, find_incompatibilities
from lockstep.model.map_state import MapState, TableState, is_table_type, make_table
from lockstep.model.position import TopicIdPartition
from lockstep.model.state_types import (
    StateTypeSchema,
    find_map_types,
    hash_of_type_schema,
    make_type_schema,
    to_untyped,
)
from lockstep.model.storable import StorableType
from lockstep.state.changelog import SegmentHeader, StateDamaged
from lockstep.state.values import (
    BaseRewriter,
    MapField,
    StateTypeVersions,
    make_type_tag,
    read_versions,
    split_type_tag,
)

S = TypeVar("S")
SHOWN = 500
"""Characters of a state that an error shows."""
Migrate = Callable[[Mapping[str, object]], S]
"""`Transform.migrate`: the current state from one that an older release of the stream wrote."""


class StateTypeChanged(StateError):
    """State was stored with another state type, and the change is incompatible.

    Attributes:
        where: The segment of the state.
        differences: What differs, field by field.
    """

    def __init__(self, where: str, found: tuple[Incompatibility, ...]) -> None:
        lines = "\n".join(f"  {difference}" for difference in found)
        super().__init__(
            f"{where} was written by another state type:\n{lines}",
            next_step=(
                "keep the stored fields and give new fields a default, or override migrate(old) of the transform; or, "
                "to read everything again into a new table, move the stream's folder under table_root away, then: "
                "lockstep reset STREAM"
            ),
        )
        self.where = where
        self.differences = found


class IntegrityClassChanged(StateError):
    """State may hold buffered messages that the declared integrity class would never apply.

    Attributes:
        where: The segment of the state.
        stored: How the class that wrote it buffers messages.
    """

    def __init__(self, where: str, stored: str) -> None:
        super().__init__(
            f"{where} was written by an integrity class with {stored}: messages that it has buffered would be lost",
            next_step=(
                f"keep {stored} in the declaration; or, to read everything again with another class into a new table, "
                "move the stream's folder under table_root away, then: lockstep reset STREAM"
            ),
        )
        self.where = where
        self.stored = stored


class StateNotOfItsType(StateError):
    """A fold left a state that its declared type cannot hold.

    Attributes:
        session: The session.
        reason: msgspec's error text.
        is_of_value: A value cannot be stored, or would be loaded as another value, such as an integer of 70 bits or a
            time in another zone than UTC: a message is to blame.
        partition: The partition, as (topic id, number), if several sessions were encoded.
        sessions: All sessions of the partition whose states have such values.
    """

    def __init__(self, session: str, reason: str, *, next_step: str, is_of_value: bool = False) -> None:
        problem = f"the fold left a state of session {session!r} that its type cannot hold: {reason}"
        super().__init__(problem, next_step=next_step)
        self.session = session
        self.reason = reason
        self.is_of_value = is_of_value
        self.partition: TopicIdPartition | None = None
        self.sessions: frozenset[str] = frozenset()


class MigrationFailed(StateError):
    """The transform's `migrate` failed on a stored state.

    Attributes:
        session: The session.
        reason: Its exception, or the problem of its result.
        old: Its argument.
    """

    def __init__(self, session: str, reason: str, old: object) -> None:
        super().__init__(
            f"migrate() failed on the stored state of session {session!r}: {reason}; it was given {str(old)[:SHOWN]}",
            next_step="fix migrate(); nothing of this batch was committed, the next start continues from there",
        )
        self.session = session
        self.reason = reason
        self.old = old


NOT_COMMITTED = "fix the fold; nothing of this batch was committed, the next start folds it again"
EXAMINED_FIRST = 64
EXAMINED_EVERY = 1_024
"""States of a process that are examined for one object in two places: a fold makes it alike in all. To examine one
takes up to a millisecond, which is too much for each state of each batch."""


class StateSchema(Generic[S]):
    """The state type of a stream, ready to encode and decode. Make one per process and stream.

    Attributes:
        shape: Its schema; stored with every segment.
        hash: Short name of the schema.
        tables: The tables in it that are stored row by row.
        migrate: Converts a state of an incompatible older type; None without such a hook.
        buffers: How the integrity class buffers messages; stored with every segment, empty if it does not.
    """

    def __init__(self, state_type: object, migrate: Migrate[S] | None = None, buffers: str = "") -> None:
        """Build the codec of a state type.

        Raises:
            DeclarationError: The type cannot be saved and recovered.
        """
        self._type = StorableType(state_type)
        self._is_table = get_origin(state_type) is TableState
        self._is_storable = _is_table if self._is_table else self._type.holds
        self.shape = make_type_schema(state_type)
        self.hash = hash_of_type_schema(self.shape)
        self.buffers = buffers
        self.migrate = migrate
        self._differences: dict[str, tuple[Incompatibility, ...]] = {self.hash: ()}
        self._encoded = 0
        self.tables: tuple[MapField[Any, Any], ...] = tuple(map(MapField, find_map_types(state_type)))
        # Without tables no hook is needed: a foreign object left by a fold is a separate error.
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_as_nothing if self.tables else None)
        # None: the multipart snapshot that opens the session is not complete.
        stored = tuple[GateState, state_type | None]  # type: ignore[valid-type]  # made at run time
        encoded_gate = tuple[msgspec.Raw, state_type | None]  # type: ignore[valid-type]  # as above
        hook = _as_table if self.tables else None
        self._decoder = msgspec.msgpack.Decoder(stored, dec_hook=hook)
        self._apart = msgspec.msgpack.Decoder(encoded_gate, dec_hook=hook)
        self._dict = msgspec.msgpack.Decoder(dict[get_args(state_type)] if self._is_table else dict[Any, Any])  # type: ignore[misc]  # at run time
        self._whole = msgspec.msgpack.Decoder(state_type, dec_hook=hook)

    def encode(self, session: str, gate: object, state: S) -> bytes:
        """The stored value of a session: msgpack of [state of the gate, user's state].

        Raises:
            StateNotOfItsType: The state contains a value that cannot be stored, or would be loaded as another value.
        """
        # The rows of a table are separate entries: in the value True stands for it.
        value = True if self._is_table and state is not None else state
        try:
            encoded = self._encoder.encode((gate, value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise make_encoding_error(session, self._type.find(state) or str(error)) from error
        if state is not None and not self._is_storable(state):
            raise make_encoding_error(session, self._type.find(state))
        return encoded

    def examine(self, session: str, state: S) -> None:
        """Refuse a state in which one object is in two places: it would be loaded as two.

        Raises:
            StateNotOfItsType: An object that can be changed is in two places.
        """
        alias = find_alias(state)
        if alias:
            raise StateNotOfItsType(session, alias, next_step=NOT_COMMITTED)

    def examine_some(self, session: str, state: S) -> None:
        """Examine the first states of the process, and some of the others. Raises as `examine` does."""
        self._encoded += 1
        if self._encoded <= EXAMINED_FIRST or self._encoded % EXAMINED_EVERY == 0:
            self.examine(session, state)

    def decode(self, session: str, stored: bytes) -> tuple[GateState, S]:
        """The state of the gate and the user's state of a stored value, as new objects.

        Raises:
            StateNotOfItsType: The user's state is not of the declared type.
            StateDamaged: The state of the gate is none of `GateState`.
        """
        try:
            return cast("tuple[GateState, S]", self._decoder.decode(stored))
        except msgspec.DecodeError as error:
            raise _make_decoding_error(session, error) from error

    def decode_apart(self, session: str, stored: bytes) -> tuple[bytes, S]:
        """The encoded state of the gate, and the user's state. Raises StateNotOfItsType as `decode` does."""
        try:
            gate, state = self._apart.decode(stored)
        except msgspec.DecodeError as error:
            raise _make_decoding_error(session, error) from error
        return bytes(gate), cast("S", state)

    def encode_migrated(self, session: str, made: S, old: object) -> tuple[bytes, S]:
        """The result of `migrate`, encoded without a gate; and as it is loaded again, with its tables.

        Raises:
            MigrationFailed: It is not of the declared type.
        """
        if self._is_table and type(made) is dict:
            made = cast("S", make_table(cast("dict[Any, Any]", made)))
        try:
            self._check_tables(made)
            encoded = self._encoder.encode(made)
            state: S = self._whole.decode(encoded)
            self.put_tables(state, made)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise MigrationFailed(session, f"its result is not of the state type: {error}", old) from error
        return encoded, state

    def _check_tables(self, made: S) -> None:
        """Refuse other objects in place of tables: in an encoded state every table is a placeholder."""
        for table in self.tables:
            value = table.of(made)
            if not isinstance(value, MapState):
                raise TypeError(f"{table.attribute or 'the state'} is a {type(value).__name__}, not a MapState")

    def put_tables(self, state: S, made: object) -> None:
        """Put the tables of a state into the same state, encoded and decoded."""
        for table in self.tables:
            table.fill(state, made)

    def recovered(self, session: str, gate: object, state: S) -> S:
        """A state as loaded after it was saved: a new object; the table of a ready fold as the dict of its declaration.

        Raises:
            StateNotOfItsType: It cannot be saved, or is not of the declared type.
        """
        encoded = self.encode(session, gate, state)
        self.examine(session, state)
        _, loaded = self.decode(session, encoded)
        self.put_tables(loaded, state)
        if isinstance(loaded, TableState):
            return cast("S", dict(loaded.items()))
        return loaded

    def reads(self, stored_hash: str, stored: StateTypeSchema) -> bool:
        """Whether state of another schema is read as this type, without a migration."""
        return not self.differing(stored_hash, stored)

    def accept_buffers(self, stored: str, where: str) -> None:
        """Accept state that holds no buffered messages, or those of a class that buffers in the same way.

        Raises:
            IntegrityClassChanged: The declared class would never apply them.
        """
        if stored not in {"", self.buffers}:
            raise IntegrityClassChanged(where, stored)

    def accept(self, shapes: Mapping[str, StateTypeSchema], where: str) -> None:
        """Accept state of other schemas, if this type can read it or has a `migrate`.

        Args:
            shapes: The schemas, by hash.
            where: Their location, for the error.

        Raises:
            StateTypeChanged: It cannot.
        """
        for stored_hash, stored in shapes.items():
            if self.migrate is not None or self.is_layout(stored):
                continue
            differences = self.differing(stored_hash, stored)
            if differences:
                raise StateTypeChanged(where, differences)

    def is_layout(self, stored: StateTypeSchema) -> bool:
        """Whether state of another schema is this table in its other layout: whole, or row by row."""
        if {stored.kind, self.shape.kind} != {"rows", "dict"}:
            return False
        return not find_incompatibilities(msgspec.structs.replace(stored, kind=self.shape.kind), self.shape)

    def lay_out(self, whole: bytes) -> tuple[bytes, S]:
        """Encode and decode a table in this layout, from the encoded dict of the other layout.

        Raises:
            msgspec.DecodeError: It is not of the declared type.
        """
        if not self._is_table:
            return whole, self._whole.decode(whole)
        return self._encoder.encode(True), cast("S", make_table(self._dict.decode(whole)))  # noqa: FBT003  # a value

    def differing(self, stored_hash: str, stored: StateTypeSchema) -> tuple[Incompatibility, ...]:
        """Why state of another schema cannot be read as this type; empty when it can."""
        if stored_hash not in self._differences:
            self._differences[stored_hash] = find_incompatibilities(stored, self.shape)
        return self._differences[stored_hash]


def _make_decoding_error(session: str, error: msgspec.DecodeError) -> StateError:
    """The error of a stored value, by the part that cannot be decoded."""
    if _IN_GATE in str(error):
        return StateDamaged(f"session {session!r}", "the state of a gate", f"another value: {error}")
    step = (
        "declare the field with the type that the fold left there; or fix the fold, and go back to before the "
        "message that left it: lockstep rewind STREAM --to BATCH --why ..."
    )
    return StateNotOfItsType(session, str(error), next_step=step)


_IN_GATE = "`$[0]"
"""In msgspec's text of an error: the path into the first element."""


def make_encoding_error(session: str, reason: str) -> StateNotOfItsType:
    """The error of a state with a value that cannot be stored: its message is to blame."""
    return StateNotOfItsType(session, reason, next_step=NOT_COMMITTED, is_of_value=True)


def _is_table(state: object) -> bool:
    """Whether a state is the table of a ready fold: a dict until it is stored first. Its rows are checked apart."""
    return isinstance(state, (TableState, dict))


def _as_nothing(value: object) -> bool:
    """Encode a table as a placeholder, which must not be nil: its rows are separate entries."""
    if not isinstance(value, MapState):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return True


def _as_table(declared: object, value: object) -> object:
    """An empty table, to be bound to the stored rows."""
    if not is_table_type(declared):
        return value
    return cast("type[object]", get_origin(declared) or declared)()


_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ENCODER = msgspec.msgpack.Encoder()
_NIL = b"\xc0"


_AS_STORED = StateTypeSchema("rows", items=(StateTypeSchema("any"), StateTypeSchema("any")))
"""A table whose keys and rows are taken as they are encoded."""
OldRows = Callable[[str, StateTypeSchema], dict[object, object]]
"""The stored rows of a table of some session, without types: by the table's name and schema."""


class Migrated(msgspec.Struct, frozen=True):
    """The result of `migrate`, in the declared type: its tables are not in the encoded state."""

    state: object


class CurrentValue(msgspec.Struct, frozen=True):
    """A stored value as decoded with the current type.

    Attributes:
        value: The encoded value.
        migrated: The state, if the value was migrated.
    """

    value: bytes
    migrated: Migrated | None = None


class StateMigrator(Generic[S]):
    """Reads the stored values of one partition with the current state type.

    Attributes:
        mark: Type tag of newly written values; empty if the current type reads untagged values.
        is_plain: Whether all stored values are of a type that the current type reads, without a tag.
    """

    def __init__(self, schema: StateSchema[S], header: SegmentHeader | None) -> None:
        """Read the stored schemas.

        Args:
            schema: The current type.
            header: Header of the newest segment; None while there is none.
        """
        self._schema = schema
        self._stored = StateTypeVersions(schema.hash, {schema.hash: schema.shape})
        if header is not None:
            self._stored = read_versions(header)
        self._foreign = {hashed for hashed, shape in self._stored.shapes.items() if not schema.reads(hashed, shape)}
        # Values without a tag that the current type reads need no migration: they count as of this type.
        self._plain = self._stored.plain if self._stored.plain in self._foreign else schema.hash
        self.mark = b"" if self._plain == schema.hash else make_type_tag(schema.hash)
        self.is_plain = not self._foreign and not self._stored.tagged

    def migrate(self, session: str, stored: bytes, rows: OldRows) -> CurrentValue:
        """A stored value for the current type: without a tag, migrated if necessary.

        Args:
            session: The session.
            stored: Its stored value.
            rows: Reads the rows of a table of the session: by the table's name and schema.

        Raises:
            MigrationFailed: The transform's `migrate` raised, or its result is not of the type.
        """
        if self.is_plain:
            return CurrentValue(stored)
        marked, value = split_type_tag(stored)
        hashed = marked or self._plain
        if hashed not in self._foreign:
            return CurrentValue(value)
        return self._migrated(session, self._shape(session, hashed), value, rows)

    def make_rewriter(self) -> BaseRewriter:
        """The rewriter of stored values for a base."""
        return BaseRewriter(self._stored, self._plain, self._schema.hash, is_plain=self.is_plain)

    @property
    def has_tables(self) -> bool:
        """Whether sessions may have map entries in addition to their own entries."""
        return bool(self._schema.tables) or any(map(_has_tables, self._stored.shapes.values()))

    @property
    def plain(self) -> StateTypeSchema | None:
        """Schema of values without a tag, for the header of a delta; None if it is the current schema."""
        if not self.mark:
            return None
        return self._stored.shapes[self._plain]

    @property
    def older(self) -> tuple[StateTypeSchema, ...]:
        """Schemas of tagged values, for the header of a delta; without the current one if it has a plain schema."""
        implied = self._schema.hash if self.mark else None
        return tuple(self._stored.shapes[hashed] for hashed in self._stored.tagged if hashed != implied)

    def _shape(self, session: str, hashed: str) -> StateTypeSchema:
        if hashed not in self._stored.shapes:
            raise StateDamaged(f"session {session!r}", f"a shape of {sorted(self._stored.shapes)}", hashed)
        return self._stored.shapes[hashed]

    def _migrated(self, session: str, shape: StateTypeSchema, value: bytes, rows: OldRows) -> CurrentValue:
        gate, state, *others = _PARTS.decode(value)
        if state == _NIL:
            return CurrentValue(value, Migrated(None))  # its snapshot is not complete
        if self._schema.is_layout(shape):
            table_bytes = bytes(state) if shape.kind == "dict" else _ENCODER.encode(rows("", _AS_STORED))
            laid_out, table = self._schema.lay_out(table_bytes)
            return CurrentValue(_ENCODER.encode([gate, msgspec.Raw(laid_out), *others]), Migrated(table))
        old = _with_rows(to_untyped(msgspec.msgpack.decode(state), shape), shape, rows)
        migrate = self._schema.migrate
        if migrate is None:
            raise AssertionError(f"state of a refused type is read: {shape}")
        try:
            new = migrate(old if isinstance(old, dict) else {"state": old})
        except Exception as error:  # the user's code ends here
            raise MigrationFailed(session, f"{type(error).__name__}: {error}", old) from error
        encoded, loaded = self._schema.encode_migrated(session, new, old)
        return CurrentValue(_ENCODER.encode([gate, msgspec.Raw(encoded), *others]), Migrated(loaded))


def _with_rows(old: object, shape: StateTypeSchema, rows: OldRows) -> object:
    """Builtins of a state with the rows of its tables, which are separate entries."""
    if shape.kind == "rows":
        return rows("", shape)
    tables = {field.name: rows(field.name, field.shape) for field in shape.fields if field.shape.kind == "rows"}
    if not tables or not isinstance(old, dict):
        return old
    return {**old, **tables}


def _has_tables(shape: StateTypeSchema) -> bool:
    return shape.kind == "rows" or any(field.shape.kind == "rows" for field in shape.fields)
