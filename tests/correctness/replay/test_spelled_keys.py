"""Keys are numbers: each has one row in the state and in the table, however a producer spells it."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from lockstep import (
    ColumnFold,
    DecimalType,
    Envelope,
    InitialState,
    Kind,
    MapState,
    Ordered,
    Record,
    Stream,
    TableFields,
    TableFold,
    Topics,
    Transform,
)
from lockstep.errors import DeclarationError
from lockstep.state.codec import StateSchema
from lockstep.testing import SentMessage, run
from tests.correctness.replay.replaying import replay
from tests.support.examples import THOROUGH, scale_examples
from tests.support.spellings import spell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.declare.stream import AnyStream

PRICE = DecimalType(28, 10)
Price = Annotated[Decimal, PRICE]
NUMBERS = [Decimal(each) for each in ("0", "1", "-1", "100", "8442.65", "1.7E-7", "-2.5E+3", "99999999.12345678")]
"""Few, so that each occurs often; they differ as floats, too."""


class Line(msgspec.Struct):
    """A level: its price as text."""

    price: str
    size: int | None


class Lines(msgspec.Struct):
    """Changed levels; in a snapshot, all levels."""

    rows: list[Line]
    snapshot: bool

    def envelope(self) -> Envelope:
        return Envelope("s", Kind.SNAPSHOT if self.snapshot else Kind.UPDATE)


class LevelRow(msgspec.Struct, frozen=True):
    """A changed level."""

    price: Price
    size: int | None


class ByText(TableFold[Lines, Decimal, int, LevelRow]):
    """Reads prices from their texts."""

    key = ("price",)
    removed = "size"

    def envelope(self, message: Lines, record: Record) -> Envelope:
        return message.envelope()

    def changes(self, message: Lines) -> Iterable[tuple[Decimal, int | None]]:
        for line in message.rows:
            yield self.read(line.price), line.size

    def read(self, price: str) -> Decimal:
        return PRICE.canonical(price)

    def emit(self, message: Lines | None, key: Decimal, new: int | None, previous: int | None) -> LevelRow:
        return LevelRow(key, new)


class ByReader(ByText):
    """Reads prices from their texts, and remembers them."""

    reader = staticmethod(PRICE.make_reader())

    def read(self, price: str) -> Decimal:
        return self.reader(price)


class OfAnyScale(ByText):
    """Makes numbers that keep the zeros of their texts."""

    def read(self, price: str) -> Decimal:
        return Decimal(price)


class TextRow(msgspec.Struct, frozen=True):
    """A changed level whose key is a text."""

    price: str
    size: int | None


class ByRows(Transform[Lines, MapState[str, int], TextRow]):
    """A table that is stored row by row: its keys are the texts of the canonical numbers."""

    key = ("price",)
    removed = "size"

    def envelope(self, message: Lines, record: Record) -> Envelope:
        return message.envelope()

    def on_snapshot(
        self, message: Lines, record: Record, previous: MapState[str, int] | None
    ) -> InitialState[MapState[str, int], TextRow]:
        table = MapState[str, int]()
        rows = list(self.on_update(table, message, record))
        gone = [TextRow(price, None) for price in previous or () if price not in table]
        return InitialState(table, [*gone, *rows])

    def on_update(self, state: MapState[str, int], message: Lines, record: Record) -> Iterable[TextRow]:
        for line in message.rows:
            price = str(PRICE.canonical(line.price))
            if line.size is not None:
                state[price] = line.size
            elif state.pop(price, None) is None:
                continue
            yield TextRow(price, line.size)


class DecimalLine(msgspec.Struct):
    """A level whose price is a number of any scale."""

    price: Decimal
    size: int | UnsetType = UNSET


class FloatLine(msgspec.Struct):
    """A level whose price is a float."""

    price: float
    size: int | UnsetType = UNSET


class WholeDecimals(msgspec.Struct, tag="snapshot"):
    rows: list[DecimalLine]


class Decimals(msgspec.Struct, tag="update"):
    rows: list[DecimalLine]


class WholeFloats(msgspec.Struct, tag="snapshot"):
    rows: list[FloatLine]


class Floats(msgspec.Struct, tag="update"):
    rows: list[FloatLine]


class Size(msgspec.Struct, frozen=True):
    """A row of the state."""

    size: int


class FloatRow(msgspec.Struct, frozen=True):
    """A changed level whose key is a float."""

    price: float
    size: int | None


class ByDecimalColumn(ColumnFold[WholeDecimals | Decimals, Decimal, Size, LevelRow]):
    """Typed columns with a Decimal as key."""

    fields = TableFields(snapshot=WholeDecimals, rows="rows", key="price")


class ByFloatColumn(ColumnFold[WholeFloats | Floats, float, Size, FloatRow]):
    """Typed columns with a float as key."""

    fields = TableFields(snapshot=WholeFloats, rows="rows", key="price")


def make_stream(transform: Any) -> AnyStream:
    return Stream(name="levels", topics=Topics(pattern="levels"), transform=transform, integrity=Ordered())


Change = tuple[Decimal, str, int | None]
"""A number, one of its spellings, and the size."""


@st.composite
def changes(draw: st.DrawFn, sizes: st.SearchStrategy[int | None]) -> list[Change]:
    numbers = draw(st.lists(st.sampled_from(NUMBERS), max_size=8))
    return [(number, draw(spell(number)), draw(sizes)) for number in numbers]


def expect(messages: list[list[Change]]) -> dict[Decimal, int]:
    """Return the table after all messages, by value; the first message is a snapshot, and each fourth after it."""
    table: dict[Decimal, int] = {}
    for number, message in enumerate(messages):
        if number % 4 == 0:
            table = {}
        for price, _, size in message:
            table.pop(price, None)
            if size is not None:
                table[price] = size
    return table


def check(stream: AnyStream, sent: list[bytes], expected: dict[Decimal, int], *, is_exact: bool = True) -> None:
    """Compare the state, the replayed rows and batches of one message with the table by value."""
    messages = [SentMessage[Any](value=value, key="s") for value in sent]
    ran = run(stream, *messages).or_raise()
    table = {str(key): getattr(size, "size", size) for key, size in ran.states.get("s", {}).items()}
    number = Decimal if is_exact else lambda text: Decimal(repr(float(text)))
    assert len(table) == len(expected)
    assert {number(key): size for key, size in table.items()} == expected
    replayed = replay(ran.proven, ("price",), "size").get("s", {})
    assert {number(str(key)): row.size for (key,), row in replayed.items()} == expected
    assert len(replayed) == len(expected)
    assert run(stream, *messages, split=1) == ran


SIZES = st.sampled_from([None, None, 1, 2])


@pytest.mark.parametrize("fold", [ByText(), ByReader(), OfAnyScale(), ByRows()], ids=lambda fold: type(fold).__name__)
@settings(max_examples=scale_examples(THOROUGH, usual=12))
@given(messages=st.lists(changes(SIZES), min_size=1, max_size=6))
def test_a_number_has_one_row_in_whatever_way_it_is_spelled(fold: Any, messages: list[list[Change]]) -> None:
    sent = [
        msgspec.json.encode(Lines([Line(text, size) for _, text, size in message], number % 4 == 0))
        for number, message in enumerate(messages)
    ]
    check(make_stream(fold), sent, expect(messages))


def spell_in_json(text: str) -> str:
    """Return the text in JSON syntax: no plus, a digit on both sides of the point, no leading zeros."""
    sign = "-" if text.startswith("-") else ""
    digits = text.removeprefix("+").removeprefix("-")
    mantissa, _, exponent = digits.lower().partition("e")
    whole, point, rest = mantissa.partition(".")
    return f"{sign}{whole.lstrip('0') or '0'}{point}{rest or '0' * len(point)}{exponent and 'e' + exponent}"


@pytest.mark.parametrize("fold", [ByDecimalColumn(), ByFloatColumn()], ids=lambda fold: type(fold).__name__)
@settings(max_examples=scale_examples(THOROUGH, usual=12))
@given(messages=st.lists(changes(st.integers(1, 3)), min_size=1, max_size=6), as_text=st.booleans())
def test_a_number_has_one_row_in_typed_columns(fold: Any, messages: list[list[Change]], *, as_text: bool) -> None:
    is_exact = isinstance(fold, ByDecimalColumn)
    quote = '"' if as_text and is_exact else ""
    sent = []
    for number, message in enumerate(messages):
        rows = (f'{{"price": {quote}{spell_in_json(text)}{quote}, "size": {size}}}' for _, text, size in message)
        kind = "update" if number % 4 else "snapshot"
        sent.append(f'{{"type": "{kind}", "rows": [{", ".join(rows)}]}}'.encode())
    check(make_stream(fold), sent, expect(messages), is_exact=is_exact)


@pytest.mark.parametrize("key", [Decimal, float, tuple[str, Decimal], int | float])
def test_keys_with_several_encodings_are_refused_for_a_table_that_is_stored_row_by_row(key: Any) -> None:
    with pytest.raises(DeclarationError, match=r"has no single encoding(.|\n)*DecimalType.canonical"):
        StateSchema(MapState[key, int])
