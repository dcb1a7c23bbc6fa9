"""Messages with one form of each value: times in UTC, and floats if the type has floats.

A decoder keeps the zone that a message has, and a Struct its default 0 in a field of floats. A state that takes such a
value would be loaded as another value. Whether a message type can have such values at all is known when it is declared:
messages of other types are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast, get_origin

import msgspec
from msgspec import inspect
from msgspec.structs import force_setattr

from lockstep.declare.decoders.base import Decode
from lockstep.model.type_parts import list_type_parts

Correct = Callable[[Any], object]
"""From a value to its canonical form, which is the value itself nearly always."""


def make_canonical(decode: Decode, message_type: object) -> Decode:
    """A decode function whose messages are canonical; the function itself if they are canonical anyway."""
    try:
        info = inspect.type_info(message_type)
    except (TypeError, NameError):  # of a user's function: msgspec does not know its classes
        return decode
    if not _needs_correction(info):
        return decode
    correct = _Corrections().find(info)
    return lambda *arguments: correct(decode(*arguments))


def _needs_correction(info: inspect.Type) -> bool:
    """Whether a type can have values that are not canonical."""
    for part in list_type_parts(info):
        fields = part.fields if isinstance(part, _RECORDS) else ()
        if isinstance(part, inspect.DateTimeType) or any(map(_has_int_default, fields)):
            return True
    return False


def _has_int_default(field: inspect.Field) -> bool:
    """Whether a field of floats has a default such as 0."""
    members = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    kinds = {type(member) for member in members}
    return type(field.default) is int and inspect.FloatType in kinds and inspect.IntType not in kinds


def to_utc(value: datetime) -> datetime:
    """A time in UTC; itself without a zone, or if it has no time in UTC."""
    if value.tzinfo is UTC or value.tzinfo is None:
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:  # before the year 1 or after 9999: no state and no table takes it
        return value


def _is_time(info: inspect.Type) -> bool:
    """Whether a type has times, and no containers of them."""
    members = info.types if isinstance(info, inspect.UnionType) else (info,)
    return all(isinstance(member, inspect.DateTimeType) or not _needs_correction(member) for member in members)


class _Corrections:
    """The corrections of a type, by class of the value."""

    def __init__(self) -> None:
        self._records: dict[object, Correct] = {}

    def find(self, info: inspect.Type) -> Correct:
        """The correction of a value of a type; values of other classes stay as they are."""
        if not _needs_correction(info):
            return _keep
        by_class = dict(self._list(info))
        return _Dispatch(by_class).correct

    def _list(self, info: inspect.Type) -> Iterator[tuple[type, Correct]]:
        if isinstance(info, inspect.Metadata):
            yield from self._list(info.type)
        elif isinstance(info, inspect.UnionType):
            for member in info.types:
                yield from self._list(member)
        elif isinstance(info, inspect.DateTimeType):
            yield datetime, to_utc
        elif isinstance(info, _RECORDS):
            kind = dict if isinstance(info, inspect.TypedDictType) else get_origin(info.cls) or info.cls
            yield cast("type", kind), self._find_record(info)
        else:
            yield from self._list_container(info)

    def _list_container(self, info: inspect.Type) -> Iterator[tuple[type, Correct]]:
        if isinstance(info, inspect.DictType):
            key = self.find(info.key_type)
            value = self.find(info.value_type)
            yield dict, lambda items: {key(name): value(inner) for name, inner in items.items()}
        elif isinstance(info, inspect.TupleType):
            each = [self.find(item) for item in info.item_types]
            yield tuple, lambda items: tuple(correct(item) for correct, item in zip(each, items, strict=True))
        elif isinstance(info, inspect.CollectionType):
            item = self.find(info.item_type)
            kind = _CLASSES[type(info)]
            yield kind, lambda items: kind(map(item, items))

    def _find_record(self, info: _Record) -> Correct:
        known = self._records.get(info.cls)
        if known is not None:
            return known
        record = _RecordCorrection(info)
        self._records[info.cls] = record.correct
        for field in info.fields:
            if _has_int_default(field):
                record.fields[field.name] = _Dispatch({int: float}).correct
            elif not _needs_correction(field.type):
                continue
            elif isinstance(info, inspect.StructType) and _is_time(field.type):
                record.times.append(field.name)
            else:
                record.fields[field.name] = self.find(field.type)
        return record.correct


class _Dispatch:
    def __init__(self, by_class: Mapping[type, Correct]) -> None:
        self._by_class = by_class

    def correct(self, value: object) -> object:
        correct = self._by_class.get(type(value))
        if correct is None:
            return value
        return correct(value)


class _RecordCorrection:
    """The correction of a Struct, a dataclass, a named tuple or a typed dict.

    Attributes:
        fields: The fields that need one.
        times: Fields of a Struct that are times: most messages have no others, and these cost no call.
    """

    def __init__(self, info: _Record) -> None:
        self.fields: dict[str, Correct] = {}
        self.times: list[str] = []
        self.correct: Correct = self._correct_struct
        if isinstance(info, inspect.NamedTupleType):
            self.correct = self._correct_tuple
        elif isinstance(info, inspect.DataclassType):
            self.correct = self._correct_dataclass
        elif isinstance(info, inspect.TypedDictType):
            self.correct = self._correct_dict

    def _correct_struct(self, value: msgspec.Struct) -> msgspec.Struct:
        for name in self.times:
            time = getattr(value, name)
            if type(time) is datetime and time.tzinfo is not UTC:
                force_setattr(value, name, to_utc(time))
        for name, correct in self.fields.items():
            inner = getattr(value, name)
            other = correct(inner)
            if other is not inner:
                force_setattr(value, name, other)
        return value

    def _correct_dataclass(self, value: object) -> object:
        for name, correct in self.fields.items():
            object.__setattr__(value, name, correct(getattr(value, name)))
        return value

    def _correct_dict(self, value: dict[str, object]) -> object:
        for name in self.fields.keys() & value.keys():
            value[name] = self.fields[name](value[name])
        return value

    def _correct_tuple(self, value: Any) -> object:
        return value._replace(**{name: correct(getattr(value, name)) for name, correct in self.fields.items()})


def _keep(value: object) -> object:
    return value


_Record = inspect.StructType | inspect.DataclassType | inspect.NamedTupleType | inspect.TypedDictType
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType, inspect.TypedDictType)
_CLASSES: Mapping[type, type[list[object] | tuple[object, ...] | set[object] | frozenset[object]]] = {
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
}
