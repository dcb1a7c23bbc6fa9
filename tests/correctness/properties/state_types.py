"""Generated state types and values, as Python source, so that another process can create the same.

A value is exact, or odd: its number kind, zone, class or spelling differs from its type. `form` is the text of all that
a fold can see of a value, including classes, order, zone, sign of zero and bits of NaN.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import nan
from types import ModuleType
from typing import Any, cast
from uuid import UUID

import msgspec
from hypothesis import strategies as st

from lockstep import MapState

PRELUDE = """
from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from lockstep import MapState


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Word(enum.StrEnum):
    A = "a"
    B = "b"


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Bits(enum.Flag):
    X = 1
    Y = 2


class Text(str):
    pass


class Items(list):
    pass


class Moment(datetime):
    pass


class Pair(NamedTuple):
    left: int
    right: float


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float = 0.0


class Deeper(Point, frozen=True):
    z: float = 1.0


class Node(msgspec.Struct):
    value: float
    inner: list[Node] = []


class LeftOut(msgspec.Struct, omit_defaults=True):
    a: float = 0.0
    b: list[int] = []
    c: str = "abc"
    d: tuple[int, ...] = ()
    e: int | UnsetType = UNSET


class ByPlace(msgspec.Struct, array_like=True):
    a: int
    b: float = 1.0


class First(msgspec.Struct, tag="first"):
    value: int = 0


class Second(msgspec.Struct, tag="second"):
    value: float = 0.0
"""


@dataclass(frozen=True)
class Kind:
    """A type with its values, all as source.

    Attributes:
        source: The type.
        exact: Values of exactly this type.
        odd: Values of other types, or values that no state can hold.
        is_key: Whether it can be a key.
        is_frozen: Whether its values cannot be changed in place.
    """

    source: str
    exact: st.SearchStrategy[str]
    odd: st.SearchStrategy[str]
    is_key: bool = True
    is_frozen: bool = True

    @property
    def values(self) -> st.SearchStrategy[str]:
        """Mostly exact values."""
        return st.integers(0, 11).flatmap(lambda number: self.exact if number else self.odd)


def _float(value: float) -> str:
    bits = struct.pack(">d", value).hex()
    return repr(value) if value - value == 0 else f"float_of('{bits}')"


def _mixed(*sources: str) -> st.SearchStrategy[str]:
    return st.sampled_from(sources)


SURROGATE = "'\\ud800'"
ZONES = ("UTC", "None", "ZoneInfo('UTC')", "ZoneInfo('Europe/Berlin')", "timezone(timedelta(hours=5, minutes=30))")


def _moment(value: datetime, zone: str, name: str = "datetime") -> str:
    return f"{repr(value).replace('datetime.datetime', name, 1)[:-1]}, tzinfo={zone})"


INTS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-130, 130)).map(repr)
FLOATS = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1e300, 2.0**60, nan])).map(_float)
TEXTS = st.one_of(st.text(max_size=6).map(repr), _mixed("'a'", "'2020-01-01'", "'1.50'", "'P1D'"))
MOMENTS = st.one_of(st.datetimes(), st.sampled_from([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]))  # noqa: DTZ001  # the zone is drawn separately
DECIMALS = st.one_of(
    st.decimals().map(repr), _mixed("Decimal('1.50')", "Decimal('1E+5')", "Decimal('-0')", "Decimal('1E-400')")
)
DATES = st.dates().map(lambda value: f"date({value.year}, {value.month}, {value.day})")
TIMES = st.times().map(lambda value: repr(value).replace("datetime.", ""))
DELTAS = st.one_of(st.timedeltas().map(lambda value: repr(value).replace("datetime.", "")), _mixed("timedelta.max"))
ANY_ODD = _mixed("None", "True", "1", "0.5", "'x'", "b'x'", "(1,)", "[1]", "{'a': 1}", "Color.RED", "Point(1.0)", "{1}")

PLAIN = [
    Kind("bool", _mixed("True", "False"), _mixed("0", "1", "np.bool_(True)")),
    Kind("int", INTS, _mixed("True", "1.0", "Number.ONE", "2**70", "-(2**70)", "np.int64(3)", "'1'")),
    Kind("float", FLOATS, _mixed("1", "True", "2**60 + 1", "Number.TWO", "np.float64(1.5)", "Decimal('1.5')", "'1'")),
    Kind("str", TEXTS, _mixed("Word.A", "Color.RED", "Text('a')", "b'a'", SURROGATE, "date(2020, 1, 1)", "None")),
    Kind("bytes", st.binary(max_size=5).map(repr), _mixed("bytearray(b'a')", "memoryview(b'a')", "'a'")),
    Kind("Decimal", DECIMALS, _mixed("1", "1.5", "'1.5'")),
    Kind("date", DATES, _mixed("datetime(2020, 1, 1)", "datetime(2020, 1, 1, tzinfo=UTC)", "'2020-01-01'")),
    Kind("timedelta", DELTAS, _mixed("1.5", "'P1D'", "time(1)")),
    Kind(
        "time",
        TIMES,
        _mixed(
            "time(1, tzinfo=UTC)", "time(1, tzinfo=timezone(timedelta(hours=2), 'X'))", "time(1, fold=1)", "'01:00'"
        ),
    ),
    Kind(
        "UUID",
        st.uuids().map(repr),
        _mixed("UUID(int=1, is_safe=__import__('uuid').SafeUUID.safe)", "'12345678123456781234567812345678'"),
    ),
    Kind(
        "datetime",
        st.builds(_moment, MOMENTS, _mixed("UTC", "None")),
        st.one_of(
            st.builds(_moment, MOMENTS, st.sampled_from(ZONES[2:])),
            _mixed("Moment(2020, 1, 1, tzinfo=UTC)", "date(2020, 1, 1)", "datetime(2020, 1, 1, fold=1)", "1.5"),
        ),
    ),
    Kind(
        "Annotated[datetime, Meta(tz=True)]",
        st.builds(_moment, MOMENTS, st.just("UTC")),
        st.builds(_moment, MOMENTS, st.sampled_from(ZONES[1:])),
    ),
    Kind("Annotated[int, Meta(ge=0)]", st.integers(0, 9).map(repr), _mixed("-1", "False")),
    Kind("Color", _mixed("Color.RED", "Color.BLUE"), _mixed("'red'", "Word.A")),
    Kind("Word", _mixed("Word.A", "Word.B"), _mixed("'a'", "Color.RED")),
    Kind("Number", _mixed("Number.ONE", "Number.TWO"), _mixed("1", "True", "3")),
    Kind("Bits", _mixed("Bits.X", "Bits.X | Bits.Y", "Bits(0)"), _mixed("1", "Number.ONE")),
    Kind("Literal['a', 'b', 3]", _mixed("'a'", "'b'", "3"), _mixed("'c'", "Word.A", "4", "True")),
    Kind("int | str | None", st.one_of(INTS, TEXTS, st.just("None")), _mixed("1.0", "Word.A", "True")),
    Kind("int | float", st.one_of(INTS, FLOATS), _mixed("True", "Number.ONE", "np.float64(1.5)")),
    Kind("float | Decimal | None", st.one_of(FLOATS, DECIMALS, st.just("None")), _mixed("1", "'1'")),
    Kind("Pair", st.builds("Pair({}, {})".format, INTS, FLOATS), _mixed("(1, 2.0)", "Pair(1, 2)", "Pair(True, 1.0)")),
    Kind(
        "Point",
        st.builds("Point({}, {})".format, FLOATS, FLOATS),
        _mixed("Point(1)", "Deeper(1.0)", "(1.0, 2.0)", "Point(1.0, True)"),
    ),
]
NUMBER_KEYS = ("float", "Decimal", "int | float", "float | Decimal | None", "Pair", "Point")
RECORDS = [
    Kind(
        "Node",
        st.builds("Node({}, [Node({})])".format, FLOATS, FLOATS),
        _mixed("Node(1.0, [Node(1)])", "Node(1.0, (Node(1.0),))", "Node(1.0, Items([]))"),
    ),
    Kind(
        "LeftOut",
        st.one_of(
            st.builds("LeftOut({}, [], {})".format, FLOATS, TEXTS),
            _mixed("LeftOut()", "LeftOut(-0.0)", "LeftOut(b=[1])", "LeftOut(d=(1,), e=2)", "LeftOut(e=UNSET)"),
        ),
        _mixed("LeftOut(0)", "LeftOut(b=())", "LeftOut(b=Items())", "LeftOut(e=False)", "LeftOut(a=UNSET)"),
    ),
    Kind("ByPlace", st.builds("ByPlace({}, {})".format, INTS, FLOATS), _mixed("ByPlace(1, 1)", "ByPlace(True)", "[1]")),
    Kind(
        "First | Second | None",
        st.one_of(st.builds("First({})".format, INTS), st.builds("Second({})".format, FLOATS), st.just("None")),
        _mixed("First(True)", "Second(1)", "Point(1.0)"),
    ),
]
RECORDS = [Kind(each.source, each.exact, each.odd, is_key=False, is_frozen=False) for each in RECORDS]


def _items(kind: Kind, brackets: str, fewest: int = 0) -> st.SearchStrategy[str]:
    listed = st.lists(kind.values, min_size=fewest, max_size=3)
    return listed.map(lambda items: f"{brackets[0]}{''.join(f'{item}, ' for item in items)}{brackets[1]}")


def _list_of(kind: Kind) -> Kind:
    odd = st.one_of(_items(kind, "()"), _items(kind, "[]").map("Items({})".format), ANY_ODD)
    return Kind(f"list[{kind.source}]", _items(kind, "[]"), odd, is_key=False, is_frozen=False)


def _tuple_of(kind: Kind) -> Kind:
    odd = st.one_of(_items(kind, "[]"), ANY_ODD)
    return Kind(f"tuple[{kind.source}, ...]", _items(kind, "()"), odd, is_key=kind.is_key, is_frozen=kind.is_frozen)


def _pair_of(left: Kind, right: Kind) -> Kind:
    exact = st.builds("({}, {})".format, left.values, right.values)
    odd = st.one_of(st.builds("[{}, {}]".format, left.values, right.values), ANY_ODD, st.just("(1,)"))
    both = left.is_key and right.is_key, left.is_frozen and right.is_frozen
    return Kind(f"tuple[{left.source}, {right.source}]", exact, odd, is_key=both[0], is_frozen=both[1])


def _dict_of(key: Kind, value: Kind) -> Kind:
    items = st.lists(st.tuples(key.values, value.values), max_size=3)
    exact = items.map(lambda pairs: "{" + "".join(f"{name}: {inner}, " for name, inner in pairs) + "}")
    odd = st.one_of(exact.map("OrderedDict({})".format), exact.map("defaultdict(int, {})".format), ANY_ODD)
    return Kind(f"dict[{key.source}, {value.source}]", exact, odd, is_key=False, is_frozen=False)


LEAVES = st.sampled_from(PLAIN)
KEYS = st.sampled_from(PLAIN).flatmap(
    lambda kind: st.one_of(st.just(kind), st.sampled_from(PLAIN).map(lambda other: _pair_of(kind, other)))
)
FROZEN = st.recursive(
    LEAVES, lambda inner: st.one_of(inner.map(_tuple_of), st.builds(_pair_of, inner, inner)), max_leaves=4
)
KINDS: st.SearchStrategy[Kind] = st.recursive(
    st.one_of(LEAVES, st.sampled_from(RECORDS)),
    lambda inner: st.one_of(
        inner.map(_list_of), inner.map(_tuple_of), st.builds(_pair_of, inner, inner), st.builds(_dict_of, KEYS, inner)
    ),
    max_leaves=4,
)


def make_module(name: str, source: str) -> ModuleType:
    """Create a module from generated source, as an import would."""
    module = ModuleType(name)
    module.__dict__.update(float_of=float_of, usable=usable)
    sys.modules[name] = module
    exec(compile(PRELUDE + source, f"<{name}>", "exec"), module.__dict__)  # noqa: S102  # generated above
    return module


def make_makers(values: Iterable[str]) -> str:
    """Return the source of a list of functions that make values, without values that raise TypeError."""
    return f"usable({', '.join(f'lambda: {value}' for value in values)})"


def usable(*makers: Callable[[], object]) -> list[Callable[[], object]]:
    """Return the functions that raise no TypeError, or else a function that returns None."""
    found = []
    for make in makers:
        with suppress(TypeError):
            make()
            found.append(make)
    return found or [lambda: None]


def grow(old: Any, new: Any) -> object:
    """Return a value changed by another value, in place if possible."""
    if type(old) is type(new) is list:
        old.extend(new)
    elif type(old) is type(new) is dict:
        old.update(new)
        for key in list(old)[:-4]:
            del old[key]
    elif isinstance(old, msgspec.Struct) and type(old) is type(new) and not old.__struct_config__.frozen:
        for name in old.__struct_fields__:
            setattr(old, name, grow(getattr(old, name), getattr(new, name)))
    elif {type(old), type(new)} <= {int, float, bool} or type(old) is type(new) in {str, tuple, bytes}:
        return old + new
    else:
        return new
    return old


def float_of(bits: str) -> float:
    """Return the float with these bits."""
    return cast("float", struct.unpack(">d", bytes.fromhex(bits))[0])


def form(value: object) -> str:
    """Return all that a fold can see of a value, except the identity of its objects."""
    return f"{type(value).__qualname__}{_FORMS.get(type(value), _form_of_other)(value)}"


def _form_of_other(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return "(" + ", ".join(f"{name}={form(getattr(value, name))}" for name in value.__struct_fields__) + ")"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(form, value)) + "]"
    if isinstance(value, (Mapping, MapState)):
        return "{" + ", ".join(f"{form(key)}: {form(inner)}" for key, inner in value.items()) + "}"
    return f":{value!r}"


def _form_of_moment(value: datetime | time) -> str:
    return f":{value!r}/{value.fold}/{type(value.tzinfo).__name__}/{value.tzname()}"


_FORMS: Mapping[type, Callable[[Any], str]] = {
    float: lambda value: ":" + struct.pack(">d", value).hex(),
    datetime: _form_of_moment,
    time: _form_of_moment,
    date: repr,
    timedelta: repr,
    Decimal: lambda value: repr(value.as_tuple()),
    UUID: lambda value: f"{value}/{value.is_safe}",
}
