"""The table of a ready fold is stored by rows: only changes cost, and its rows are those of a whole dict."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import (
    ColumnFold,
    DecimalType,
    Envelope,
    Kind,
    Ordered,
    Record,
    Stream,
    Suspend,
    TableFields,
    TableFold,
    Topics,
)
from lockstep.declare.stream import read_transform_types
from lockstep.model.map_state import TableState
from lockstep.model.number_keys import DIGITS_MAX, make_canonical_key
from lockstep.testing import SentMessage, Split, run

if TYPE_CHECKING:
    from collections.abc import Iterable

Price = Annotated[Decimal, DecimalType(28, 6)]
Key = tuple[str, Price]


class Level(msgspec.Struct):
    """A row that is changed in place."""

    sizes: list[int]


class Sent(msgspec.Struct):
    number: int
    how: str
    levels: list[tuple[str, str, int]]

    @property
    def kind(self) -> Kind:
        return {"snapshot": Kind.SNAPSHOT, "end": Kind.END}.get(self.how, Kind.UPDATE)


class Change(msgspec.Struct):
    side: str
    price: Price
    spelled: str
    sizes: str | None
    before: str | None


def show(level: Level | None) -> str | None:
    return None if level is None else repr(level.sizes)


class Book(TableFold[Sent, Key, Level, Change]):
    key = ("side", "price")
    removed = "sizes"

    def envelope(self, message: Sent, record: Record) -> Envelope:
        return Envelope(record.key_text, message.kind, sequence=message.number)

    def changes(self, message: Sent) -> Iterable[tuple[Key, Level | None]]:
        for side, price, size in message.levels:
            yield (side, Decimal(price)), Level([size]) if size else None

    def merge(self, previous: Level | None, change: Level) -> Level:
        return Level([*(previous.sizes[-2:] if previous else []), *change.sizes])

    def emit(self, message: Sent | None, key: Key, new: Level | None, previous: Level | None) -> Change:
        del message
        side, price = key
        return Change(side, price, str(price), show(new), show(previous))


class WholeBook(Book):
    """The same fold with a hook in which a user sees the state, so the state is stored whole."""

    def on_update(self, state: dict[Key, Level], message: Sent, record: Record) -> Iterable[Change]:
        return super().on_update(state, message, record)


class InPlace(Book):
    """A fold that changes the previous row in place, against the rule of `merge`: the change emits nothing."""

    def merge(self, previous: Level | None, change: Level) -> Level:
        if previous is None:
            return change
        previous.sizes[:] = [*previous.sizes[-2:], *change.sizes]
        return previous


class WholeInPlace(InPlace):
    def on_update(self, state: dict[Key, Level], message: Sent, record: Record) -> Iterable[Change]:
        return super().on_update(state, message, record)


def make_stream(transform: Book) -> Stream[Sent, dict[Key, Level], Change]:
    integrity = Ordered(on_violation=Suspend())
    return Stream(name="books", topics=Topics(pattern="books"), transform=transform, integrity=integrity)


PRICES = ("1", "1.0", "1.00", "10", "1E+1", "0.5", "0.50", "-0", "0.0")
LEVELS = st.tuples(st.sampled_from("ab"), st.sampled_from(PRICES), st.integers(0, 2))
STEPS = st.lists(
    st.tuples(
        st.sampled_from("pq"), st.sampled_from(["set", "set", "set", "snapshot", "end"]), st.lists(LEVELS, max_size=4)
    ),
    min_size=1,
    max_size=14,
)


def list_sent(steps: list[tuple[str, str, list[tuple[str, str, int]]]]) -> list[SentMessage[Sent]]:
    begun: list[tuple[str, str, list[tuple[str, str, int]]]] = [("p", "snapshot", []), ("q", "snapshot", [])]
    return [SentMessage(value=Sent(at, how, levels), key=key) for at, (key, how, levels) in enumerate(begun + steps)]


@pytest.mark.parametrize(("by_row", "whole"), [(Book, WholeBook), (InPlace, WholeInPlace)])
@given(steps=STEPS, size=st.integers(1, 4), crashes=st.booleans())
def test_rows_and_states_are_those_of_a_table_that_is_stored_whole(
    by_row: type[Book],
    whole: type[Book],
    steps: list[Any],
    size: int,
    crashes: bool,  # noqa: FBT001
) -> None:
    sent = list_sent(steps)
    expected = run(make_stream(whole()), *sent)
    found = run(make_stream(by_row()), *sent, split=Split(size, crashes=crashes))
    assert (found.rows, found.states) == (expected.rows, expected.states)
    assert {type(state) for state in found.states.values()} <= {dict}


class WithTimer(Book):
    def deadline(self, state: dict[Key, Level]) -> int | None:
        return None if state else 0


class WithEnd(Book):
    def on_end(self, state: dict[Key, Level]) -> Iterable[Change]:
        del state
        return ()


class WithRows(Book):
    def list_rows(self, state: dict[Key, Level]) -> Iterable[tuple[Key, Level]]:
        return state.items()


class WithStruct(msgspec.Struct, frozen=True):
    name: str


class Update(msgspec.Struct):
    rows: list[Level]


class OfStructs(TableFold[Sent, WithStruct, int, Change]):
    """A fold whose keys have no single encoding: a Struct may gain fields."""


class OfOptions(TableFold[Sent, int | str, int, Change]):
    pass


class OfFloats(TableFold[Sent, float, int, Change]):
    pass


@pytest.mark.parametrize("fold", [WholeBook, WithTimer, WithEnd, WithRows, OfStructs, OfOptions])
def test_a_table_that_code_of_the_user_sees_or_whose_keys_have_no_single_encoding_is_stored_whole(fold: type) -> None:
    types = read_transform_types(fold)
    assert types.stored == types.state


@pytest.mark.parametrize("fold", [Book, InPlace, OfFloats])
def test_any_other_table_is_stored_by_rows(fold: type) -> None:
    assert get_origin(read_transform_types(fold).stored) is TableState


class Snapshot(msgspec.Struct, tag="snapshot"):
    number: int
    rows: list[Reading]


class Reading(msgspec.Struct):
    name: str
    value: float


class Part(msgspec.Struct, tag="part"):
    number: int
    rows: list[Reading]


class Value(msgspec.Struct, frozen=True):
    value: float


class Shown(msgspec.Struct):
    name: str
    value: float | None


class Panel(ColumnFold[Snapshot | Part, str, Value, Shown]):
    fields = TableFields(snapshot=Snapshot, rows="rows", key="name", sequence="number")


class PanelWithEnd(Panel):
    def on_end(self, state: dict[str, Value]) -> Iterable[Shown]:
        del state
        return ()


def test_columns_are_stored_by_rows_and_whole_if_code_of_the_user_sees_them() -> None:
    assert get_origin(read_transform_types(Panel).stored) is TableState
    assert read_transform_types(PanelWithEnd).stored == dict[str, Value]


@st.composite
def spellings(draw: st.DrawFn) -> tuple[Decimal, Decimal]:
    """Draw two spellings of one number."""
    digits = draw(st.integers(-(10**45), 10**45))
    exponent = draw(st.integers(-80, 80))
    zeros = draw(st.integers(0, 60))
    sign = int(digits < 0)
    figures = tuple(map(int, str(abs(digits))))
    return Decimal((sign, figures, exponent)), Decimal((sign, figures + (0,) * zeros, exponent - zeros))


@given(spellings())
def test_equal_numbers_are_one_key(numbers: tuple[Decimal, Decimal]) -> None:
    one, other = (make_canonical_key(number) for number in numbers)
    assert one == numbers[0] == numbers[1]
    assert str(one) == str(other)
    assert make_canonical_key(("a", numbers[1])) == ("a", one)


def test_a_number_of_many_digits_is_not_spelled_out() -> None:
    assert str(make_canonical_key(Decimal("1E+999999"))) == "1E+999999"
    assert str(make_canonical_key(Decimal(f"1E+{DIGITS_MAX - 1}"))) == "1" + "0" * (DIGITS_MAX - 1)
    assert str(make_canonical_key(-0.0)) == "0.0"
