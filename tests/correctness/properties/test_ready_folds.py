"""The ready folds with every type of value that they accept: rows and states depend on no batch, crash or restart.

A value is created for each message, or once for all of them, like a constant of a module.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.testing import SentMessage, Split, run
from tests.correctness.properties.state_types import FROZEN, KINDS, PLAIN, Kind, make_makers, make_module
from tests.support.tiers import first_usual

EXAMPLES, EXAMPLES_DEEP = max(8, settings().max_examples // 8), max(100, settings().max_examples)
"""Each example compiles its own module and stream, which takes about 0.3 s."""
FOLDS = """
from collections.abc import Iterable

from lockstep import ColumnFold, Envelope, EventTime, Json, Kind, Ordered, Record
from lockstep.decoders import MessagePack
from lockstep.windows import CountWindows
from lockstep import SessionStart, Stream, Suspend, TableFields, TableFold, Topics
from lockstep.windows import SessionWindows, TumblingWindows
from lockstep.windows import Window, WindowFold
from tests.correctness.properties.state_types import form, grow


class Sent(msgspec.Struct):
    number: int
    key: int
    how: Literal["set", "grow", "remove", "snapshot", "end"]

    @property
    def kind(self) -> Kind:
        return {"snapshot": Kind.SNAPSHOT, "end": Kind.END}.get(self.how, Kind.UPDATE)


class Values(msgspec.Struct):
    values: list[VALUE]
    last: VALUE | None = None


class Whole(msgspec.Struct):
    key: KEY
    value: COLUMN
    flag: bool


class Part(msgspec.Struct):
    key: KEY
    value: COLUMN | UnsetType = UNSET
    flag: bool | UnsetType = UNSET


class Value(msgspec.Struct, frozen=True):
    value: COLUMN
    flag: bool


class All(msgspec.Struct, tag="all"):
    number: int
    rows: list[Whole]


class Some(msgspec.Struct, tag="some"):
    number: int
    rows: list[Part]


class Close(msgspec.Struct, tag="close"):
    number: int


CONSTANTS = [make() for make in MAKERS]


def make(number: int) -> VALUE:
    return CONSTANTS[number % len(MAKERS)] if SHARED else MAKERS[number % len(MAKERS)]()


class Row(msgspec.Struct):
    key: KEY
    after: str | None
    before: str | None


class Keep(TableFold[Sent, KEY, VALUE, Row]):
    key = ("key",)
    removed = "after"

    def envelope(self, message: Sent, record: Record) -> Envelope:
        return Envelope(record.key_text, message.kind, sequence=message.number)

    def changes(self, message: Sent) -> Iterable[tuple[KEY, VALUE | None]]:
        for place in range(message.key, message.key + (2 if message.how == "snapshot" else 1)):
            gone = message.how in {"remove", "end"}
            yield KEYS[place % len(KEYS)](), None if gone else make(message.number + place)

    def emit(self, message: Sent | None, key: KEY, new: VALUE | None, previous: VALUE | None) -> Row:
        return Row(key, None if new is None else form(new), None if previous is None else form(previous))


class Closed(msgspec.Struct):
    start_us: int
    messages: int
    value: str


class Gather(WindowFold[Sent, Values, Closed]):
    def envelope(self, message: Sent, record: Record) -> Envelope:
        kind = Kind.END if message.how == "end" else Kind.UPDATE
        return Envelope(record.key_text, kind, event_time_us=message.number * 1_000_000)

    def create(self) -> Values:
        return Values([])

    def add(self, value: Values, message: Sent) -> Values:
        number = message.number + message.key
        value.values = [*value.values[-3:], make(number)]
        value.last = grow(value.last, make(number)) if message.how == "grow" else make(number)
        return value

    def merge(self, first: Values, second: Values) -> Values:
        return Values([*first.values, *second.values], second.last)

    def emit(self, window: Window, value: Values) -> Closed:
        return Closed(window.start_us, window.messages, form(value))


class Tumbling(Gather):
    windows = TumblingWindows(timedelta(seconds=3))


class Counted(Gather):
    windows = CountWindows(2)


class Silence(Gather):
    windows = SessionWindows(timedelta(seconds=2))


class ColumnRow(msgspec.Struct):
    key: KEY
    flag: bool | None
    value: COLUMN | None
    previous_value: COLUMN | None


class Columns(ColumnFold[All | Some | Close, KEY, Value, ColumnRow]):
    fields = TableFields(snapshot=All, rows="rows", key="key", sequence="number", end=Close)


def make_stream(name):
    folds = {"table": Keep, "columns": Columns, "tumbling": Tumbling, "counted": Counted, "silence": Silence}
    transform = folds[name]()
    start = SessionStart.FIRST_MESSAGE if isinstance(transform, Gather) else SessionStart.SNAPSHOT
    return Stream(
        name="kept",
        topics=Topics(pattern="kept"),
        transform=transform,
        integrity=Ordered(session_start=start, on_violation=Suspend()),
        event_time=EventTime(session_idle=timedelta(seconds=60)),
        decoder=MessagePack() if name == "columns" else Json(),
    )


def make_message(name, number, place, how):
    if name != "columns":
        return Sent(number, place, how)
    if how == "end":
        return Close(number)
    key = KEYS[place % len(KEYS)]()
    value = COLUMNS[(number + place) % len(COLUMNS)]()
    if how == "snapshot":
        return All(number, [Whole(key, value, True)])
    return Some(number, [Part(key, flag=place > 1)] if how == "grow" else [Part(key, value, True)])
"""
NAMES = ("table", "columns", "tumbling", "counted", "silence")
HOW = st.sampled_from(["set", "grow", "snapshot", "set", "set", "remove", "end"])
STEPS = st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 2), HOW), min_size=4, max_size=12)
KEYS = st.sampled_from([kind for kind in PLAIN if kind.source in {"int", "str", "bytes", "date", "Word"}])

COLUMNS = st.sampled_from(
    [kind for kind in PLAIN if kind.source in {"bool", "int", "float", "str", "bytes", "date", "Word", "Number"}]
)


@st.composite
def sources(draw: st.DrawFn) -> str:
    """Draw the source of ready folds over values of one type."""
    shared = draw(st.booleans())
    kind: Kind = draw(FROZEN if shared else KINDS)
    key: Kind = draw(KEYS)
    column: Kind = draw(COLUMNS)
    return write_source(
        *(kind.source, draw(_few(kind.values)), key.source, draw(_few(key.exact)), column.source),
        draw(_few(column.exact)),
        shared=shared,
    )


def _few(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(values, min_size=1, max_size=3)


def write_source(
    value: str, values: list[str], key: str, keys: list[str], column: str, columns: list[str], *, shared: bool
) -> str:
    """Return the source of ready folds over a type of values, of keys and of columns."""
    return f"""
VALUE, KEY, COLUMN, SHARED = {value}, {key}, {column}, {shared}
MAKERS, KEYS, COLUMNS = {make_makers(values)}, {make_makers(keys)}, {make_makers(columns)}
{FOLDS}"""


make_folds = partial(make_module, "generated_ready_folds")


def list_sent(name: str, made: ModuleType, steps: list[tuple[str, int, str]]) -> list[tuple[str, Any]]:
    """Return the messages of the steps with their keys, after a snapshot of each session."""
    steps = [("p", 0, "snapshot"), ("q", 1, "snapshot"), *steps]
    return [(key, made.make_message(name, at, place, how)) for at, (key, place, how) in enumerate(steps)]


def check_splits(name: str, made: ModuleType, steps: list[tuple[str, int, str]]) -> None:
    """Compare batches of one message with crashes, and batches of two without, with a single batch."""
    stream = made.make_stream(name)
    sent = [SentMessage[Any](value=value, key=key) for key, value in list_sent(name, made, steps)]
    whole = run(stream, *sent)
    assert whole == run(stream, *sent, split=1)
    assert whole == run(stream, *sent, split=Split(2, crashes=False))


@pytest.mark.parametrize("name", first_usual(3, NAMES))
@settings(max_examples=EXAMPLES)
@given(made=sources().map(make_folds), steps=STEPS)
def test_any_split_gives_the_same_rows(name: str, made: ModuleType, steps: list[tuple[str, int, str]]) -> None:
    check_splits(name, made, steps)


@pytest.mark.parametrize("name", ["table", "columns"])
@pytest.mark.parametrize(
    ("kind", "value"),
    {
        "float": "float('nan')",
        "Point": "Point(float('nan'))",
        "Decimal": "Decimal('NaN')",
        "tuple[float, ...]": "(float('nan'),)",
    }.items(),
)
def test_a_constant_that_equals_itself_by_identity_alone_is_no_change(kind: str, value: str, name: str) -> None:
    made = make_folds(write_source(kind, [value], "int", ["1"], "float", ["float('nan')"], shared=True))
    check_splits(name, made, [("p", 0, "set")] * 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES_DEEP)
@given(made=sources().map(make_folds), steps=STEPS)
def test_any_split_of_many_more_gives_the_same_rows(
    name: str, made: ModuleType, steps: list[tuple[str, int, str]]
) -> None:
    check_splits(name, made, steps)
