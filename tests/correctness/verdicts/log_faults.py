"""Faults of the log, not of messages: the effect of each on each class, as data."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from lockstep import Halt, OnGrowth, Ordered, Sequence, Strict
from tests.correctness.verdicts.faulty import with_number
from tests.correctness.verdicts.table import CLASSES
from tests.streams.dydx_books.plain_fold import fold
from tests.streams.dydx_books.recording import as_numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lockstep.integrity.base import IntegrityClass
    from tests.streams.dydx_books.plain_fold import Row
    from tests.streams.dydx_books.recording import Message

LOG_CLASSES: Mapping[str, IntegrityClass] = {
    **CLASSES,
    "strict that restarts": Strict(evidence=Sequence(), on_growth=OnGrowth.RESTART_SESSIONS),
    "ordered that halts": Ordered(on_violation=Halt()),
}

READ, LOST_UNTIL, SNAPSHOT, UNTIL = 60, 70, 90, 101
"""Offsets: end of the first read; end of the possible loss; the new snapshot; the end."""
LATER_MS = 1_000
"""Delay of the new snapshot: beyond the bound of lateness."""


class LogFault(Enum):
    """The fault of a log."""

    ABORTED = "explained hole: an aborted transaction"
    EXPIRED = "expired unread"
    RECREATED = "topic re-created"
    GREW = "partitions grew"
    MOVED = "one session in two partitions"
    UNPROVEN = "unexplained hole: a compacted topic"
    TRUNCATED = "log truncated"


class Effect(Enum):
    """The effect of a fault."""

    GOES_ON = "all that is there is applied; what is missing is in the ledger"
    SUSPENDS = "sessions wait for their next snapshot"
    HALTS = "nothing beyond what was read before; the stream halts"
    REFUSED = "the stream does not start on such a topic"


GOES_ON, SUSPENDS, HALTS, REFUSED = Effect
_HALTING = dict.fromkeys(("once", "strict", "drop", "strict that restarts"), HALTS)
_WAITING = dict.fromkeys(("ordered", "window", "reorder", "suspend"), SUSPENDS)
_READING = dict.fromkeys(("none", "ordered", "window", "reorder"), GOES_ON)

LOG_TABLE: Mapping[LogFault, Mapping[str, Effect]] = {
    LogFault.ABORTED: dict.fromkeys(LOG_CLASSES, GOES_ON),
    LogFault.EXPIRED: {**_HALTING, **_WAITING, "none": GOES_ON, "ordered that halts": SUSPENDS},
    LogFault.RECREATED: {**_HALTING, **_READING, "suspend": GOES_ON, "ordered that halts": GOES_ON},
    LogFault.GREW: {
        **_HALTING,
        **_WAITING,
        "none": GOES_ON,
        "once": GOES_ON,
        "ordered that halts": HALTS,
        "strict that restarts": SUSPENDS,
    },
    LogFault.MOVED: {**dict.fromkeys(LOG_CLASSES, HALTS), "none": GOES_ON, "once": GOES_ON},
    LogFault.UNPROVEN: {
        **dict.fromkeys(_HALTING, REFUSED),
        **_READING,
        "suspend": SUSPENDS,
        "ordered that halts": GOES_ON,
    },
    LogFault.TRUNCATED: {**_HALTING, **_WAITING, "none": GOES_ON, "ordered that halts": SUSPENDS},
}


@cache
def log() -> tuple[Message, ...]:
    """Return the messages at their offsets, with a new snapshot; a session may restart there."""
    numbered = as_numbered()
    later_ms = numbered[SNAPSHOT].timestamp_ms + LATER_MS
    snapshot = with_number(numbered[0], SNAPSHOT, later_ms)
    tail = [with_number(each, each.number + 1, later_ms) for each in numbered[SNAPSHOT : UNTIL - 1]]
    return (*numbered[:SNAPSHOT], snapshot, *tail)


def other_session(messages: Iterable[Message]) -> list[Message]:
    """Return the same messages of another connection."""
    own = log()[0].key
    return [replace(each, key=b"another", value=each.value.replace(own, b"another")) for each in messages]


def rows_of_offsets(*offsets: Iterable[int]) -> list[Row]:
    """Return the rows that the plain fold makes of the messages at these offsets."""
    return fold((log()[offset].value for some in offsets for offset in some), newest=False).rows
