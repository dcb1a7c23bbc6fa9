"""The types of a transform are found however its classes are built."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
import pytest

from lockstep import TableFold, Transform
from lockstep.declare.stream import TransformTypes, read_transform_types
from lockstep.errors import DeclarationError
from tests.declare.panels import Panel, Reading, Snapshot, Update

M = TypeVar("M")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
A = TypeVar("A")
B = TypeVar("B", bound=msgspec.Struct)

Messages = Snapshot | Update


class Direct(Transform[Messages, Panel, Reading]): ...


class Inherited(Direct): ...


class InheritedTwice(Inherited): ...


class Named(Generic[T]):
    """A generic base that is no transform."""


class WithMixinBefore(Named[int], Direct): ...


class WithPlainMixin(Direct, Named[int]): ...


class RowLeftOpen(Transform[Messages, Panel, R], Generic[R]): ...


class RowGiven(RowLeftOpen[Reading]): ...


class Renamed(Transform[A, dict[str, S], B], Generic[S, B, A]):
    """Its parameters come in another order than the transform's."""


class Turned(Renamed[Panel, Reading, Messages]): ...


class StillOpen(Renamed[S, Reading, Messages], Generic[S]): ...


class Closed(StillOpen[int]): ...


class Optional(Transform[A | None, list[A], Reading], Generic[A]): ...


class OptionalOfUpdate(Optional[Update]): ...


class Fold(TableFold[Messages, str, float, Reading]): ...


class FoldOf(TableFold[M, tuple[str, T], T, Reading], Generic[M, T]): ...


class FoldOfFloat(FoldOf[Update, float]): ...


FOUND: dict[type, tuple[object, object, type[msgspec.Struct]]] = {
    Direct: (Messages, Panel, Reading),
    Inherited: (Messages, Panel, Reading),
    InheritedTwice: (Messages, Panel, Reading),
    WithMixinBefore: (Messages, Panel, Reading),
    WithPlainMixin: (Messages, Panel, Reading),
    RowGiven: (Messages, Panel, Reading),
    Turned: (Messages, dict[str, Panel], Reading),
    Closed: (Messages, dict[str, int], Reading),
    OptionalOfUpdate: (Update | None, list[Update], Reading),
    Fold: (Messages, dict[str, float], Reading),
    FoldOfFloat: (Update, dict[tuple[str, float], float], Reading),
}


@pytest.mark.parametrize("transform", FOUND, ids=lambda transform: transform.__name__)
def test_the_types_are_found_through_any_depth_of_generic_bases(transform: type) -> None:
    message, state, row = FOUND[transform]
    assert read_transform_types(transform) == TransformTypes(message=message, state=state, row=row)


@pytest.mark.parametrize("transform", [RowLeftOpen, StillOpen, Renamed, TableFold, FoldOf, Transform])
def test_a_class_that_leaves_a_type_open_is_refused(transform: type) -> None:
    with pytest.raises(DeclarationError, match=r"does not say its message, state and row types"):
        read_transform_types(transform)
