"""Reads and writes the values of one partition, whatever types of state they were stored by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import msgspec

from lockstep.state.builtins import as_builtins
from lockstep.state.schema import MigrationFailed, S, StateSchema
from lockstep.state.section import SectionHeader, StateDamaged
from lockstep.state.shape import Shape
from lockstep.state.versions import Rebased, Versions, mark_of, parted, versions_of

_PARTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ENCODER = msgspec.msgpack.Encoder()
_NIL = b"\xc0"


OldRows = Callable[[str, Shape], dict[object, object]]
"""The stored rows of a table of some session, without types: by the table's name and shape."""


class Migrated(msgspec.Struct, frozen=True):
    """What `migrate` gave: its tables are not in the encoded state."""

    state: object


class Today(msgspec.Struct, frozen=True):
    """A stored value as today's type decodes it.

    Attributes:
        value: The encoded value.
        migrated: Where the value was migrated.
    """

    value: bytes
    migrated: Migrated | None = None


class Translation(Generic[S]):
    """The values of one partition, seen with today's type of state.

    Attributes:
        mark: What stands before a value that is written now; empty where today's type reads what has no mark.
    """

    def __init__(self, schema: StateSchema[S], header: SectionHeader | None) -> None:
        """Look at what is stored.

        Args:
            schema: Today's type.
            header: Of the newest section; None while there is none.
        """
        self._schema = schema
        self._stored = versions_of(header) if header else Versions(schema.hash, {schema.hash: schema.shape})
        reads = {hashed: schema.reads(hashed, shape) for hashed, shape in self._stored.shapes.items()}
        self._foreign = {hashed for hashed, is_read in reads.items() if not is_read}
        self._plain = self._stored.plain if self._stored.plain in self._foreign else schema.hash
        self.mark = b"" if self._plain == schema.hash else mark_of(schema.hash)
        self._is_plain = not self._foreign and not self._stored.is_mixed

    def today(self, session: str, stored: bytes, rows: OldRows) -> Today:
        """A stored value as today's type decodes it: without a mark, migrated where that is needed.

        Args:
            session: The session.
            stored: Its stored value.
            rows: Reads the rows of a table of the session: by the table's name and shape.

        Raises:
            MigrationFailed: The transform's `migrate` raised, or gave what the type cannot hold.
        """
        if self._is_plain:
            return Today(stored)
        marked, value = parted(stored)
        hashed = marked or self._plain
        return (
            self._migrated(session, self._shape(session, hashed), value, rows)
            if hashed in self._foreign
            else Today(value)
        )

    def rebased(self) -> Rebased:
        """What carries stored values into a state base."""
        return Rebased(self._stored, self._plain, self._schema.hash)

    @property
    def has_tables(self) -> bool:
        """Whether sessions may have rows of tables beside their own entries."""
        return bool(self._schema.tables) or any(map(_has_tables, self._stored.shapes.values()))

    @property
    def plain(self) -> Shape | None:
        """Shape of values without a mark, for the header of a delta; None where it is today's."""
        return self._stored.shapes[self._plain] if self.mark else None

    @property
    def older(self) -> tuple[Shape, ...]:
        """Shapes of marked values, other than today's, for the header of a delta."""
        known = {self._schema.hash, self._stored.plain}
        return tuple(shape for hashed, shape in self._stored.shapes.items() if hashed not in known)

    def _shape(self, session: str, hashed: str) -> Shape:
        if hashed not in self._stored.shapes:
            raise StateDamaged(f"session {session!r}", f"a shape of {sorted(self._stored.shapes)}", hashed)
        return self._stored.shapes[hashed]

    def _migrated(self, session: str, shape: Shape, value: bytes, rows: OldRows) -> Today:
        gate, state, *others = _PARTS.decode(value)
        if state == _NIL:
            return Today(value, Migrated(None))  # its snapshot is on its way
        old = _with_rows(as_builtins(msgspec.msgpack.decode(state), shape), shape, rows)
        migrate = self._schema.migrate
        if migrate is None:
            raise AssertionError(f"state of a refused type is read: {shape}")
        try:
            new = migrate(old if isinstance(old, dict) else {"state": old})
        except Exception as error:  # the user's code ends here
            raise MigrationFailed(session, f"{type(error).__name__}: {error}", old) from error
        encoded = self._schema.encode_migrated(session, new, old)
        return Today(_ENCODER.encode([gate, msgspec.Raw(encoded), *others]), Migrated(new))


def _with_rows(old: object, shape: Shape, rows: OldRows) -> object:
    """Builtins of a state with the rows of its tables, which lie in entries of their own."""
    if shape.kind == "rows":
        return rows("", shape)
    tables = {field.name: rows(field.name, field.shape) for field in shape.fields if field.shape.kind == "rows"}
    return {**old, **tables} if tables and isinstance(old, dict) else old


def _has_tables(shape: Shape) -> bool:
    return shape.kind == "rows" or any(field.shape.kind == "rows" for field in shape.fields)
