"""Real messages with one fault each, inserted by position, and a new snapshot near the end.

The recording is sorted by its numbers, as a correct producer sends it. The messages around a fault keep their bytes,
except for the numbers after an inserted message or a restart. Nothing here uses the product.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING

from tests.streams.dydx_books.plain_fold import Folded, fold
from tests.streams.dydx_books.recording import Message, as_numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAIN, TAIL = 300, 20
"""Messages before the new snapshot, and after it."""
EARLIEST, LATEST = 60, 100
"""Bounds for the position of a fault: after the first snapshots of all books."""
NEAR, FAR = 10, 150
"""Distances by which messages are moved: inside the bound of lateness, and beyond it."""
STARTS_AT, BEGINS_ANEW_AT = 5_000, 100
"""The first number of a session, and the number to which it then goes back."""


class Fault(Enum):
    """The fault of a log; for snapshots, a variant that is not a fault."""

    REPEATED = "same number again, same content, at once"
    REPEATED_LATER = "same number again, same content, later"
    OTHER_CONTENT = "same number again, other content"
    LOST = "number jumps ahead"
    SESSION_SPLIT = "number goes back, inside the bound"
    MOVED_FAR = "number goes back, beyond the bound"
    STRAY = "update before snapshot"
    SNAPSHOT_NEXT = "second snapshot, next number"
    SNAPSHOT_SAME = "second snapshot, number of the last update"
    SNAPSHOT_BACK = "second snapshot, number goes back"
    SNAPSHOT_DECLARED = "second snapshot, number goes back, declared"
    GARBAGE = "cannot be decoded"
    RAISES = "the transform raises"
    BEFORE_1970 = "event time before 1970"
    YEAR_9999 = "event time in the year 9999"
    NANOSECONDS = "event time in nanoseconds"


@dataclass(frozen=True)
class Faulty:
    """A log with one fault.

    Attributes:
        messages: All messages, at offsets from 0.
        at: Offset of the wrong message, or of the successor of a missing message.
        first: Offset of the first message that is not as it should be.
        tail: Offset of the new snapshot.
    """

    messages: tuple[Message, ...]
    at: int
    first: int
    tail: int

    def folded(self, offsets: Sequence[int]) -> Folded:
        """Fold some of the messages plainly, in this order."""
        return fold((self.messages[offset].value for offset in offsets), newest=False)

    def numbered(self) -> list[int]:
        """Return all offsets in the order of the producer's numbers."""
        return sorted(range(len(self.messages)), key=lambda offset: self.messages[offset].number)


@cache
def faulty(fault: Fault) -> Faulty:
    """Return the log with this fault, at the first position that changes the plain fold before the new snapshot."""
    inject = _INJECTED[fault]
    clean = _ended(clean_log())
    made = (_whole(*inject(list(as_numbered()[:MAIN]), at)) for at in range(EARLIEST, LATEST))
    return next(each for each in made if fault not in MATTERING or _ended(each) != clean)


@cache
def clean_log() -> Faulty:
    """Return the log without a fault."""
    return _whole(list(as_numbered()[:MAIN]), 0, 0)


def _whole(main: list[Message], at: int, first: int) -> Faulty:
    """Append a new snapshot and the messages after it; its numbers continue."""
    last = main[-1]
    snapshot = _changed(as_numbered()[0], number=last.number + 1, timestamp_ms=last.timestamp_ms)
    follow = _shifted(as_numbered()[MAIN : MAIN + TAIL], snapshot.number + 1 - MAIN)
    return Faulty((*main, snapshot, *follow), at, first, len(main))


def _ended(log: Faulty) -> tuple[object, ...]:
    """Return the row count and the books before the tail, by a fold without a gate that skips unreadable values."""
    values = [message.value for message in log.messages[: log.tail] if _is_readable(message.value)]
    folded = fold(values, newest=False)
    return len(folded.rows), tuple(sorted(folded.levels.items()))


def _is_readable(value: bytes) -> bool:
    try:
        contents = json.loads(value).get("contents") or {}
        return str(contents.get("offset", "0")).isdigit()
    except ValueError:
        return False


def _changed(
    message: Message, *, number: int | None = None, timestamp_ms: int | None = None, **parts: object
) -> Message:
    """Return the message with another number, time, or other parts of its body."""
    body = json.loads(message.value)
    body |= {**parts, "message_id": message.number if number is None else number}
    value = json.dumps(body, separators=(",", ":")).encode()
    at_ms = message.timestamp_ms if timestamp_ms is None else timestamp_ms
    return replace(message, value=value, number=body["message_id"], timestamp_ms=at_ms)


def with_number(message: Message, number: int, timestamp_ms: int) -> Message:
    """Return the message with another number and time."""
    return _changed(message, number=number, timestamp_ms=timestamp_ms)


def _shifted(messages: Sequence[Message], by: int) -> list[Message]:
    return [_changed(each, number=each.number + by) for each in messages]


Injected = tuple[list[Message], int, int]


def _repeated(sent: list[Message], at: int) -> Injected:
    return [*sent[: at + 1], sent[at], *sent[at + 1 :]], at + 1, at + 1


def _repeated_later(sent: list[Message], at: int) -> Injected:
    later = at + 30
    return [*sent[:later], sent[at], *sent[later:]], later, later


def _other_content(sent: list[Message], at: int) -> Injected:
    other = _changed(sent[at + 30], number=sent[at].number, timestamp_ms=sent[at].timestamp_ms)
    return [*sent[: at + 1], other, *sent[at + 1 :]], at + 1, at + 1


def _lost(sent: list[Message], at: int) -> Injected:
    return [*sent[:at], *sent[at + 1 :]], at, at


def _moved_by(places: int) -> Callable[[list[Message], int], Injected]:
    def moved(sent: list[Message], at: int) -> Injected:
        to = at + places
        return [*sent[:at], *sent[at + 1 : to + 1], sent[at], *sent[to + 1 :]], to, at

    return moved


def _stray(sent: list[Message], at: int) -> Injected:
    stray = _changed(sent[at + 30], connection_id="a connection that nobody opened")
    return [*sent[:at], stray, *sent[at:]], at, at


def _snapshot_next(sent: list[Message], at: int) -> Injected:
    snapshot = _changed(sent[0], number=sent[at].number, timestamp_ms=sent[at].timestamp_ms)
    return [*sent[:at], snapshot, *_shifted(sent[at:], 1)], at, at


def _snapshot_same(sent: list[Message], at: int) -> Injected:
    snapshot = _changed(sent[0], number=sent[at - 1].number, timestamp_ms=sent[at - 1].timestamp_ms)
    return [*sent[:at], snapshot, *sent[at:]], at, at


def _on_recreated(sent: list[Message], at: int, **parts: object) -> Injected:
    """A session that starts at any number, and whose numbers then restart at a lower number."""
    snapshot = _changed(sent[0], number=BEGINS_ANEW_AT, timestamp_ms=sent[at].timestamp_ms, **parts)
    anew = _shifted(sent[at:], BEGINS_ANEW_AT + 1 - sent[at].number)
    return [*_shifted(sent[:at], STARTS_AT), snapshot, *anew], at, at


def _garbage(sent: list[Message], at: int) -> Injected:
    return [*sent[:at], replace(sent[at], value=sent[at].value[:-9]), *sent[at + 1 :]], at, at


def _raises(sent: list[Message], at: int) -> Injected:
    broken = _changed(sent[at], contents=json.loads(sent[at].value)["contents"] | {"offset": "unknown"})
    return [*sent[:at], broken, *sent[at + 1 :]], at, at


def _timed(at_us: int) -> Callable[[list[Message], int], Injected]:
    def timed(sent: list[Message], at: int) -> Injected:
        return [*sent[:at], _changed(sent[at], at_us=at_us), *sent[at + 1 :]], at, at

    return timed


_INJECTED: dict[Fault, Callable[[list[Message], int], Injected]] = {
    Fault.REPEATED: _repeated,
    Fault.REPEATED_LATER: _repeated_later,
    Fault.OTHER_CONTENT: _other_content,
    Fault.LOST: _lost,
    Fault.SESSION_SPLIT: _moved_by(NEAR),
    Fault.MOVED_FAR: _moved_by(FAR),
    Fault.STRAY: _stray,
    Fault.SNAPSHOT_NEXT: _snapshot_next,
    Fault.SNAPSHOT_SAME: _snapshot_same,
    Fault.SNAPSHOT_BACK: _on_recreated,
    Fault.SNAPSHOT_DECLARED: partial(_on_recreated, again=True),
    Fault.GARBAGE: _garbage,
    Fault.RAISES: _raises,
    Fault.BEFORE_1970: _timed(-1_000_000),
    Fault.YEAR_9999: _timed(253_370_764_800_000_000),
    Fault.NANOSECONDS: _timed(1_700_000_000_000_000_000),
}
NOT_WRONG = (Fault.SNAPSHOT_NEXT, Fault.SNAPSHOT_SAME, Fault.SNAPSHOT_BACK, Fault.SNAPSHOT_DECLARED)
"""A second snapshot is correct: the following messages depend on it."""
ODD_TIMES = (Fault.BEFORE_1970, Fault.YEAR_9999)
"""Only the clock is wrong: the content is correct."""
MATTERING = tuple(fault for fault in Fault if fault not in {*NOT_WRONG, *ODD_TIMES, Fault.NANOSECONDS})
"""Faults that change the result of a fold without a gate. A tuple: each parallel worker must see one order of tests."""
