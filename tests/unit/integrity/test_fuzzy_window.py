"""FuzzyWindow: any order within the bound; with `reorder`, the producer's order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep import FuzzyWindow
from lockstep.errors import DeclarationError
from lockstep.integrity.base import PartitionTime
from tests.support.gate_feed import Sent, Told, anew, judged, snapshot, update

ACCEPTED: Told = ("accept", "", ())
LATE: Told = ("late", "late", ())
HELD: Told = ("buffer", "buffered", ())
BOUND = timedelta(seconds=10)

ANY_ORDER: dict[str, tuple[list[Sent], list[Told]]] = {
    "any order within the bound": (
        [snapshot(1, 0), update(3, 9), update(2, 5)],
        [ACCEPTED, ACCEPTED, ACCEPTED],
    ),
    "what is later than the bound": (
        [snapshot(1, 0), update(3, 30), update(2, 19), update(4, 20)],
        [ACCEPTED, ACCEPTED, LATE, ACCEPTED],
    ),
    "the same number with the same content": (
        [snapshot(1, 0), update(2, 1, b"x"), update(2, 1, b"x")],
        [ACCEPTED, ACCEPTED, ("duplicate", "repeat", ())],
    ),
    "a repeat of what is as old as the bound": (
        [snapshot(1, 0), update(2, 0, b"x"), update(3, 10), update(2, 0, b"x")],
        [ACCEPTED, ACCEPTED, ACCEPTED, ("duplicate", "repeat", ())],
    ),
    "the same number with other content": (
        [snapshot(1, 0), update(2, 1, b"x"), update(2, 1, b"y")],
        [ACCEPTED, ACCEPTED, ("violation", "same number, other content", ())],
    ),
    "an update of an unknown session": (
        [update(2, 1)],
        [("suspend", "unknown session", ())],
    ),
    "a second snapshot is a new state": (
        [snapshot(1, 0), update(2, 1), snapshot(7, 2)],
        [ACCEPTED, ACCEPTED, ACCEPTED],
    ),
    "numbers that begin anew say nothing of those before": (
        [snapshot(1, 0), update(2, 1, b"x"), update(3, 1, b"x"), anew(1, 2), update(2, 3, b"x"), update(3, 3, b"y")],
        [ACCEPTED] * 6,
    ),
    "a snapshot with the number of the last update": (
        [snapshot(1, 0), update(2, 1), snapshot(2, 2), snapshot(2, 2), update(3, 3)],
        [ACCEPTED, ACCEPTED, ACCEPTED, ("duplicate", "repeat", ()), ACCEPTED],
    ),
    "messages without numbers": (
        [snapshot(None, 0), update(None, 30), update(None, 25), update(None, 3)],
        [ACCEPTED, ACCEPTED, ACCEPTED, LATE],
    ),
    "times that no clock shows": (
        [snapshot(1, 0), update(2, 10**9), update(3, -1), update(4, 5)],
        [ACCEPTED, ("quarantine", "absurd event time", ()), ("quarantine", "absurd event time", ()), ACCEPTED],
    ),
}

REORDERED: dict[str, tuple[list[Sent], list[Told]]] = {
    "the next number passes": ([snapshot(1, 0), update(2, 1), update(3, 2)], [ACCEPTED, ACCEPTED, ACCEPTED]),
    "a number ahead waits for the missing one": (
        [snapshot(1, 0), update(3, 1), update(4, 1), update(2, 2)],
        [ACCEPTED, HELD, HELD, ("accept", "", (1, 2))],
    ),
    "what is missing is waited for no longer than the bound": (
        [snapshot(1, 0), update(3, 1), update(5, 2), update(6, 11), update(7, 12)],
        [ACCEPTED, HELD, HELD, ("due", "gap", (1,)), HELD, ("due", "gap", (2, 3)), ACCEPTED],
    ),
    "what comes after it was waited for is late": (
        [snapshot(1, 0), update(3, 1), update(4, 11), update(2, 11)],
        [ACCEPTED, HELD, ("due", "gap", (1,)), ACCEPTED, LATE],
    ),
    "numbers that begin anew say nothing of those before": (
        [snapshot(1, 0), update(2, 1, b"x"), update(4, 1, b"x"), anew(1, 2), update(2, 3, b"x"), update(3, 3, b"y")],
        [ACCEPTED, ACCEPTED, HELD, ("accept", "", (2,)), ACCEPTED, ACCEPTED],
    ),
    "a repeat of what was released and is forgotten": (
        [snapshot(1, 0), update(2, 5), update(4, 30), update(2, 5)],
        [ACCEPTED, ACCEPTED, HELD, LATE],
    ),
    "a repeat of what waits": (
        [snapshot(1, 0), update(3, 1, b"x"), update(3, 1, b"x"), update(3, 1, b"y")],
        [ACCEPTED, HELD, ("duplicate", "repeat", ()), ("violation", "same number, other content", ())],
    ),
    "a snapshot with the number of the last update": (
        [snapshot(1, 0), update(2, 1), snapshot(2, 2), update(3, 3)],
        [ACCEPTED, ACCEPTED, ACCEPTED, ACCEPTED],
    ),
    "without numbers all wait for the bound": (
        [snapshot(None, 0), update(None, 5), update(None, 3), update(None, 14)],
        [ACCEPTED, HELD, HELD, ("due", "", (2,)), HELD],
    ),
    "before the snapshot that opened the session": (
        [snapshot(None, 5), update(None, 3)],
        [ACCEPTED, LATE],
    ),
    "times that no clock shows": (
        [snapshot(1, 0), update(2, 10**9), update(3, -1), update(2, 5)],
        [ACCEPTED, ("quarantine", "absurd event time", ()), ("quarantine", "absurd event time", ()), ACCEPTED],
    ),
    "numbers come and go": (
        [snapshot(1, 0), update(None, 1)],
        [ACCEPTED, ("violation", "no evidence", ())],
    ),
}


@pytest.mark.parametrize("case", ANY_ORDER)
def test_any_order(case: str) -> None:
    messages, told = ANY_ORDER[case]
    time = PartitionTime(latest_us=10**12)
    assert told == judged(FuzzyWindow(lateness=BOUND).gate(time), time, messages)


@pytest.mark.parametrize("case", REORDERED)
def test_the_order_of_the_producer(case: str) -> None:
    messages, told = REORDERED[case]
    time = PartitionTime(latest_us=10**12)
    assert told == judged(FuzzyWindow(lateness=BOUND, reorder=True).gate(time), time, messages)


@pytest.mark.parametrize("bound", [timedelta(0), timedelta(seconds=-1), 5])
def test_a_bound_that_bounds_nothing_is_refused(bound: object) -> None:
    with pytest.raises(DeclarationError, match="is not a duration above zero"):
        FuzzyWindow(lateness=bound)  # type: ignore[arg-type]  # wrong on purpose


def test_a_bound_beyond_all_times_is_refused() -> None:
    """With `reorder`, no message would be accepted, because no state holds the time of its release."""
    with pytest.raises(DeclarationError, match="is more than a century"):
        FuzzyWindow(lateness=timedelta.max, reorder=True)


def test_it_says_what_it_promises() -> None:
    assert FuzzyWindow(lateness=BOUND).guarantee() == (
        "fuzzy window: messages within 0:00:10 in any order; later ones in the late table"
    )
    assert FuzzyWindow(lateness=BOUND, reorder=True).guarantee() == (
        "fuzzy window: messages within 0:00:10 put in order; later ones in the late table"
    )
