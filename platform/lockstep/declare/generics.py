"""Reads the types a transform was declared with, through any depth of generic base classes."""

from __future__ import annotations

from typing import Any, TypeVar, cast, get_args, get_origin

import msgspec

from lockstep.declare.transform import Transform
from lockstep.errors import DeclarationError


class TransformTypes(msgspec.Struct, frozen=True):
    """The three types of a transform.

    Attributes:
        message: What the decoder must produce.
        state: The state of one session.
        row: The output row, a Struct.
    """

    message: object
    state: object
    row: type[msgspec.Struct]


def transform_types(transform: type) -> TransformTypes:
    """The M, S and R of a class such as `class Panel(Transform[Snapshot | Update, State, Row])`.

    Raises:
        DeclarationError: When the class leaves one of them open.
    """
    arguments = _arguments(transform, {})
    if arguments is None or any(_is_open(argument) for argument in arguments):
        raise DeclarationError(
            "Stream.transform",
            transform.__name__,
            "does not say its message, state and row types",
            f"write `class {transform.__name__}(Transform[Message, State, Row])`",
        )
    message, state, row = arguments
    row_class = _class(row)
    if row_class is None or not issubclass(row_class, msgspec.Struct):
        raise DeclarationError(
            "Stream.transform", row, "the row type is not a msgspec.Struct", "declare the row as one"
        )
    return TransformTypes(message=message, state=state, row=row_class)


def _is_open(argument: object) -> bool:
    """Whether a type variable is left in it, also inside of it (`dict[K, V]`)."""
    inside: object = () if _class(argument) else getattr(argument, "__parameters__", ())
    return isinstance(argument, TypeVar) or bool(inside)


def _arguments(cls: type, known: dict[object, object]) -> tuple[object, ...] | None:
    """Walk up the bases, replacing type variables by what the subclass gave for them."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        given = tuple(_replace(argument, known) for argument in get_args(base))
        if origin is Transform:
            return given
        generic = _class(origin)
        if generic is not None and _is_transform(generic):
            return _arguments(generic, dict(zip(_parameters(generic), given, strict=True)))
    for plain in cls.__bases__:
        if _is_transform(plain) and plain is not Transform:
            return _arguments(plain, {})
    return None


def _is_transform(cls: type[Any]) -> bool:
    return issubclass(cls, Transform)


def _class(value: object) -> type[Any] | None:
    return cast("type[Any]", value) if isinstance(value, type) else None


def _parameters(cls: type) -> tuple[object, ...]:
    return tuple(getattr(cls, "__parameters__", ()))


def _replace(argument: object, known: dict[object, object]) -> object:
    """Put the known types into one argument, also where it is generic itself (`dict[K, V]`)."""
    if argument in known:
        return known[argument]
    inner = getattr(argument, "__parameters__", ())
    if not inner:
        return argument
    return cast("Any", argument)[tuple(known.get(parameter, parameter) for parameter in inner)]
