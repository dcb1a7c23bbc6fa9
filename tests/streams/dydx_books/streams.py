"""A stream over one connection to an exchange that carries all its markets. Executors import it by name.

The session is the connection, because its numbers count all messages of the connection. The state is the books of all
markets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from lockstep import Envelope, InitialState, Kind, Record, Stream, Topics, Transform
from lockstep.integrity.base import IntegrityClass


class Level(msgspec.Struct, array_like=True, frozen=True):
    """A current level, set at an offset of the exchange."""

    offset: int
    size: str


class Told(msgspec.Struct):
    """A level of a whole book."""

    price: str
    size: str
    offset: str


class Whole(msgspec.Struct):
    """A whole book; empty if the channel has trades."""

    bids: list[Told] = []
    asks: list[Told] = []


class Changes(msgspec.Struct):
    """Levels as (price, size), all set at one offset; empty if the channel has trades."""

    offset: str = "0"
    bids: list[tuple[str, str]] = []
    asks: list[tuple[str, str]] = []


class Numbered(msgspec.Struct, kw_only=True):
    """The common fields of all messages. Tests add `at_us`: a clock of the producer, instead of the receive time."""

    connection_id: str
    message_id: int
    at_us: int | None = None


class Connected(Numbered, tag="connected", tag_field="type", kw_only=True):
    """The first message of a connection, without levels. Tests add `again`: the numbers restart."""

    again: bool = False
    id: str | None = None

    def levels(self) -> Iterator[tuple[str, str, Level]]:
        """Return no levels."""
        return iter(())


class Subscribed(Numbered, tag="subscribed", tag_field="type", kw_only=True):
    """A market's whole book."""

    id: str
    contents: Whole

    def levels(self) -> Iterator[tuple[str, str, Level]]:
        """Return (side, price, level)."""
        for side, told in (("bids", self.contents.bids), ("asks", self.contents.asks)):
            for each in told:
                yield side, each.price, Level(int(each.offset), each.size)


class ChannelData(Numbered, tag="channel_data", tag_field="type", kw_only=True):
    """The changes of one market."""

    id: str
    contents: Changes

    def levels(self) -> Iterator[tuple[str, str, Level]]:
        """Return (side, price, level)."""
        offset = int(self.contents.offset)
        for side, told in (("bids", self.contents.bids), ("asks", self.contents.asks)):
            for price, size in told:
                yield side, price, Level(offset, size)


Message = Connected | Subscribed | ChannelData
Books = dict[tuple[str, str, str], Level]


class LevelSet(msgspec.Struct, frozen=True):
    """A level that was set, and its size before; only the market if a message sets none."""

    market: str | None
    side: str | None = None
    price: str | None = None
    size: str | None = None
    offset: int | None = None
    before: str | None = None


class AsTheyCome(Transform[Message, Books, LevelSet]):
    """Every level replaces the previous level."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        """The receive time is Kafka's timestamp."""
        kind = Kind.SNAPSHOT if isinstance(message, Connected) else Kind.UPDATE
        number = message.message_id
        again = isinstance(message, Connected) and message.again
        unique = f"{kind.value} {number}"  # a snapshot may carry the number of the last update
        return Envelope(
            message.connection_id,
            kind,
            sequence=number,
            id=unique,
            event_time_us=message.at_us,
            restarts_sequence=again,
        )

    def on_snapshot(self, message: Message, record: Record, previous: Books | None) -> InitialState[Books, LevelSet]:
        """Start without levels, and apply those of an update if a class lets it open the session."""
        levels: Books = {}
        return InitialState(levels, list(self.on_update(levels, message, record)))

    def on_update(self, state: Books, message: Message, record: Record) -> Iterable[LevelSet]:
        """Emit a row for each level."""
        emitted = False
        for side, price, level in message.levels():
            key = (message.id or "", side, price)
            before = state.get(key)
            if self.replaces(before, level):
                state[key], emitted = level, True
                yield LevelSet(message.id, side, price, level.size, level.offset, before.size if before else None)
        if not emitted:
            yield LevelSet(message.id)

    def replaces(self, before: Level | None, level: Level) -> bool:
        """Whether a level replaces the previous level."""
        return True


class Newest(AsTheyCome):
    """A level replaces the previous level if the exchange set it later."""

    def replaces(self, before: Level | None, level: Level) -> bool:
        """Compare the offsets of the exchange."""
        return before is None or level.offset > before.offset


def books(
    pattern: str, integrity: IntegrityClass, transform: AsTheyCome | None = None
) -> Stream[Message, Books, LevelSet]:
    """Return the stream over the topics of one test."""
    return Stream(
        name="dydx_books", topics=Topics(pattern=pattern), transform=transform or Newest(), integrity=integrity
    )
