"""A state that would be loaded as another state is refused: its type when declared, its value when it is stored."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict, cast
from zoneinfo import ZoneInfo

import msgspec
import pytest
from msgspec import UnsetType

from lockstep import MapState
from lockstep.errors import DeclarationError
from lockstep.state.codec import EXAMINED_EVERY, EXAMINED_FIRST, StateNotOfItsType, StateSchema
from lockstep.state.decoded_sessions import SessionEntry
from tests.unit.state.home import Home


@dataclass
class Data:
    value: int


class Keys(TypedDict):
    value: int


class Open(msgspec.Struct, dict=True):
    value: int


class Checked(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        self.value += 1


class WholeTotal(msgspec.Struct):
    total: float = 0


class LocalDay(msgspec.Struct):
    since: datetime = datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))


class ListOfWholes(msgspec.Struct):
    totals: list[float] = msgspec.field(default_factory=lambda: [0])


class MaybeUnset(msgspec.Struct):
    value: int | UnsetType = 0


class SameIdentity(msgspec.Struct, frozen=True, eq=False):
    value: int


class Outer(msgspec.Struct):
    seen: dict[str, list[set[int]]]


REFUSED: dict[object, str] = {
    Any: "state type = 'any': .* it is open: .*next: name its type",
    dict: r"state type: state\{key\} = 'any'",
    list[Any]: r"state type: state\[\] = 'any'",
    set[int]: r"it has another order in each process\n  next: use dict\[X, None\]",
    frozenset[str]: r"it has another order in each process\n  next: use tuple\[X, ...\]",
    Outer: r"state type: Outer.seen\{\}\[\] = 'set': .* another order",
    bytearray: "views of it would still change it.*use bytes",
    memoryview: "it is a view of another object.*use bytes",
    msgspec.Raw: "it is a view of a message.*use bytes",
    Data: r"Data.*it can have attributes that are not stored.*make it a msgspec\.Struct",
    Keys: r"Keys.*it can have keys that are not stored.*make it a msgspec\.Struct",
    Open: "Open.*it can have attributes that are not stored.*without dict=True",
    Checked: "Checked.*its __post_init__ would run again",
    WholeTotal: r"WholeTotal\.total = 0: .*its default is not of its type: .* is of type int",
    LocalDay: r"LocalDay\.since = .*its default is not of its type: .* would be loaded in UTC",
    ListOfWholes: r"ListOfWholes\.totals = \[0\]: .*totals\[0\] = 0 is of type int",
    MaybeUnset: r"MaybeUnset\.value = 0: .* write = UNSET",
    dict[SameIdentity, int]: "SameIdentity.*it is a key, and is not equal by its fields",
    MapState[str, frozenset[int]]: "it has another order in each process",
}


@pytest.mark.parametrize("declared", REFUSED, ids=str)
def test_a_type_with_values_that_are_loaded_as_others_is_refused_when_declared(declared: object) -> None:
    with pytest.raises(DeclarationError, match=f"(?s){REFUSED[declared]}"):
        StateSchema(declared)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Inner(msgspec.Struct):
    value: float = 0.0


class Derived(Inner):
    other: int = 0


class Pair(NamedTuple):
    left: int
    right: int


class Typed(msgspec.Struct):
    amount: float = 0.0
    count: int = 0
    at: datetime | None = None
    day: date | None = None
    pair: tuple[int, int] = (1, 2)
    inner: dict[str, Inner] = {}
    counts: dict[str, int] = {}
    raw: bytes = b""
    small: Annotated[int, msgspec.Meta(le=9)] = 0
    values: MapState[int, float] = msgspec.field(default_factory=MapState)


ZONED = datetime(2026, 3, 29, 0, 30, tzinfo=timezone(timedelta(hours=2)))
BROKEN: dict[str, tuple[Typed, str]] = {
    "an int for a float": (Typed(amount=6), "state.amount = 6 is of type int"),
    "a bool for an int": (Typed(count=True), "state.count = True is of type bool"),
    "an enum for an int": (Typed(count=Level.HIGH), "state.count = <Level.HIGH: 2> is of type"),
    "a zone": (Typed(at=ZONED), "state.at = datetime.datetime(2026, 3, 29, 0, 30, tzinfo="),
    "a moment for a day": (Typed(day=datetime(2026, 1, 1, tzinfo=UTC)), "state.day = datetime.datetime(2026, 1, 1"),
    "a named tuple": (Typed(pair=Pair(1, 2)), "state.pair = Pair(left=1, right=2) is of type"),
    "a list for a tuple": (Typed(pair=cast("tuple[int, int]", [1, 2])), "state.pair = [1, 2] is of type list"),
    "a longer tuple": (Typed(pair=cast("tuple[int, int]", (1, 2, 3))), "state.pair = (1, 2, 3) has 3 values"),
    "a defaultdict": (Typed(counts=defaultdict(int)), "state.counts = defaultdict(<class 'int'>, {}) is of type"),
    "a counter": (Typed(counts=Counter("a")), "state.counts = Counter({'a': 1}) is of type collections.Counter"),
    "an ordered dict": (Typed(counts=OrderedDict(a=1)), "state.counts = OrderedDict"),
    "a subclass": (Typed(inner={"a": Derived()}), "state.inner['a'] = Derived(value=0.0, other=0) is of type"),
    "an int inside": (Typed(inner={"a": Inner(1)}), "state.inner['a'].value = 1 is of type int"),
    "an enum as key": (Typed(counts=cast("dict[str, int]", {Color.RED: 1})), "a key of state.counts = <Color.RED"),
    "bytes of others": (Typed(raw=cast("bytes", bytearray(b"a"))), "state.raw = bytearray(b'a') is of type bytearray"),
    "beyond its bounds": (Typed(small=10), "state.small = 10 is beyond its type's {'le': 9}"),
    "a text for a number": (Typed(count=cast("int", "1")), "state.count = '1' is of type str"),
    "no table": (Typed(values=cast("MapState[int, float]", {})), "state.values = {} is of type dict"),
    "an int in a table": (Typed(values=MapState({1: 2})), "values[1] = 2 is of type int"),
    "a bool as a table's key": (
        Typed(values=MapState([(cast("int", bool(1)), 2.0)])),
        "a key of values = True is of type bool",
    ),
}


def write(schema: StateSchema[Any], folder: Path, *states: object) -> None:
    home = Home(folder / "durable", folder / "local", schema=schema)
    with home.open(home.start()) as state:
        state.entries.update({f"s{number}": SessionEntry(1, cast("Any", value)) for number, value in enumerate(states)})
        state.changed()


@pytest.mark.parametrize("name", BROKEN)
def test_another_type_is_named_with_its_field(tmp_path: Path, name: str) -> None:
    """Otherwise rows depend on batches and restarts: after a restart 6 would be 6.0, and a time have another hour."""
    left, expected = BROKEN[name]
    with pytest.raises(StateNotOfItsType, match="session 's200'") as raised:
        write(StateSchema(Typed), tmp_path, *(Typed() for _ in range(200)), left)
    assert expected in raised.value.reason
    assert raised.value.is_of_value
    assert raised.value.sessions == {"s200"}


def test_a_state_of_its_types_passes(tmp_path: Path) -> None:
    write(StateSchema(Typed), tmp_path, Typed(), Typed(1.5, 1, ZONED.astimezone(UTC), date(2026, 1, 1), (3, 4)))


SHARED = [1]
ALIASES: dict[str, tuple[object, Callable[[], object], str]] = {
    "in a list": (list[list[int]], lambda: [SHARED, [1], SHARED], "state[0] and state[2] are one list"),
    "at two depths": (list[dict[str, list[int]]], lambda: [{"a": SHARED}, {"b": SHARED}], "state[0]['a'] and state[1]"),
    "a Struct": (dict[str, Inner], lambda: dict.fromkeys("ab", Inner()), "state['a'] and state['b'] are one Inner"),
}


@pytest.mark.parametrize("name", ALIASES)
def test_one_object_in_two_places_is_named(tmp_path: Path, name: str) -> None:
    """After a load, a change of one place would not change the other."""
    declared, make, expected = ALIASES[name]
    with pytest.raises(StateNotOfItsType, match=r"(?s)session 's0'.*fix the fold") as raised:
        write(StateSchema(declared), tmp_path, make())
    assert expected in raised.value.reason
    assert not raised.value.is_of_value


@pytest.mark.parametrize("before", [EXAMINED_FIRST - 1, EXAMINED_EVERY - 1])
def test_the_first_states_of_a_process_and_some_of_the_others_are_examined(tmp_path: Path, before: int) -> None:
    with pytest.raises(StateNotOfItsType, match=f"session 's{before}'"):
        write(StateSchema(list[list[int]]), tmp_path, *([] for _ in range(before)), [SHARED, SHARED])


def test_not_every_state_is_examined(tmp_path: Path) -> None:
    write(StateSchema(list[list[int]]), tmp_path, *([] for _ in range(EXAMINED_FIRST)), [SHARED, SHARED])
