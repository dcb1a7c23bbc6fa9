"""The verdict table as data: the verdict of each class on each fault, and the resulting table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

from lockstep import FuzzyWindow, NoIntegrity, Once, Ordered, Repeats, Sequence, Strict, Suspend
from tests.correctness.verdicts.faulty import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstep.integrity.base import IntegrityClass
    from tests.correctness.verdicts.faulty import Faulty

LATENESS = timedelta(milliseconds=300)
CLASSES: Mapping[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=1_000),
    "ordered": Ordered(),
    "window": FuzzyWindow(lateness=LATENESS),
    "reorder": FuzzyWindow(lateness=LATENESS, reorder=True),
    "strict": Strict(evidence=Sequence()),
    "suspend": Strict(evidence=Sequence(), on_violation=Suspend(accept_loss=True)),
    "drop": Strict(evidence=Sequence(), repeats=Repeats.DROP),
}


class Applied(Enum):
    """The messages that are applied, and their order."""

    ALL = "all, as they come"
    WITHOUT = "all but the one that is wrong"
    IN_ORDER = "all, in the producer's order"
    BEFORE = "those before the fault; then the stream halts"
    RESUMED = "those before the fault, and all from the new snapshot on"
    NOT_AFTER = "those before the fault; what follows is set aside one by one"

    def offsets(self, log: Faulty, at: int) -> list[int]:
        """Return the offsets of these messages."""
        every = list(range(len(log.messages)))
        return {
            Applied.ALL: every,
            Applied.WITHOUT: [offset for offset in every if offset != log.at],
            Applied.IN_ORDER: log.numbered(),
            Applied.BEFORE: every[:at],
            Applied.NOT_AFTER: every[:at],
            Applied.RESUMED: every[:at] + every[log.tail :],
        }[self]


ALL, WITHOUT, IN_ORDER, BEFORE, RESUMED, NOT_AFTER = Applied


@dataclass(frozen=True)
class Cell:
    """A verdict and its effect.

    Attributes:
        verdict: The judgement.
        cause: The cause; "" if nothing is remarked.
        applied: The messages whose rows the table holds.
        gaps: Number of gaps counted.
        repeats: Number of repeats, or of numbers that go back, counted.
        dropped: Messages that are neither applied nor kept.
        late: Messages in the late table.
        at_first: Whether the verdict is on the first message that is not as it should be, before the wrong message.
    """

    verdict: str
    cause: str
    applied: Applied
    gaps: int = 0
    repeats: int = 0
    dropped: int = 0
    late: int = 0
    at_first: bool = False

    def at(self, log: Faulty) -> int:
        """Return the offset of the message that the verdict is on."""
        return log.first if self.at_first else log.at


def accept(cause: str = "", applied: Applied = ALL, *, gaps: int = 0, repeats: int = 0) -> Cell:
    """The message is applied; remarks are counted."""
    return Cell("accept", cause, applied, gaps, repeats)


def drop(verdict: str, cause: str, *, gaps: int = 0) -> Cell:
    """The message is neither applied nor kept."""
    return Cell(verdict, cause, WITHOUT, gaps, repeats=int(verdict != "gap"), dropped=1)


def late(gaps: int = 0) -> Cell:
    """The message is in the late table."""
    return Cell("late", "late", WITHOUT, gaps, late=1)


def quarantine(cause: str, gaps: int = 0) -> Cell:
    """The message alone is in quarantine."""
    return Cell("quarantine", cause, WITHOUT, gaps)


def halts(cause: str, *, at_first: bool = False) -> Cell:
    """The stream halts."""
    return Cell("violation", cause, BEFORE, at_first=at_first)


def suspends(cause: str, *, at_first: bool = False) -> Cell:
    """The session waits for its next snapshot; its messages go to quarantine."""
    return Cell("suspend", cause, RESUMED, gaps=int(cause == "gap"), at_first=at_first)


def broken(cause: str, *, at_first: bool = False, **others: Cell) -> dict[str, Cell]:
    """Return the cells of a violation by policy of the strict class, with those of other classes."""
    refused = {name: halts(cause, at_first=at_first) for name in ("strict", "drop")}
    return {**refused, "suspend": suspends(cause, at_first=at_first), **others}


def of_all(cell: Cell, **others: Cell) -> dict[str, Cell]:
    """Return the same cell for each class, with exceptions."""
    return {**dict.fromkeys(CLASSES, cell), **others}


BACK = "sequence goes back"
OTHER = "same number, other content"

TABLE: Mapping[Fault, Mapping[str, Cell]] = {
    Fault.REPEATED: {
        "none": accept("repeat", repeats=1),
        "once": drop("duplicate", "repeat"),
        "ordered": drop("duplicate", "repeat"),
        "window": drop("duplicate", "repeat"),
        "reorder": drop("duplicate", "repeat"),
        **broken("repeat", drop=drop("duplicate", "repeat")),
    },
    Fault.REPEATED_LATER: {
        "none": accept(BACK, repeats=1),
        "once": drop("duplicate", "repeat"),
        "ordered": drop("late", BACK),
        "window": drop("duplicate", "repeat"),
        "reorder": drop("duplicate", "repeat"),
        **broken(BACK, drop=drop("duplicate", "repeat")),
    },
    Fault.OTHER_CONTENT: {
        "none": accept("repeat", repeats=1),
        "once": halts("same id, other content"),
        "ordered": drop("duplicate", "repeat"),
        "window": suspends(OTHER),
        "reorder": suspends(OTHER),
        **broken("repeat"),
    },
    Fault.LOST: {
        "none": accept("gap", gaps=1),
        "once": accept(),
        "ordered": accept("gap", gaps=1),
        "window": accept(),
        "reorder": Cell("buffer", "buffered", ALL, gaps=1),
        **broken("gap"),
    },
    Fault.SESSION_SPLIT: {
        "none": accept(BACK, gaps=1, repeats=1),
        "once": accept(),
        "ordered": drop("late", BACK, gaps=1),
        "window": accept(),
        "reorder": accept(applied=IN_ORDER),
        **broken("gap", at_first=True),
    },
    Fault.MOVED_FAR: {
        "none": accept(BACK, gaps=1, repeats=1),
        "once": accept(),
        "ordered": drop("late", BACK, gaps=1),
        "window": late(),
        "reorder": late(gaps=1),
        **broken("gap", at_first=True),
    },
    Fault.STRAY: {
        "none": accept(),
        "once": accept(),
        "ordered": quarantine("unknown session"),
        "window": quarantine("unknown session"),
        "reorder": quarantine("unknown session"),
        **broken("unknown session", suspend=quarantine("unknown session")),
    },
    Fault.SNAPSHOT_NEXT: of_all(accept()),
    Fault.SNAPSHOT_SAME: of_all(accept()),
    Fault.SNAPSHOT_BACK: {
        "none": accept(BACK, repeats=1),
        "once": accept(),
        "ordered": accept(),
        "window": accept(),
        "reorder": Cell("late", "late", NOT_AFTER, late=-1),
        **broken(BACK, suspend=accept(BACK, repeats=1)),
    },
    Fault.SNAPSHOT_DECLARED: of_all(accept()),
    Fault.GARBAGE: {
        "none": quarantine("undecodable", gaps=1),
        "once": quarantine("undecodable"),
        "ordered": suspends("undecodable"),
        "window": suspends("undecodable"),
        "reorder": suspends("undecodable"),
        **broken("undecodable"),
    },
    Fault.RAISES: {
        "none": quarantine("transform raised", gaps=1),
        "once": quarantine("transform raised"),
        "ordered": suspends("transform raised"),
        "window": suspends("transform raised"),
        "reorder": suspends("transform raised"),
        **broken("transform raised"),
    },
    Fault.BEFORE_1970: of_all(
        accept(), window=quarantine("absurd event time"), reorder=quarantine("absurd event time", gaps=1)
    ),
    Fault.YEAR_9999: of_all(
        accept(), window=quarantine("absurd event time"), reorder=quarantine("absurd event time", gaps=1)
    ),
    Fault.NANOSECONDS: {
        "none": quarantine("value not storable", gaps=1),
        "once": quarantine("value not storable"),
        "ordered": suspends("value not storable"),
        "window": quarantine("value not storable"),
        "reorder": quarantine("value not storable", gaps=1),
        **broken("value not storable"),
    },
}
"""`late=-1`: all messages from the fault on."""
