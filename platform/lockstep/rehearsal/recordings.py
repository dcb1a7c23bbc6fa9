"""Recorded order books as messages to produce.

A recording is a gzip file `<book>_<day>.gz` of lines "receive time in ns, space, JSON": one REST
snapshot per book, depth differences, best-price tickers. What a difference links to:

* futures (they carry `pu`): `pu` equals the `u` of the difference before;
* spot: `U` equals the `u` of the difference before + 1.

The trap in every such recording: REST answers slower than the socket, so the snapshot lies AFTER
differences it already contains (stale) and, on futures, after some it does not contain. Hence two
honest ways to load one:

* `as_sent`: as a good producer sends it: the snapshot first, then the differences it does not
  contain. Nothing is missing, a strict stream takes it.
* `as_received`: in the order of the file. A strict stream must refuse it by name, unless it is declared to wait for
  snapshots (`buffer_until_snapshot`).

The file of the second day has no snapshot: alone it must be refused; after the first day's (one
call with both paths, or produced after it) it goes on over midnight without a break.
"""

from __future__ import annotations

import gzip
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

NANOSECONDS_PER_MILLISECOND = 1_000_000


class Kind(StrEnum):
    """What a recorded message is."""

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
        last_id: The last update of the exchange that it reflects: `u`, or `lastUpdateId`; 0 where the
            exchange numbers nothing.
        first_id: The first update that a difference reflects: `U`; None for other kinds.
        previous_id: `pu`, futures' differences only: the `u` of the difference before.
    """

    book: str
    kind: Kind
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
        tickers: Best prices by the exchange, in order of `last_id`: the oracle's side, not for the topic.
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
            next_step="take the file anew from where the PROVENANCE.txt beside it says",
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
_channels = {"depth": Kind.DIFFERENCE, "bookTicker": Kind.TICKER}


def recorded_books(folder: Path) -> tuple[str, ...]:
    """The books recorded in a folder, by name."""
    return tuple(sorted({path.name.rpartition("_")[0] for path in folder.glob("*.gz")}))


def recorded_days(folder: Path, book: str) -> tuple[Path, ...]:
    """The files of one book in order of time; join them by loading them in one call."""
    return tuple(sorted(folder.glob(f"{book}_*.gz")))


def as_received(paths: Sequence[Path]) -> tuple[Recorded, ...]:
    """Snapshot and differences in the order in which they came, tickers left out.

    Raises:
        RecordingError: A line is not of a recording.
    """
    return tuple(message for message in _read(paths) if message.kind is not Kind.TICKER)


def as_sent(paths: Sequence[Path]) -> Sent:
    """Load files of one book as a good producer sends it.

    Without a snapshot in the files every difference is kept: it goes on where another file ended.

    Raises:
        RecordingError: A line is not of a recording, or there is more than one snapshot.
    """
    messages = tuple(_read(paths))
    snapshots = tuple(message for message in messages if message.kind is Kind.SNAPSHOT)
    if len(snapshots) > 1:
        raise RecordingError(paths[-1], 0, f"{len(snapshots)} snapshots in one recording, at most 1 is known")
    differences = [message for message in messages if message.kind is Kind.DIFFERENCE]
    stale = tuple(each for each in differences if any(is_stale(each, known) for known in snapshots))
    kept = [each for each in differences if not any(is_stale(each, known) for known in snapshots)]
    tickers = sorted((each for each in messages if each.kind is Kind.TICKER), key=lambda each: each.last_id)
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
            book=book, kind=Kind.SNAPSHOT, value=value, received_ns=received_ns, last_id=message.snapshot_id
        )
    channel = message.stream.split("@")[1] if "@" in message.stream else message.stream
    if channel == "trade":  # whole recordings have them; they say nothing of the book
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
