"""Checks the values of a declaration against the types of its fields: Python would take the text "no" for true.

Users need no type checker, so declarations check themselves. Only fields that classes of lockstep declare are checked,
also in classes that users derive from them.

Users derive classes from extension points only (`mark_extension_point`). The engine knows every other class by its
type, so a derived class would run without end, or be ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from lockstep.errors import DeclarationError

PACKAGE = "lockstep."
EXTENSION_POINTS: Final[list[type]] = []
"""The classes that users may derive from; docs/how-to-add has a page for each."""

T = TypeVar("T", bound=type)


def mark_extension_point(kind: T) -> T:
    """Let users derive classes from a class of lockstep."""
    EXTENSION_POINTS.append(kind)
    return kind


def check_class(field: str, value: object) -> None:
    """Refuse a value of a class that a user derived from a closed class.

    Raises:
        DeclarationError: Names both classes.
    """
    bases = type(value).__mro__
    if bases[0].__module__.startswith(PACKAGE) or any(base in EXTENSION_POINTS for base in bases):
        return
    closed = next((base for base in bases if base.__module__.startswith(PACKAGE)), None)
    if closed is not None:
        problem = f"is of the class {bases[0].__name__}, and no class may be derived from {closed.__name__}"
        next_step = f"{_suggest(closed)}; docs/how-to-add lists what can be extended"
        raise DeclarationError(field, value, problem, next_step)


def check_classes(part: object) -> None:
    """Check the classes of all values in a declared value, and of those in them, as `check_class`."""
    owner = find_owner(type(part))
    if owner is None:
        return
    for field in fields(owner):
        for inner in _list_parts(getattr(part, field.name)):
            check_class(f"{type(part).__name__}.{field.name}", inner)
            check_classes(inner)


def check_field_types(part: object) -> None:
    """Check the fields of a declared value, and of the declared values in them.

    A whole number is a number, and true or false is neither. Types that only a checker can judge pass.

    Raises:
        DeclarationError: Names class and field, the value, and what would be right.
    """
    owner = find_owner(type(part))
    if owner is None:
        return
    for name, kind in read_types(owner).items():
        value = getattr(part, name)
        field = f"{type(part).__name__}.{name}"
        if not _fits(value, kind):
            raise DeclarationError(field, value, f"is not of type {format_type(kind)}", _suggest(kind))
        for inner in _list_parts(value):
            check_field_types(inner)


def find_owner(kind: type) -> type | None:
    """The nearest declared class of lockstep; None for a class of others."""
    owner = next((base for base in kind.__mro__ if base.__module__.startswith(PACKAGE)), None)
    return owner if owner is not None and is_dataclass(owner) else None


@cache
def read_types(owner: type) -> Mapping[str, object]:
    """The types of the fields of a dataclass, by name."""
    hints = get_type_hints(owner)
    return {field.name: hints[field.name] for field in fields(owner)}


def _list_parts(value: object) -> Collection[object]:
    """The parts of a field's value: itself, or the values of a collection."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[object, object]", value).values())
    if isinstance(value, (tuple, list)):
        return cast("Sequence[object]", value)
    return (value,)


def _fits(value: object, kind: Any) -> bool:  # a type of any form
    origin = get_origin(kind)
    if origin in {Union, UnionType}:
        return any(_fits(value, member) for member in get_args(kind))
    if origin is not None:
        return _fits_generic(value, origin, get_args(kind))
    if not isinstance(kind, type):  # a type variable, or Any
        return True
    if isinstance(value, bool):
        return kind in {bool, object}
    kinds = (int, float) if kind is float else kind  # a whole number is a number
    return isinstance(value, kinds)


def _fits_generic(value: object, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is Callable:
        return callable(value)
    wanted = Sequence if origin is tuple else origin  # a list may stand for a tuple
    if not isinstance(value, wanted) or isinstance(value, (str, bytes)):
        return False
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return all(_fits(key, arguments[0]) and _fits(item, arguments[1]) for key, item in items)
    if isinstance(value, Collection) and issubclass(origin, Collection):
        return all(_fits(item, arguments[0]) for item in cast("Collection[object]", value))
    return True


def _list_kinds(kind: Any) -> list[Any]:
    if get_origin(kind) not in {Union, UnionType}:
        return [kind]
    return [member for member in get_args(kind) if member is not NoneType]


def format_type(kind: Any) -> str:
    """Write a type as a declaration would."""
    names = list[str]()
    for member in _list_kinds(kind):
        is_plain = isinstance(member, type) and not get_args(member)
        names.append(member.__name__ if is_plain else str(member))
    return " | ".join(names).replace("collections.abc.", "").replace("typing.", "")


_EXAMPLES: Mapping[object, str] = {
    bool: "True or False, without quotes",
    int: "a whole number, without quotes",
    float: "a number, without quotes",
    str: "a text in quotes",
    timedelta: "for example timedelta(minutes=5)",
}


def _suggest(kind: Any) -> str:
    """What would be right."""
    first = _list_kinds(kind)[0]
    if isinstance(first, type) and issubclass(first, Enum):
        return " or ".join(f"{first.__name__}.{name}" for name in first.__members__)
    if first in _EXAMPLES:
        return _EXAMPLES[first]
    derived = _list_derived(first) if isinstance(first, type) else []
    if derived:
        return f"for example {min(derived)}()"
    return f"a value of type {format_type(kind)}"


def _list_derived(kind: type) -> list[str]:
    """The names of the library's classes that are derived from a class."""
    derived = cast("list[type]", type.__subclasses__(kind))
    return [subclass.__name__ for subclass in derived if subclass.__module__.startswith(PACKAGE)]
