"""A state that would come back as another one is refused before its batch is committed."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from lockstep.state.codec import CHECKED_EVERY, CHECKED_FIRST, StateNotOfItsType, StateSchema
from lockstep.state.decoded_sessions import SessionEntry
from tests.unit.state.home import Home


class Color(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct):
    value: float = 0.0


class Typed(msgspec.Struct):
    """One field of each kind that comes back as it was."""

    amount: Decimal = Decimal("1.50")
    at: datetime = datetime(2026, 1, 31, tzinfo=UTC)
    color: Color = Color.RED
    seen: set[int] = msgspec.field(default_factory=lambda: {1, 2})
    pair: tuple[int, str] = (1, "a")
    inner: dict[str, Inner] = msgspec.field(
        default_factory=lambda: {"a": Inner(1), "b": Inner(float("nan"))}
    )  # ints too
    raw: bytes = b"\xff"
    open: Any = msgspec.field(default_factory=lambda: {"a": [1, 2.5, None, True, "x", {"b": b"c"}]})
    base: Inner | None = None


class Derived(Inner):
    other: int = 0


@dataclass
class Held:
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Named(NamedTuple):
    value: int


OTHERS: dict[str, tuple[object, object, str]] = {
    "a defaultdict": (dict[str, int], defaultdict(int), "state is of type defaultdict, and would come back as dict"),
    "a counter inside": (dict[str, dict[str, int]], {"a": Counter("ab")}, "state['a'] is of type Counter"),
    "an ordered dict": (dict, OrderedDict(a=1), "state is of type OrderedDict"),
    "in a dataclass": (Held, Held(), "state.counts is of type defaultdict"),
    "a set without a type": (Any, {"seen": {1}}, "state['seen'] is of type set, and would come back as list"),
    "a tuple without a type": (dict[str, Any], {"last": (1, 2)}, "state['last'] is of type tuple"),
    "a decimal without a type": (list, [Decimal(1)], "state[0] is of type Decimal, and would come back as str"),
    "a Struct without a type": (dict, {"a": Inner(1)}, "state['a'] is of type Inner, and would come back as dict"),
    "a named tuple without a type": (dict, {"a": Named(1)}, "state['a'] is of type Named"),
    "a subclass": (Typed, Typed(base=Derived(1)), "state.base is of type Derived, and would come back as Inner"),
    "a key without a type": (dict, {Color.RED: 1}, "a key of state is of type Color, and would come back as str"),
    "a text for a number": (dict[str, int], {"a": "1"}, "Expected `int`, got `str`"),
}


def write(schema: StateSchema[Any], folder: Path, *states: object) -> None:
    home = Home(folder / "durable", folder / "local", schema=schema)
    with home.open(home.start()) as state:
        state.entries.update({f"s{number}": SessionEntry(1, cast("Any", value)) for number, value in enumerate(states)})
        state.changed()


@pytest.mark.parametrize("name", OTHERS)
def test_another_type_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    """It was found with the next restart or never: rows depended on where the batches and restarts were."""
    declared, left, expected = OTHERS[name]
    with pytest.raises(StateNotOfItsType, match=r"(?s)session 's0'.*fix the fold") as raised:
        write(StateSchema(declared), tmp_path, left)
    assert expected in raised.value.reason


def test_what_comes_back_as_it_was_passes(tmp_path: Path) -> None:
    write(StateSchema(Typed), tmp_path, Typed(), Typed(base=Inner()), Typed(inner={}))


def test_a_large_state_is_compared_up_to_a_bound(tmp_path: Path) -> None:
    write(StateSchema(Any), tmp_path, [[[0] * 100 for _ in range(100)] for _ in range(100)])


@pytest.mark.parametrize("before", [CHECKED_FIRST - 1, CHECKED_EVERY - 1])
def test_the_first_new_sessions_of_a_process_and_some_of_the_others_are_looked_at(tmp_path: Path, before: int) -> None:
    with pytest.raises(StateNotOfItsType, match=f"session 's{before}'"):
        write(StateSchema(Any), tmp_path, *[[]] * before, (1, 2))


def test_not_every_new_session_is_looked_at(tmp_path: Path) -> None:
    write(StateSchema(Any), tmp_path, *[[]] * CHECKED_FIRST, (1, 2))
