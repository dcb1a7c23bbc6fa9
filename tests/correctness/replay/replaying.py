"""A plain replay of the rows of a table to its sessions, and streams to test it with."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from lockstep import (
    DecimalType,
    Envelope,
    EventTime,
    FuzzyWindow,
    Kind,
    NoIntegrity,
    Once,
    Ordered,
    Record,
    Sequence,
    Stream,
    Strict,
    Suspend,
    TableFold,
    Topics,
)
from lockstep.integrity.base import SessionStart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.declare.stream import AnyStream
    from lockstep.testing import RowWithOrigin

Price = Annotated[Decimal, DecimalType(20, 6)]
Key = tuple[str, Decimal]


class Sent(msgspec.Struct):
    """A message of a book: levels as (side, price, size, note); a level without a size is removed."""

    kind: Kind
    n: int
    levels: list[tuple[str, Decimal, float | None, str | None]] = []
    t: int = 0
    restarts_sequence: bool = False


class Level(msgspec.Struct, frozen=True):
    """The value of a level; `size` is never None."""

    size: float
    note: str | None = None


class LevelRow(msgspec.Struct, frozen=True):
    """A changed level."""

    side: str
    price: Price
    size: float | None
    note: str | None
    previous_size: float | None


class Book(TableFold[Sent, Key, Level, LevelRow]):
    """The levels of a market."""

    numbered = True
    key = ("side", "price")
    removed = "size"

    def envelope(self, message: Sent, record: Record) -> Envelope:
        return Envelope(
            record.key_text,
            message.kind,
            sequence=message.n if self.numbered else None,
            id=message.n,
            event_time_us=message.t * 1_000_000,
            restarts_sequence=message.restarts_sequence,
        )

    def changes(self, message: Sent) -> Iterable[tuple[Key, Level | None]]:
        for side, price, size, note in message.levels:
            yield (side, price), None if size is None else Level(size, note)

    def emit(self, message: Sent | None, key: Key, new: Level | None, previous: Level | None) -> LevelRow:
        return LevelRow(
            *key,
            None if new is None else new.size,
            None if new is None else new.note,
            None if previous is None else previous.size,
        )


class UnnumberedBook(Book):
    """Its messages are put in order by their event time."""

    numbered = False


class OverridingBook(Book):
    """Overrides the snapshot, and changes the previous table in place."""

    def on_snapshot(self, message: Sent, record: Record, previous: dict[Key, Level] | None) -> dict[Key, Level]:
        table = {} if previous is None else previous
        fresh = super().on_snapshot(message, record, None)
        for gone in table.keys() - fresh.keys():
            del table[gone]
        table.update(fresh)
        return table


FIRST = SessionStart.FIRST_MESSAGE
LATENESS = timedelta(seconds=5)
CLASSES = {
    "strict": Strict(evidence=Sequence()),
    "strict, suspends": Strict(evidence=Sequence(), on_violation=Suspend()),
    "strict, accepts loss": Strict(evidence=Sequence(), on_violation=Suspend(accept_loss=True)),
    "ordered": Ordered(),
    "ordered, first message": Ordered(session_start=FIRST),
    "window": FuzzyWindow(lateness=LATENESS),
    "window, reordered": FuzzyWindow(lateness=LATENESS, reorder=True),
    "window, reordered, first message": FuzzyWindow(lateness=LATENESS, reorder=True, session_start=FIRST),
    "once": Once(keep_ids=100),
    "none": NoIntegrity(),
}


def make_book(integrity: str, transform: Book | None = None) -> AnyStream:
    """Return the stream of books under a class."""
    return Stream(
        name="books",
        topics=Topics(pattern=r"books\..+"),
        transform=transform or Book(),
        integrity=CLASSES[integrity],
        event_time=EventTime(session_idle=timedelta(seconds=60)),
    )


def replay(rows: Iterable[RowWithOrigin[Any]], columns: tuple[str, ...], removed: str) -> dict[str, dict[Any, Any]]:
    """Return the newest row of each key of each session, without removed keys."""
    newest: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
    for each in sorted(rows, key=lambda row: (row.emit_offset, row.number)):
        newest[each.session][tuple(getattr(each.row, name) for name in columns)] = each.row
    current = {
        session: {key: row for key, row in table.items() if getattr(row, removed) is not None}
        for session, table in newest.items()
    }
    return {session: table for session, table in current.items() if table}
