"""Stored state is read as today's type only if every value keeps its meaning."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Literal, NamedTuple

import msgspec
import pytest

from lockstep.errors import DeclarationError
from lockstep.model.compatibility import find_incompatibilities
from lockstep.model.state_types import hash_of_type_schema, make_type_schema
from lockstep.state.codec import StateSchema, StateTypeChanged


class Stored(msgspec.Struct):
    value: int
    name: str = "none"


class Added(msgspec.Struct):
    value: int
    name: str = "none"
    unit: str | None = None
    seen: list[int] = []  # msgspec copies it


AddedFirst = msgspec.defstruct("AddedFirst", [("value", int), ("unit", str, "K"), ("name", str, "none")])
AddedRequired = msgspec.defstruct("AddedRequired", [("value", int), ("unit", str), ("name", str, "none")])
Removed = msgspec.defstruct("Removed", [("value", int)])
Renamed = msgspec.defstruct("Renamed", [("value", int), ("title", str, "none")])
Retyped = msgspec.defstruct("Retyped", [("value", str), ("name", str, "none")])
Widened = msgspec.defstruct("Widened", [("value", float), ("name", str, "none")])
Optional = msgspec.defstruct("Optional", [("value", int | None), ("name", str, "none")])
OtherDefault = msgspec.defstruct("OtherDefault", [("value", int), ("name", str, "some")])
NoDefault = msgspec.defstruct("NoDefault", [("value", int), ("name", str)])
Tagged = msgspec.defstruct("Tagged", [("value", int), ("name", str, "none")], tag="x")
Positional = msgspec.defstruct("Positional", [("a", int), ("b", int)], array_like=True)
PositionalSwapped = msgspec.defstruct("PositionalSwapped", [("b", int), ("a", int)], array_like=True)
PositionalAtEnd = msgspec.defstruct("PositionalAtEnd", [("a", int), ("b", int), ("c", int, 0)], array_like=True)
PositionalBetween = msgspec.defstruct("PositionalBetween", [("a", int), ("c", int, 0), ("b", int, 0)], array_like=True)


class StoredOtherwise(msgspec.Struct):
    value: int


class Tree(msgspec.Struct):
    value: int
    children: list[Tree]


class FloatTree(msgspec.Struct):
    value: float
    children: list[FloatTree]


class Color(Enum):
    RED = "red"


class MoreColor(Enum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    left: int
    right: int


Positive = Annotated[int, msgspec.Meta(gt=0)]

READ = [
    (Stored, Stored),
    (Stored, Added),
    (Stored, AddedFirst),
    (Stored, Widened),
    (Stored, Optional),
    (Removed, Stored),
    (Positional, PositionalAtEnd),
    (dict[int, Stored], dict[int, Added]),
    (list[int], list[float | None]),
    (tuple[int, int], tuple[int, float]),
    (int | str, int | str | None),
    (int | str, str | int),
    (Stored, Stored | None),
    (Tree, FloatTree),
    (Pair, Pair),
    (Decimal, Decimal | None),
]
REFUSED = [
    (Stored, AddedRequired, "unit: stored no such field, declared str without a default"),
    (Stored, Removed, "name: stored str, declared no such field"),
    (Stored, Renamed, "name: stored str, declared no such field"),
    (Stored, Retyped, "value: stored int, declared str"),
    (Widened, Stored, "value: stored float, declared int"),
    (Optional, Stored, "value: stored union[int, none], declared int"),
    (Stored, OtherDefault, "name: stored default 'none', declared default 'some'"),
    (Stored, NoDefault, "name: stored default 'none', declared no default"),
    (Stored, Tagged, "state: stored record[value, name], declared record(type='x')[value, name]"),
    (Positional, PositionalSwapped, "state: stored fields by position a, b, declared b, a"),
    (Positional, PositionalBetween, "state: stored fields by position a, b, declared a, c, b"),
    (dict[str, Stored], dict[str, StoredOtherwise], "{}.name: stored str, declared no such field"),
    (list[int], list[str], "{}: stored int, declared str"),
    (dict[int, str], dict[float, str], "{key}: stored int, declared float"),
    (list[int], dict[int, int], "state: stored list[int], declared dict[int, int]"),
    (tuple[int, int], tuple[int, str], "[1]: stored int, declared str"),
    (tuple[int, int], tuple[int], "state: stored tuple[int, int], declared tuple[int]"),
    (int, int | str, "state: stored int, declared union[int, str]"),
    (int, Positive, "state: stored int, declared int(gt=0)"),
    (Color, MoreColor, "state: stored enum(['red']), declared enum(['blue', 'red'])"),
    (Literal["a"], Literal["b"], "state: stored literal(['a']), declared literal(['b'])"),
    (Tree, Stored, "children: stored list[outer], declared no such field"),
]


@pytest.mark.parametrize(("stored", "declared"), READ, ids=str)
def test_state_is_read_where_nothing_changes_its_meaning(stored: object, declared: object) -> None:
    assert find_incompatibilities(make_type_schema(stored), make_type_schema(declared)) == ()


@pytest.mark.parametrize(("stored", "declared", "shown"), REFUSED, ids=str)
def test_state_is_refused_by_the_field_that_differs(stored: object, declared: object, shown: str) -> None:
    found = [
        str(difference) for difference in find_incompatibilities(make_type_schema(stored), make_type_schema(declared))
    ]
    assert shown.replace("[outer]", "[outer(1)]") in found


@pytest.mark.parametrize(("stored", "declared"), READ, ids=str)
def test_what_is_accepted_decodes(stored: object, declared: object) -> None:
    value = EXAMPLES.get(str(stored))
    if value is not None:
        encoded = StateSchema[object](stored).encode("s", 1, value)
        assert StateSchema[object](declared).decode("s", encoded)[0] == 1


EXAMPLES: dict[str, object] = {
    str(Stored): Stored(1, "x"),
    str(Removed): Removed(1),
    str(Positional): Positional(1, 2),
    str(dict[int, Stored]): {1: Stored(1)},
    str(list[int]): [1, 2],
    str(tuple[int, int]): (1, 2),
    str(int | str): "x",
    str(Tree): Tree(1, [Tree(2, [])]),
    str(Pair): Pair(1, 2),
    str(Decimal): Decimal("1.50"),
}


def test_every_difference_is_named_with_the_next_step() -> None:
    stored = StateSchema[object](Stored)
    declared = StateSchema[object](msgspec.defstruct("Other", [("x", int)]))
    with pytest.raises(StateTypeChanged) as raised:
        declared.accept({stored.hash: stored.shape}, "file bytes 0 to 9")
    assert [difference.path for difference in raised.value.differences] == ["value", "name", "x"]
    assert "file bytes 0 to 9" in str(raised.value)
    assert "keep the stored fields" in raised.value.next_step


def test_equal_types_have_equal_hashes_and_other_types_have_others() -> None:
    assert hash_of_type_schema(make_type_schema(Stored)) == hash_of_type_schema(
        make_type_schema(msgspec.defstruct("Same", [("value", int), ("name", str, "none")]))
    )
    assert hash_of_type_schema(make_type_schema(Stored)) != hash_of_type_schema(make_type_schema(Added))


def make_list(first: int) -> list[int]:
    return [first]


class Defaults(msgspec.Struct):
    """Defaults whose `repr` differs from process to process."""

    words: tuple[str, ...] = ("a", "b")
    numbers: list[int] = msgspec.field(default_factory=partial(make_list, 1))


HASH_OF_DEFAULTS = """
from lockstep.model.state_types import hash_of_type_schema, make_type_schema
from tests.unit.state.test_compatibility import Defaults
print(hash_of_type_schema(make_type_schema(Defaults)))
"""


def test_a_type_has_the_same_hash_in_every_process() -> None:
    """If an address were part of the hash, each new process would refuse the state of the previous process."""
    found = {
        subprocess.run(
            [sys.executable, "-c", HASH_OF_DEFAULTS],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    first, second = make_type_schema(Defaults).fields
    assert (first.default, second.default) == ("('a', 'b')", "[1]")


class Foreign:
    """A class unknown to msgspec."""


@pytest.mark.parametrize("state_type", [Foreign, dict[str, Foreign], msgspec.Raw, memoryview], ids=str)
def test_a_type_that_cannot_be_saved_is_refused_when_declared(state_type: object) -> None:
    with pytest.raises(DeclarationError, match="cannot be saved and recovered"):
        StateSchema[object](state_type)
