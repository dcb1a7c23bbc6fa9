"""Loads recorded feeds.

A recording is a gzip file `<book>_<day>.gz` of lines "receive time in ns, space, JSON": one REST
snapshot per book, depth differences, best-price tickers. Links of a difference:

* futures (they carry `pu`): `pu` equals the `u` of the previous difference;
* spot: `U` equals the `u` of the previous difference + 1.

The trap in every such recording: REST answers slower than the socket, so the snapshot is AFTER
differences it already contains (stale) and, on futures, after some it does not contain. Hence two
correct ways to load one:

* `as_sent`: as a good producer sends it: the snapshot first, then the differences it does not
  contain. Nothing is missing, a strict stream accepts it.
* `as_received`: in the order of the file. A strict stream must refuse it, unless it is declared to wait for
  snapshots (`buffer_until_snapshot`).

The file of the second day has no snapshot: alone it must be refused; after the first day's (one
call with both paths, or produced after it) it continues over midnight without a break.

Other than in `recordings`, the snapshot is first, so a recording is loaded as it was received.
Values are the bytes of the recording, untouched. `book` is the key, which is the session, and the
last part of the topic's name. To play a recording again as a new session, give it a new `book`:
`msgspec.structs.replace(message, book="xmr_usd-2")`.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


NANOSECONDS_PER_MILLISECOND = 1_000_000


class RecordedKind(StrEnum):
    """Kind of a recorded message."""

    SNAPSHOT = "snapshot"
    DIFFERENCE = "difference"
    TICKER = "ticker"


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded message.

    Attributes:
        book: The recorded book, for example `spot_btcusdt`: the session, and a fit topic suffix.
        kind: Snapshot, difference or best-price ticker.
        value: The raw JSON bytes as the exchange sent them.
        received_ns: When the collector received it, in ns since 1970 UTC.
        last_id: The last update of the exchange that it reflects: `u`, or `lastUpdateId`; 0 if the
            exchange has no numbers.
        first_id: The first update that a difference reflects: `U`; None for other kinds.
        previous_id: `pu`, futures' differences only: the `u` of the previous difference.
    """

    book: str
    kind: RecordedKind
    value: bytes
    received_ns: int
    last_id: int = 0
    first_id: int | None = None
    previous_id: int | None = None

    @property
    def key(self) -> bytes:
        """The message key: the session."""
        return self.book.encode()

    @property
    def timestamp_ms(self) -> int:
        """The receive time as a Kafka timestamp."""
        return self.received_ns // NANOSECONDS_PER_MILLISECOND


class Sent(msgspec.Struct, frozen=True):
    """A recording as a good producer sends it.

    Attributes:
        messages: The snapshot, if the recording has one, then the differences after it.
        stale: Differences left out because the snapshot contains them.
        tickers: Best prices by the exchange, in order of `last_id`: for the oracle, not for the topic.
    """

    messages: tuple[Recorded, ...]
    stale: tuple[Recorded, ...]
    tickers: tuple[Recorded, ...]


class RecordingError(LockstepError):
    """A file is not a recording of this kind.

    Attributes:
        path: The file.
        line: The number of the line, from 1; 0 when the file as a whole is wrong.
    """

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(
            f"{path}, line {line}: {problem}",
            next_step="download the file again from the source in its PROVENANCE.txt",
        )
        self.path = path
        self.line = line


class _Data(msgspec.Struct, rename={"first_id": "U", "last_id": "u", "previous_id": "pu"}):
    last_id: int = 0
    first_id: int | None = None
    previous_id: int | None = None


class _Message(msgspec.Struct, rename={"snapshot_id": "lastUpdateId"}):
    snapshot_id: int | None = None
    stream: str = ""
    data: _Data = msgspec.field(default_factory=_Data)


_message = msgspec.json.Decoder(_Message)
_channels = {"depth": RecordedKind.DIFFERENCE, "bookTicker": RecordedKind.TICKER}


def read_recorded_books(folder: Path) -> tuple[str, ...]:
    """The books recorded in a folder, by name."""
    return tuple(sorted({path.name.rpartition("_")[0] for path in folder.glob("*.gz")}))


def read_recorded_days(folder: Path, book: str) -> tuple[Path, ...]:
    """The files of one book in order of time; join them by loading them in one call."""
    return tuple(sorted(folder.glob(f"{book}_*.gz")))


def to_received(paths: Sequence[Path]) -> tuple[Recorded, ...]:
    """Snapshot and differences in the order of their arrival, tickers left out.

    Raises:
        RecordingError: A line is not of a recording.
    """
    return tuple(message for message in _read(paths) if message.kind is not RecordedKind.TICKER)


def to_sent(paths: Sequence[Path]) -> Sent:
    """Load files of one book as a good producer sends it.

    Without a snapshot in the files every difference is kept: it continues the end of another file.

    Raises:
        RecordingError: A line is not of a recording, or there is more than one snapshot.
    """
    messages = tuple(_read(paths))
    snapshots = tuple(message for message in messages if message.kind is RecordedKind.SNAPSHOT)
    if len(snapshots) > 1:
        raise RecordingError(paths[-1], 0, f"{len(snapshots)} snapshots in one recording, at most 1 is known")
    differences = [message for message in messages if message.kind is RecordedKind.DIFFERENCE]
    stale = tuple(each for each in differences if any(is_stale(each, known) for known in snapshots))
    kept = [each for each in differences if not any(is_stale(each, known) for known in snapshots)]
    tickers = sorted((each for each in messages if each.kind is RecordedKind.TICKER), key=lambda each: each.last_id)
    return Sent((*snapshots, *kept), stale, tuple(tickers))


def is_stale(difference: Recorded, snapshot: Recorded) -> bool:
    """Whether a snapshot already contains a difference, by the exchange's rule for each market."""
    if difference.previous_id is not None:
        return difference.last_id < snapshot.last_id
    return difference.last_id <= snapshot.last_id


def _read(paths: Iterable[Path]) -> Iterator[Recorded]:
    for path in paths:
        book = path.name.rpartition("_")[0]
        with gzip.open(path) as recording:
            for number, line in enumerate(recording, start=1):
                message = _parsed(path, number, book, line)
                if message is not None:
                    yield message


def _parsed(path: Path, number: int, book: str, line: bytes) -> Recorded | None:
    received, _, value = line.rstrip(b"\n").partition(b" ")
    try:
        return _recorded(book, int(received), value)
    except (ValueError, KeyError) as error:  # msgspec.DecodeError is a ValueError
        raise RecordingError(path, number, f"not a recorded message: {error!r}") from error


def _recorded(book: str, received_ns: int, value: bytes) -> Recorded | None:
    message = _message.decode(value)
    if message.snapshot_id is not None:
        return Recorded(
            book=book, kind=RecordedKind.SNAPSHOT, value=value, received_ns=received_ns, last_id=message.snapshot_id
        )
    channel = message.stream.split("@")[1] if "@" in message.stream else message.stream
    if channel == "trade":  # whole recordings have them; they prove nothing about the book
        return None
    return Recorded(
        book=book,
        kind=_channels[channel],
        value=value,
        received_ns=received_ns,
        last_id=message.data.last_id,
        first_id=message.data.first_id,
        previous_id=message.data.previous_id,
    )


NANOSECONDS = 1_000_000_000
META = (b"wss", b"http", b"configuration")
"""Prefixes of lines that record events of the collector itself."""


class _Market(msgspec.Struct):
    id: str
    img: bool = False


class _Markets(msgspec.Struct):
    pt: int
    mc: tuple[_Market]


_parts = msgspec.json.Decoder(tuple[int | dict[str, object] | str, ...])
_markets = msgspec.json.Decoder(_Markets)


def read_checksummed_books(path: Path) -> Mapping[str, tuple[Recorded, ...]]:
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


def read_betting_market(path: Path) -> tuple[Recorded, ...]:
    """The recorded messages of one betting market; its only time is that of publishing.

    A message with `img` is a snapshot. Historical files of the kind "basic" hold none: a strict
    stream refuses them, because nothing in them proves that they are complete.

    Raises:
        RecordingError: A line is not of such a recording, or belongs to another market.
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


def _kind(*, whole: bool) -> RecordedKind:
    return RecordedKind.SNAPSHOT if whole else RecordedKind.DIFFERENCE
