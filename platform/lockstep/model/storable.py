"""Storable types: types that a state may have, so that a loaded state equals the stored state.

A fold must not see where a batch ended or a process restarted. So a state type is accepted if each of its values is
loaded as it was stored, once the value is exactly of the declared types: no int in a field of floats, no datetime in
another zone than UTC, no `Counter` for a dict. Types without such values are refused when they are declared. A value
that is not exactly of its type is found when the state is encoded.

Each place of a type is a `TypedPlace`: the exact classes of its values, and what else must hold for a value of a class.
Checks of Structs and tuples are compiled to one expression, because they run for each row of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, Protocol, cast, get_args, get_origin
from uuid import UUID, SafeUUID

import msgspec
from msgspec import UnsetType, inspect

from lockstep.errors import DeclarationError
from lockstep.model.map_state import is_table_type

SHOWN = 80
"""Characters of a value in an error."""
_ROOT: Final = "state"
STATE_TYPE: Final = "Transform[Message, State, Row]: the state type"


class InnerCheck(Protocol):
    """What must hold for a value of one class, besides its class."""

    def holds(self, value: Any, /) -> bool:
        """Whether the value is loaded as it was stored."""
        ...

    def find(self, value: Any, path: str, /) -> str:
        """The first value inside that is not, with its place and the reason; empty without one."""
        ...


class TypedPlace:
    """One place of a type.

    Attributes:
        kinds: The exact classes of its values, each with what else must hold.
    """

    def __init__(self, kinds: Mapping[type, InnerCheck | None]) -> None:
        self.kinds = kinds

    def holds(self, value: object) -> bool:
        """Whether a value is loaded as it was stored."""
        kind = type(value)
        if kind not in self.kinds:
            return False
        check = self.kinds[kind]
        return check is None or check.holds(value)

    def holds_all(self) -> Callable[[Collection[Any]], bool]:
        """Compile the check of many values of this place."""
        are_of_kind = frozenset(self.kinds).issuperset
        if not any(self.kinds.values()):
            return lambda values: are_of_kind(map(type, values))
        if len(self.kinds) > 1:
            return lambda values: all(map(self.holds, values))
        (check,) = cast("Collection[InnerCheck]", self.kinds.values())
        return lambda values: are_of_kind(map(type, values)) and all(map(check.holds, values))

    def find(self, value: object, path: str) -> str:
        """See `InnerCheck.find`."""
        kind = type(value)
        if kind not in self.kinds:
            return f"{path} = {show(value)} is of type {_name(kind)}, and would not be loaded so: its type is {self}"
        check = self.kinds[kind]
        if check is None:
            return _find_unstorable(value, path)
        return check.find(value, path)

    def __str__(self) -> str:
        return " | ".join("None" if kind is type(None) else kind.__name__ for kind in self.kinds)


def _find_unstorable(value: object, path: str) -> str:
    """The problem of a plain value that cannot be stored at all; the encoder finds it without its place."""
    try:
        msgspec.msgpack.encode(value, enc_hook=_skip)
    except (ValueError, OverflowError, RecursionError) as error:
        return f"{path} = {show(value)} cannot be stored: {error}"
    return ""


def _skip(value: object) -> None:
    """Rows of a table are examined one by one."""
    del value


def show(value: object) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class ValueCondition:
    """A condition of a plain value."""

    def __init__(self, holds: Callable[[Any], bool], problem: str) -> None:
        self.holds = holds
        self._problem = problem

    def find(self, value: Any, path: str) -> str:
        """See `InnerCheck.find`."""
        if self.holds(value):
            return ""
        return f"{path} = {show(value)} {self._problem}"


def _is_utc(value: datetime) -> bool:
    return value.tzinfo is UTC and not value.fold


def _is_naive(value: datetime) -> bool:
    return value.tzinfo is None and not value.fold


def _is_utc_or_naive(value: datetime) -> bool:
    return (value.tzinfo is UTC or value.tzinfo is None) and not value.fold


_DATETIMES: Final = {
    None: ValueCondition(_is_utc_or_naive, "would be loaded in UTC: convert it, .astimezone(UTC)"),
    True: ValueCondition(_is_utc, "is not in UTC: convert it, .astimezone(UTC)"),
    False: ValueCondition(_is_naive, "has a zone, and its type has none: convert it, .replace(tzinfo=None)"),
}
"""By the `tz` of the type."""


def _is_same_time(value: time) -> bool:
    return repr(msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=time)) == repr(value)


_TIME: Final = ValueCondition(_is_same_time, "would be loaded with another zone: use UTC, or a time without a zone")
_UUID: Final = ValueCondition(
    lambda value: value.is_safe is SafeUUID.unknown, "has a note on its safety that is not stored: UUID(int=value.int)"
)
_NUMBER_KEY: Final = ValueCondition(lambda value: value == value, "is a key that equals nothing")  # noqa: PLR0124  # NaN


class AllOf:
    """Several checks of one value."""

    def __init__(self, *checks: InnerCheck) -> None:
        self._checks = checks

    def holds(self, value: Any) -> bool:
        """See `InnerCheck.holds`."""
        return all(check.holds(value) for check in self._checks)

    def find(self, value: Any, path: str) -> str:
        """See `InnerCheck.find`."""
        for check in self._checks:
            problem = check.find(value, path)
            if problem:
                return problem
        return ""


class ItemsCheck:
    """The items of a list, or of a tuple of any length."""

    def __init__(self, item: TypedPlace) -> None:
        self._item = item
        self.holds: Callable[[Any], bool] = item.holds_all()

    def find(self, value: Any, path: str) -> str:
        """See `InnerCheck.find`."""
        for place, item in enumerate(value):
            problem = self._item.find(item, f"{path}[{place}]")
            if problem:
                return problem
        return ""


class DictCheck:
    """The keys and values of a dict."""

    def __init__(self, key: TypedPlace, value: TypedPlace) -> None:
        self._key = key
        self._value = value
        hold_keys = key.holds_all()
        hold_values = value.holds_all()
        self.holds: Callable[[Any], bool] = lambda value: hold_keys(value) and hold_values(value.values())

    def find(self, value: Any, path: str) -> str:
        """See `InnerCheck.find`."""
        for key, inner in value.items():
            problem = self._key.find(key, f"a key of {path}") or self._value.find(inner, f"{path}[{show(key)}]")
            if problem:
                return problem
        return ""


class RecordCheck:
    """The fields of a Struct, or the positions of a tuple.

    Attributes:
        fields: Each field as an expression after the value, such as `.price` or `[0]`, with its place.
    """

    def __init__(self) -> None:
        self.fields: dict[str, TypedPlace] = {}
        self._size: int | None = None

    def holds(self, value: Any) -> bool:
        """See `InnerCheck.holds`; replaced by the compiled check."""
        raise AssertionError(f"not compiled yet: {value!r}")

    def compile(self, fields: Mapping[str, TypedPlace], size: int | None = None) -> None:
        """Set the fields, and compile their check.

        Args:
            fields: See the attribute.
            size: The length of a tuple.
        """
        self.fields = dict(fields)
        self._size = size
        names: dict[str, object] = {}
        parts = [] if size is None else [f"len(value) == {size}"]
        parts += [_make_expression(f"value{field}", place, names) for field, place in fields.items()]
        source = f"lambda value: {' and '.join(parts) or 'True'}"
        self.holds = eval(source, names)  # type: ignore[method-assign]  # noqa: S307  # of names of fields, no input

    def find(self, value: Any, path: str) -> str:
        """See `InnerCheck.find`."""
        if self._size is not None and len(value) != self._size:
            return f"{path} = {show(value)} has {len(value)} values, and its type has {self._size}"
        for field, place in self.fields.items():
            problem = place.find(_read(value, field), f"{path}{field}")
            if problem:
                return problem
        return ""


def _read(value: Any, field: str) -> object:
    if field.startswith("["):
        return value[int(field[1:-1])]
    return getattr(value, field[1:])


def _make_expression(value: str, place: TypedPlace, names: dict[str, object]) -> str:
    """Python's source of the check of one field; the objects that it refers to are added to the names."""
    if any(place.kinds.values()) and len(place.kinds) > 1:
        return f"{_add_name(place, names)}.holds({value})"
    parts = [_make_kind_expression(value, kind, names) for kind in place.kinds]
    check = next(iter(place.kinds.values()))
    if check is not None:
        parts.append(f"{_add_name(check, names)}.holds({value})")
        return " and ".join(parts)
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"


def _make_kind_expression(value: str, kind: type, names: dict[str, object]) -> str:
    if kind is type(None):
        return f"{value} is None"
    return f"type({value}) is {_add_name(kind, names)}"


def _add_name(named: object, names: dict[str, object]) -> str:
    name = f"n{len(names)}"
    names[name] = named
    return name


_PLAIN: Final[Mapping[type[inspect.Type], tuple[type, InnerCheck | None]]] = {
    inspect.NoneType: (type(None), None),
    inspect.BoolType: (bool, None),
    inspect.IntType: (int, None),
    inspect.FloatType: (float, None),
    inspect.StrType: (str, None),
    inspect.BytesType: (bytes, None),
    inspect.DecimalType: (Decimal, None),
    inspect.DateType: (date, None),
    inspect.TimeType: (time, _TIME),
    inspect.TimeDeltaType: (timedelta, None),
    inspect.UUIDType: (UUID, _UUID),
}
_KNOWN: Final = frozenset(
    {
        *_PLAIN,
        *(inspect.DateTimeType, inspect.EnumType, inspect.LiteralType, inspect.ListType, inspect.VarTupleType),
        *(inspect.TupleType, inspect.DictType, inspect.StructType, inspect.NamedTupleType),
    }
)
_INSTEAD: Final = "use types that msgspec encodes: Structs, lists, dicts, numbers, strings, dates, Decimal, enums"
_REFUSED: Final[Mapping[type[inspect.Type], tuple[str, str]]] = {
    inspect.AnyType: ("it is open: tuples and Structs in it would be loaded as lists and dicts", "name its type"),
    inspect.SetType: ("it has another order in each process", "use dict[X, None], which keeps the order, or list[X]"),
    inspect.FrozenSetType: ("it has another order in each process", "use tuple[X, ...]"),
    inspect.ByteArrayType: ("views of it would still change it, and not a loaded one", "use bytes"),
    inspect.MemoryViewType: ("it is a view of another object", "use bytes"),
    inspect.DataclassType: ("it can have attributes that are not stored", "make it a msgspec.Struct"),
    inspect.TypedDictType: ("it can have keys that are not stored", "make it a msgspec.Struct"),
    inspect.RawType: ("it is a view of a message", "use bytes"),
    inspect.ExtType: ("it is a value of MessagePack alone", "make it a msgspec.Struct"),
    inspect.CustomType: ("msgspec does not encode and decode it by itself", _INSTEAD),
}
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
_CONSTRAINED: Final[Mapping[type[inspect.Type], type]] = {
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.DictType: dict,
}


_Container = inspect.ListType | inspect.VarTupleType | inspect.TupleType | inspect.DictType


class StorableType:
    """A state type, or a part of one, that was accepted.

    Attributes:
        kinds: The exact classes of its values.
        holds: Whether a value is loaded as it was stored.
    """

    def __init__(self, declared: object, *, is_key: bool = False) -> None:
        """Compile the check of a type.

        Args:
            declared: The type.
            is_key: It is the key of a table.

        Raises:
            DeclarationError: It has values that would not be loaded as they were stored.
        """
        self._records: dict[tuple[object, bool], RecordCheck] = {}
        self._defaults: list[tuple[TypedPlace, inspect.Field, str]] = []
        try:
            info = inspect.type_info(declared)
        except (TypeError, NameError) as error:
            raise _refuse(_ROOT, declared, str(error), _INSTEAD) from error
        self._place = self._make_place(info, _ROOT, is_key=is_key)
        for place, field, path in self._defaults:
            _check_default(place, field, path)
        self.kinds = frozenset(self._place.kinds)
        self.holds: Callable[[object], bool] = self._place.holds

    def find(self, value: object, path: str = "state") -> str:
        """The first value that would be loaded as another value, with its place; empty without one."""
        return self._place.find(value, path)

    def _make_place(self, info: inspect.Type, path: str, *, is_key: bool) -> TypedPlace:
        kinds: dict[type, InnerCheck | None] = {}
        for member in _list_members(info):
            for kind, check in self._list_kinds(member, path, is_key=is_key):
                if kind in kinds:
                    raise _refuse(path, kind, "it is twice in a union", "declare one of them")
                kinds[kind] = check
        return TypedPlace(kinds)

    def _list_kinds(self, info: inspect.Type, path: str, *, is_key: bool) -> Iterator[tuple[type, InnerCheck | None]]:
        if isinstance(info, inspect.CustomType) and is_table_type(info.cls):
            yield cast("type[Any]", get_origin(info.cls) or info.cls), None  # its rows are checked one by one
        elif type(info) in _REFUSED or type(info) not in _KNOWN:
            refused = getattr(info, "cls", type(info).__name__.removesuffix("Type").lower())
            raise _refuse(path, refused, *_REFUSED.get(type(info), _REFUSED[inspect.CustomType]))
        elif isinstance(info, inspect.EnumType):
            yield info.cls, None
        elif isinstance(info, inspect.LiteralType):
            yield from _list_literals(info)
        else:
            kind, check = self._find_kind(info, path, is_key=is_key)
            constraint = _make_constraint(info)
            if check is not None and constraint is not None:
                yield kind, AllOf(check, constraint)
            else:
                yield kind, constraint if check is None else check

    def _find_kind(self, info: inspect.Type, path: str, *, is_key: bool) -> tuple[type, InnerCheck | None]:
        match info:
            case inspect.DateTimeType():
                return datetime, _DATETIMES[info.tz]
            case inspect.FloatType() | inspect.DecimalType() if is_key:
                return _PLAIN[type(info)][0], _NUMBER_KEY
            case inspect.StructType() | inspect.NamedTupleType():
                return _class_of(info), self._make_record(info, is_key=is_key)
            case inspect.ListType() | inspect.VarTupleType() | inspect.TupleType() | inspect.DictType():
                return self._find_container(info, path, is_key=is_key)
            case _:
                return _PLAIN[type(info)]

    def _find_container(self, info: _Container, path: str, *, is_key: bool) -> tuple[type, InnerCheck]:
        if isinstance(info, inspect.DictType):
            key = self._make_place(info.key_type, f"{path}{{key}}", is_key=True)
            return dict, DictCheck(key, self._make_place(info.value_type, f"{path}{{}}", is_key=is_key))
        if isinstance(info, inspect.TupleType):
            check = RecordCheck()
            places = dict[str, TypedPlace]()
            for number, item_type in enumerate(info.item_types):
                places[f"[{number}]"] = self._make_place(item_type, f"{path}[{number}]", is_key=is_key)
            check.compile(places, len(places))
            return tuple, check
        kind = list if isinstance(info, inspect.ListType) else tuple
        return kind, ItemsCheck(self._make_place(info.item_type, f"{path}[]", is_key=is_key))

    def _make_record(self, info: inspect.StructType | inspect.NamedTupleType, *, is_key: bool) -> RecordCheck:
        compiled = self._records.get((info.cls, is_key))
        if compiled is not None:
            return compiled
        check = RecordCheck()
        self._records[info.cls, is_key] = check  # before its fields: the type may be recursive
        kind = _class_of(info)
        _check_record(kind, is_key=is_key)
        fields: dict[str, TypedPlace] = {}
        unset = _list_unset(kind)
        for field in info.fields:
            path = f"{kind.__name__}.{field.name}"
            place = self._make_place(field.type, path, is_key=is_key)
            if field.name in unset:
                place = TypedPlace({**place.kinds, UnsetType: None})
            fields[f".{field.name}"] = place
            self._defaults.append((place, field, path))
        check.compile(fields)
        return check


def _list_members(info: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(info, inspect.Metadata):
        return _list_members(info.type)
    if isinstance(info, inspect.UnionType):
        members = list[inspect.Type]()
        for member in info.types:
            members += _list_members(member)
        return tuple(members)
    return (info,)


def _list_literals(info: inspect.LiteralType) -> Iterator[tuple[type, InnerCheck | None]]:
    for kind in dict.fromkeys(map(type, info.values)):
        values = frozenset(value for value in info.values if type(value) is kind)
        yield kind, ValueCondition(values.__contains__, f"is none of {sorted(values, key=repr)}")


def _make_constraint(info: inspect.Type) -> InnerCheck | None:
    values = {name: getattr(info, name, None) for name in _CONSTRAINTS}
    declared: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    if not declared:
        return None
    wanted: Any = Annotated[_CONSTRAINED[type(info)], msgspec.Meta(**declared)]
    return ValueCondition(lambda value: _is_within(value, wanted), f"is beyond its type's {declared}")


def _is_within(value: object, wanted: object) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def _class_of(info: inspect.StructType | inspect.NamedTupleType) -> type[Any]:
    return cast("type[Any]", get_origin(info.cls) or info.cls)


def _list_unset(kind: type[Any]) -> frozenset[str]:
    """The fields of a Struct that may be UNSET, which is stored as a missing field."""
    if not issubclass(kind, msgspec.Struct):
        return frozenset()
    unset = [field for field in msgspec.structs.fields(kind) if UnsetType in (field.type, *get_args(field.type))]
    for field in unset:
        if field.default is not msgspec.UNSET:
            problem = "it may be UNSET, which would be loaded as its default"
            raise _refuse(f"{kind.__name__}.{field.name}", field.default, problem, "write = UNSET")
    return frozenset(field.name for field in unset)


def _check_record(kind: type[Any], *, is_key: bool) -> None:
    """Refuse a class whose values are more than their fields."""
    if hasattr(kind, "__post_init__"):
        problem = "its __post_init__ would run again when it is loaded"
        raise _refuse("", kind, problem, "compute its values before it is made, for example in a function")
    if kind.__dictoffset__:
        problem = "it can have attributes that are not stored"
        raise _refuse("", kind, problem, "declare it without dict=True, and without a base that is not a Struct")
    if is_key and not _is_equal_by_fields(kind):
        raise _refuse("", kind, "it is a key, and is not equal by its fields", "declare it without __eq__ and eq=False")


def _is_equal_by_fields(kind: type[Any]) -> bool:
    config: msgspec.structs.StructConfig | None = getattr(kind, "__struct_config__", None)
    equal: object = kind.__eq__
    if config is None:  # a NamedTuple
        return equal is tuple.__eq__
    return config.eq and equal is msgspec.Struct.__eq__


def _check_default(place: TypedPlace, field: inspect.Field, path: str) -> None:
    """Refuse a default that is not of its declared type, as 0 of a float."""
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = cast("Callable[[], object]", field.default_factory)()
    if default is msgspec.NODEFAULT:
        return
    problem = place.find(default, path)
    if problem:
        raise _refuse(path, default, f"its default is not of its type: {problem}", "correct the default")


def _refuse(path: str, found: object, problem: str, instead: str) -> DeclarationError:
    field = STATE_TYPE if path in {"", _ROOT} else f"{STATE_TYPE}: {path}"
    return DeclarationError(field, found, f"cannot be saved and recovered: {problem}", instead)
