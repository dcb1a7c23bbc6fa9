"""Recorded feeds that need no repair before they are produced: books with checksums, betting markets.

Other than in `recordings`, the snapshot lies first, so a recording is loaded as it was received.
Values are the bytes of the recording, untouched. `book` is the key, which is the session, and the
last part of the topic's name. To play a recording again as a new session, give it a new `book`:
`msgspec.structs.replace(message, book="xmr_usd-2")`.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from lockstep.rehearsal.recordings import Kind, Recorded, RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NANOSECONDS = 1_000_000_000
NANOSECONDS_PER_MILLISECOND = 1_000_000
META = (b"wss", b"http", b"configuration")
"""How lines begin that say what the collector itself did."""


class _Market(msgspec.Struct):
    id: str
    img: bool = False


class _Markets(msgspec.Struct):
    pt: int
    mc: tuple[_Market]


_parts = msgspec.json.Decoder(tuple[int | dict[str, object] | str, ...])
_markets = msgspec.json.Decoder(_Markets)


def checksummed_books(path: Path) -> Mapping[str, tuple[Recorded, ...]]:
    """The recorded books of Kraken spot by name, for example `xmr_usd`, in order of the file.

    Heartbeats and other events belong to no book and are left out.

    Raises:
        RecordingError: A line is not of such a recording.
    """
    books: dict[str, list[Recorded]] = defaultdict(list)
    for number, line in _lines(path):
        if line.startswith(META):
            continue
        try:
            message = _book_message(line)
        except (ValueError, ArithmeticError, IndexError) as error:
            raise RecordingError(path, number, f"not a recorded book: {error!r}") from error
        if message is not None:
            books[message.book].append(message)
    return {book: tuple(messages) for book, messages in sorted(books.items())}


def betting_market(path: Path) -> tuple[Recorded, ...]:
    """The recorded messages of one betting market; the only time in it is that of publishing.

    A message with `img` is a snapshot. Historical files of the kind "basic" hold none: a strict
    stream refuses them, because nothing in them says that they are whole.

    Raises:
        RecordingError: A line is not of such a recording, or tells of another market.
    """
    messages: list[Recorded] = []
    for number, value in _lines(path):
        try:
            message = _market_message(value)
        except ValueError as error:
            raise RecordingError(path, number, f"not a recorded market: {error!r}") from error
        if message.book != (messages or [message])[0].book:
            raise RecordingError(path, number, f"of market {message.book}, the others are of {messages[0].book}")
        messages.append(message)
    return tuple(messages)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with gzip.open(path) as recording:
        for number, line in enumerate(recording, start=1):
            if line.strip():
                yield number, line.rstrip(b"\r\n")


def _book_message(line: bytes) -> Recorded | None:
    """A line "receive time in s: JSON"; None for an event."""
    received, _, value = line.partition(b": ")
    received_ns = int(Decimal(received.decode()) * NANOSECONDS)
    if value.startswith(b"{"):
        return None
    _, part, *_, pair = _parts.decode(value)
    if not isinstance(part, dict) or not isinstance(pair, str):
        raise ValueError(f"no part and pair in {value[:80]!r}")  # noqa: TRY004  # the line is wrong, not the program
    book = pair.replace("/", "_").lower()
    return Recorded(book=book, kind=_kind(whole="as" in part), value=value, received_ns=received_ns)


def _market_message(value: bytes) -> Recorded:
    message = _markets.decode(value)
    (market,) = message.mc
    return Recorded(
        book=market.id,
        kind=_kind(whole=market.img),
        value=value,
        received_ns=message.pt * NANOSECONDS_PER_MILLISECOND,
    )


def _kind(*, whole: bool) -> Kind:
    return Kind.SNAPSHOT if whole else Kind.DIFFERENCE
