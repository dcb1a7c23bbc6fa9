"""ColumnFold: a table of typed columns by key, declared by names of fields instead of code.

Because nothing of it is code, the engine can fold a chunk of messages at once, column by column
(`lockstep.engine.executor.columnar`). This module is the meaning of a declaration: the same fold, message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple, fields
from typing_extensions import override

from lockstep.declare.decoders.base import list_members
from lockstep.declare.stream import read_transform_types
from lockstep.declare.transform import M, R, Transform
from lockstep.errors import DeclarationError
from lockstep.folds.changed_values import find_change_test
from lockstep.folds.stored_table import find_stored_type
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_class, check_field_types
from lockstep.model.record import Envelope, Kind, Record
from lockstep.model.storable import StorableType

_Getter = Callable[[Any], Any]
K = TypeVar("K")
V = TypeVar("V", bound=msgspec.Struct)

PREVIOUS = "previous_"
"""Prefix of the columns of an output row that hold the value before the message."""


@dataclass(frozen=True, kw_only=True)
class TableFields(Declaration):
    """The fields of the messages of a `ColumnFold`, by name.

    `session`, `sequence`, `event_time_us` and `end` are those of `EnvelopeFields`.

    Example: `TableFields(snapshot=Snapshot, rows="sensors", key="name")`

    Attributes:
        snapshot: The message type that sets the whole table; messages of the other types change rows of it.
        rows: Field of a message with its rows, a list of a Struct.
        key: Field of a row with its key.
        emits_unchanged: Also emit a row for an update that changes nothing.
    """

    snapshot: type[msgspec.Struct]
    rows: str
    key: str
    session: str | None = None
    sequence: str | None = None
    event_time_us: str | None = None
    end: type[msgspec.Struct] | None = None
    emits_unchanged: bool = False

    def __post_init__(self) -> None:
        """Refuse values of other types."""
        check_field_types(self)


class ColumnFold(Transform[M, dict[K, V], R], Generic[M, K, V, R]):
    """Keeps a table of rows V by key K per session, and emits one row R for each changed row.

    V is a Struct of columns. A row of a message is a Struct with the key and the same columns: all of them in a
    snapshot; in an update, unchanged columns are `UNSET`. R has a field named like the key, optional fields named like
    columns for the new values (None in the row of a removed key), and `previous_` fields for the values before (None
    for a new row). An update that leaves a row unchanged emits nothing for it, unless `emits_unchanged` is set.

    Declare a number that a producer may spell in several ways as `Decimal` or `float`: "1.0" and "1.00" are two keys as
    `str`.

    Snapshots and ends of sessions emit as in `TableFold`. `removed` is the first column that is never None in V.

    Attributes:
        fields: Set by the class.
        ends_remove: See `TableFold`.
    """

    fields: ClassVar[TableFields]
    ends_remove: ClassVar[bool] = True

    def __init__(self) -> None:
        """Check the declaration.

        Raises:
            DeclarationError: A name is not a field, or types do not agree.
        """
        self._compiled()

    @override
    def envelope(self, message: M, record: Record) -> Envelope:
        """Session, number and event time are fields of the message."""
        declared = self.fields
        kind = Kind.UPDATE
        if type(message) is declared.snapshot:
            kind = Kind.SNAPSHOT
        elif type(message) is declared.end:
            kind = Kind.END
        session = record.key_text if declared.session is None else getattr(message, declared.session)
        if not isinstance(session, str):
            session = session.decode()
        sequence = None if declared.sequence is None else getattr(message, declared.sequence)
        event_time_us = None if declared.event_time_us is None else getattr(message, declared.event_time_us)
        return Envelope(session, kind, sequence, None, event_time_us)

    @override
    def on_snapshot(self, message: M, record: Record, previous: dict[K, V] | None) -> dict[K, V]:
        """See `TableFold.on_snapshot`."""
        del record, previous
        names = self._compiled()
        state = dict[K, V]()
        make = cast("Callable[..., V]", names.value)
        for row in getattr(message, self.fields.rows):
            key = names.key_of(row)
            values = names.values_of(row)
            _check_complete(key, values)
            state[key] = make(*values)
        return state

    @override
    def on_update(self, state: dict[K, V], message: M, record: Record) -> Iterable[R]:
        """See `TableFold.on_update`."""
        del record
        names = self._compiled()
        emitted = list[R]()
        unchanged = self.fields.emits_unchanged
        is_changed = find_change_test(type(self))
        make = cast("Callable[..., V]", names.value)
        emit = cast("Callable[..., R]", names.row)
        pick = names.pick
        for row in getattr(message, self.fields.rows):
            key = names.key_of(row)
            values = names.values_of(row)
            previous = state.get(key)
            if previous is None:
                old_values = names.nothing
                new_values = list(values)
                _check_complete(key, values)
            else:
                old_values = astuple(previous)
                pairs = zip(old_values, values, strict=True)
                new_values = [old if value is UNSET else value for old, value in pairs]
            new = make(*new_values)
            if unchanged or is_changed(new, previous):
                state[key] = new
                emitted.append(emit(*pick((key, *new_values, *old_values))))
        return emitted

    def emit(self, message: M | None, key: K, new: V | None, previous: V | None) -> R:
        """The output row of one changed row, as `TableFold.emit`."""
        del message
        names = self._compiled()
        new_values = names.nothing if new is None else astuple(new)
        old_values = names.nothing if previous is None else astuple(previous)
        return cast("R", names.row(*names.pick((key, *new_values, *old_values))))

    @override
    @classmethod
    def find_stored_type(cls, state: object) -> object:
        """See `TableFold.find_stored_type`."""
        return find_stored_type(cls, ColumnFold, state)

    @override
    def replay_columns(self) -> tuple[tuple[str, ...], str] | None:
        """See `Transform.replay_columns`."""
        names = self._compiled()
        return (names.key,), names.removed

    @override
    def removal_column(self) -> str | None:
        """See `Transform.removal_column`."""
        return self._compiled().removed

    def _compiled(self) -> ColumnNames:
        return compile_fields(type(self))


class ColumnNames:
    """The names and types of a `ColumnFold`, checked.

    Attributes:
        value: V.
        row: R.
        key: Name of the key.
        columns: Names of the columns, in the order of V.
        removed: The column that is null exactly in the row of a removed key.
        source: For each field of R its place in (key, columns, previous columns).
        updates: The message types that change rows.
        nothing: The columns of a row that is not there.
    """

    def __init__(self, transform: type[ColumnFold[Any, Any, Any, Any]]) -> None:
        """Check a declaration. Raises DeclarationError."""
        declared = getattr(transform, "fields", None)
        check_class(f"{transform.__name__}: fields", declared)
        if not isinstance(declared, TableFields):
            raise _refuse(transform, "fields", declared, "is not set", "fields = TableFields(snapshot=..., rows=...)")
        types = read_transform_types(transform)
        self.value: type[msgspec.Struct] = get_args(types.state)[1]
        self.row = types.row
        self.key = declared.key
        self.columns = _names_of(transform, self.value)
        for made in (self.value, self.row):
            _check_positional(transform, made)
        self.source = tuple(self._place(transform, name) for name in types.row.__struct_fields__)
        self.removed = _find_removed(transform, self)
        members = cast("tuple[type[msgspec.Struct], ...]", list_members(types.message))
        for member in members:
            _check_message(transform, declared, member, self.value)
        if declared.snapshot not in members:
            raise _refuse(transform, "fields.snapshot", declared.snapshot, "is not a message type of it", "one of M")
        self.nothing = (None,) * len(self.columns)
        others = {declared.snapshot, declared.end}
        self.updates: tuple[type[msgspec.Struct], ...] = tuple(member for member in members if member not in others)
        self.key_of: Callable[[object], Any] = attrgetter(self.key)
        values = cast("_Getter", attrgetter(*self.columns))
        pick = cast("_Getter", itemgetter(*self.source))
        self.values_of = _make_tuples(values, len(self.columns))
        self.pick = _make_tuples(pick, len(self.source))

    def _place(self, transform: type, name: str) -> int:
        sources = [self.key, *self.columns, *(PREVIOUS + column for column in self.columns)]
        if name not in sources:
            field = f"{self.row.__name__}.{name}"
            raise _refuse(transform, field, name, "has no value", f"one of {', '.join(sources)}")
        return sources.index(name)


@cache
def compile_fields(transform: type[ColumnFold[Any, Any, Any, Any]]) -> ColumnNames:
    """The names and types of a class. Raises DeclarationError."""
    return ColumnNames(transform)


def find_row_type(message: type[msgspec.Struct], rows: str) -> type[msgspec.Struct] | None:
    """The Struct of the rows of a message type; None if the field is not a list of a Struct."""
    declared: Any = _list_types(message).get(rows)
    if get_origin(declared) is not list:
        return None
    struct: type[msgspec.Struct] = get_args(declared)[0]
    return struct if hasattr(struct, "__struct_fields__") else None


def _list_types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of the fields of a Struct, by name."""
    return {field.name: field.type for field in fields(struct)}


def _check_complete(key: object, values: tuple[object, ...]) -> None:
    if UNSET in values:
        raise ValueError(f"the new row {key!r} lacks columns")


def _make_tuples(read: _Getter, size: int) -> _Getter:
    """A getter that returns a tuple also for one value."""
    if size > 1:
        return read
    return lambda row: (read(row),)


def _names_of(transform: type, value: Any) -> tuple[str, ...]:
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__struct_fields__:
        return value.__struct_fields__
    raise _refuse(transform, "V", value, "is not a Struct of columns", "a msgspec.Struct with a field for each column")


def _find_removed(transform: type, names: ColumnNames) -> str:
    """The first column that is never None in V; it and the others are None in the row of a removed key."""
    row = _list_types(names.row)
    value = _list_types(names.value)
    if names.key not in row:
        right = f"{names.key}, the key of the state"
        raise _refuse(transform, names.row.__name__, sorted(row), "has no field for the key", right)
    shown = [name for name in names.columns if name in row]
    for name in shown:
        if NoneType not in list_members(row[name]):
            problem = "is not optional, and is None in the row of a removed key"
            raise _refuse(transform, f"{names.row.__name__}.{name}", row[name], problem, f"{name}: ... | None")
    for name in shown:
        if NoneType not in list_members(value[name]):
            return name
    problem = "has no column that is never None in the state, so that a removed key would pass for a row"
    raise _refuse(transform, names.row.__name__, shown, problem, f"a column of {names.value.__name__} without None")


def _check_positional(transform: type, made: type[msgspec.Struct]) -> None:
    """Refuse a Struct that is not made of its values in their order."""
    for name in made.__struct_fields__[len(made.__match_args__) :]:
        field = f"{made.__name__}.{name}"
        raise _refuse(transform, field, name, "is keyword-only", f"declare {made.__name__} without kw_only")


def _check_message(transform: type, declared: TableFields, message: Any, value: type[msgspec.Struct]) -> None:
    """Refuse a message type without the declared fields."""
    if not isinstance(message, type) or not issubclass(message, msgspec.Struct):
        raise _refuse(transform, "M", message, "is not a Struct", "a msgspec.Struct, or a union of them")
    for part in ("session", "sequence", "event_time_us"):
        name = getattr(declared, part)
        if name is not None and name not in message.__struct_fields__:
            raise _refuse(transform, f"fields.{part}", name, f"is not a field of {message.__name__}", "a field of it")
    if message is declared.end:
        return
    row = find_row_type(message, declared.rows)
    if row is None:
        problem = f"is not a list of a Struct in {message.__name__}"
        raise _refuse(transform, "fields.rows", declared.rows, problem, "a field of type list[Row]")
    for name in (declared.key, *value.__struct_fields__):
        if name not in row.__struct_fields__:
            raise _refuse(transform, f"{row.__name__}.{name}", name, "is not there", f"declare it in {row.__name__}")
    _check_column_types(transform, row, value)


def _check_column_types(transform: type, row: type[msgspec.Struct], value: type[msgspec.Struct]) -> None:
    """Refuse columns whose values in a message are of other types than in the state, such as int and float."""
    types = _list_types(row)
    for column in fields(value):
        kind = types[column.name]
        if not StorableType(kind).kinds <= StorableType(column.type).kinds:
            problem = f"is of another type than {value.__name__}.{column.name}: {column.type}"
            raise _refuse(transform, f"{row.__name__}.{column.name}", kind, problem, "declare both with one type")


def _refuse(transform: type, field: str, value: Any, problem: str, instead: str) -> DeclarationError:
    return DeclarationError(f"{transform.__name__}: {field}", value, problem, instead)
