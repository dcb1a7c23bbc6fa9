"""A stream whose rows have a column of each kind that rules check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated

import msgspec

from lockstep import DecimalType, Envelope, InitialState, Kind, NoIntegrity, Record, Stream, Topics, Transform
from lockstep.declare.rules import Rule
from lockstep.integrity.base import IntegrityClass
from lockstep.rules import InRange, InSet, Matches, NotNull


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Ruled(msgspec.Struct, frozen=True):
    """A message, and the row made from it."""

    name: str = "a"
    number: float | None = 1.0
    count: int = 1
    colour: Colour = Colour.RED
    amount: Annotated[Decimal, DecimalType(10, 2)] = Decimal(1)
    at: datetime | None = None
    day: date | None = None


class Message(msgspec.Struct):
    rows: list[Ruled]
    kind: Kind = Kind.UPDATE


class Total(msgspec.Struct):
    rows: int = 0


class RuledTransform(Transform[Message, Total, Ruled]):
    """A transform that counts its rows before it emits them."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        return Envelope(record.key_text, message.kind)

    def on_snapshot(self, message: Message, record: Record, previous: Total | None) -> InitialState[Total, Ruled]:
        del record
        return InitialState(Total(len(message.rows)), message.rows)

    def on_update(self, state: Total, message: Message, record: Record) -> Iterable[Ruled]:
        del record
        state.rows += len(message.rows)
        yield from message.rows

    def on_end(self, state: Total) -> Iterable[Ruled]:
        yield Ruled(count=-state.rows)


def ruled(*rules: Rule, integrity: IntegrityClass | None = None) -> Stream[Message, Total, Ruled]:
    """Return the stream with these rules."""
    return Stream(
        name="ruled",
        topics=Topics(pattern=r"ruled\..+"),
        transform=RuledTransform(),
        integrity=integrity or NoIntegrity(),
        rules=rules,
    )


def find_verdicts(rules: Sequence[Rule], row: Ruled) -> dict[str, bool]:
    """Return whether the row keeps each rule, by name, as judged by the rules' own Python."""
    from lockstep.declare.rules import ColumnRule

    return {rule.name: rule.is_kept_by(row) for rule in rules if isinstance(rule, ColumnRule)}


ALL = (
    NotNull("number"),
    InRange("number", at_least=0, id="number_from_zero"),
    InRange("number", at_most=10, nullable=True, id="number_to_ten"),
    InRange("amount", at_least=Decimal("0.5"), at_most=2),
    InRange("at", at_least=datetime(2020, 1, 1, tzinfo=UTC), nullable=True),
    InRange("day", at_most=date(2030, 1, 1), nullable=True),
    InSet("name", {"b", "a"}),
    InSet("colour", [Colour.RED]),
    Matches("name", r"[a-z]"),
    Matches("name", r".*$", id="name_one_line"),
)
ROWS: list[tuple[Ruled, set[str]]] = [
    (Ruled(), set()),
    (Ruled(number=None), {"number_not_null", "number_from_zero"}),
    (Ruled(number=float("nan")), {"number_from_zero", "number_to_ten"}),
    (Ruled(number=float("inf")), {"number_to_ten"}),
    (Ruled(number=-1), {"number_from_zero"}),
    (Ruled(number=0, amount=Decimal("0.49")), {"amount_in_range"}),
    (Ruled(number=10, amount=Decimal("2.00")), set()),
    (Ruled(at=datetime(2019, 12, 31, 23, tzinfo=UTC), day=date(2030, 1, 2)), {"at_in_range", "day_in_range"}),
    (Ruled(name="c"), {"name_in_set"}),
    (Ruled(name="a\n"), {"name_in_set", "name_matches", "name_one_line"}),
    (Ruled(name="a\r\u2028\u0085b"), {"name_in_set", "name_matches"}),
    (Ruled(name=""), {"name_in_set", "name_matches"}),
    (Ruled(name="\u00e4", colour=Colour.BLUE), {"name_in_set", "name_matches", "colour_in_set"}),
]
"""Rows, and the rules that each row violates."""
