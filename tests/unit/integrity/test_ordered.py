"""Ordered: numbers rise, or offsets if the producer sends no numbers; a message that goes back is dropped."""

from __future__ import annotations

import pytest

from lockstep import Kind, Ordered
from lockstep.integrity.base import PartitionTime
from tests.support.gate_feed import Sent, Told, judged, snapshot, update

ACCEPTED: Told = ("accept", "", ())
UNKNOWN: Told = ("suspend", "unknown session", ())
MIXED: Told = ("violation", "no evidence", ())


def end(number: int | None) -> Sent:
    return Sent(Kind.END, number, 0)


CASES: dict[str, tuple[list[Sent], list[Told]]] = {
    "numbers rise": ([snapshot(1, 0), update(2, 0), update(3, 0)], [ACCEPTED] * 3),
    "a gap is counted": ([snapshot(1, 0), update(4, 0), update(5, 0)], [ACCEPTED, ("accept", "gap", ()), ACCEPTED]),
    "the same number again": (
        [snapshot(1, 0), update(2, 0), update(2, 0)],
        [ACCEPTED, ACCEPTED, ("duplicate", "repeat", ())],
    ),
    "a number that goes back": (
        [snapshot(1, 0), update(4, 0), update(3, 0), update(5, 0)],
        [ACCEPTED, ("accept", "gap", ()), ("late", "sequence goes back", ()), ACCEPTED],
    ),
    "an update of an unknown session": ([update(1, 0)], [UNKNOWN]),
    "an update of an unknown session, without numbers": ([update(None, 0)], [UNKNOWN]),
    "an end of an unknown session, without numbers": ([end(None)], [UNKNOWN]),
    "messages without numbers": ([snapshot(None, 0), update(None, 0), end(None)], [ACCEPTED] * 3),
    "an update without the numbers of its session": ([snapshot(1, 0), update(None, 0)], [ACCEPTED, MIXED]),
    "an end without the numbers of its session": ([snapshot(1, 0), end(None)], [ACCEPTED, ACCEPTED]),
    "an update with a number in a session without": ([snapshot(None, 0), update(1, 0)], [ACCEPTED, MIXED]),
    "a snapshot may go back": ([snapshot(5, 0), snapshot(1, 0), update(2, 0)], [ACCEPTED] * 3),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_applied_and_what_is_not(case: str) -> None:
    messages, told = CASES[case]
    time = PartitionTime()
    assert told == judged(Ordered().gate(time), time, messages)
