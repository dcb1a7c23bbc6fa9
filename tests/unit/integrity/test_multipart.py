"""Snapshots over several messages: every cell of (open snapshot, received message), for a gate that uses numbers."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from lockstep import Kind, Once, Sequence
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.best_effort import NoIntegrity
from lockstep.integrity.multipart import PARTS_MAX, MultipartGate
from tests.support.gate_feed import Sent, Told, anew, judged, snapshot, update

if TYPE_CHECKING:
    from lockstep.integrity.verdict import AnyGate

ACCEPTED: Told = ("accept", "", ())
HELD: Told = ("buffer", "", ())
BROKEN: Told = ("violation", "snapshot not complete", ())


def part(number: int | None, *, restarts_sequence: bool = False) -> Sent:
    return Sent(Kind.SNAPSHOT_PART, number, 0, restarts_sequence=restarts_sequence)


def end(number: int | None) -> Sent:
    return Sent(Kind.END, number, 0)


STRICT: dict[str, tuple[list[Sent], list[Told]]] = {
    "the message that completes it releases the parts": (
        [part(1), part(2), snapshot(3, 0), update(4, 0)],
        [HELD, HELD, ("accept", "", (0, 1)), ACCEPTED],
    ),
    "one in a session that goes on": (
        [snapshot(1, 0), update(2, 0), part(3), snapshot(4, 0)],
        [ACCEPTED, ACCEPTED, HELD, ("accept", "", (2,))],
    ),
    "an update in its middle is a part of it": (
        [part(1), update(2, 0), snapshot(3, 0)],
        [HELD, HELD, ("accept", "", (0, 1))],
    ),
    "a gap in it": ([part(1), part(3)], [HELD, ("violation", "gap", ())]),
    "another one that begins anew within it": ([part(1), part(1, restarts_sequence=True)], [HELD, BROKEN]),
    "a whole one that begins anew within it": ([part(1), anew(1, 0)], [HELD, BROKEN]),
    "the end of the session within it": ([part(1), end(2)], [HELD, BROKEN]),
    "one that begins anew as the first part": (
        [snapshot(5, 0), part(1, restarts_sequence=True), snapshot(2, 0)],
        [ACCEPTED, HELD, ("accept", "", (1,))],
    ),
}


@pytest.mark.parametrize("case", STRICT)
def test_a_snapshot_over_several_messages(case: str) -> None:
    messages, told = STRICT[case]
    assert told == judged(MultipartGate(Sequence()), PartitionTime(), messages)


def test_best_effort_gives_up_the_one_on_its_way_for_another_that_begins() -> None:
    time = PartitionTime()
    gate: AnyGate = MultipartGate(NoIntegrity().gate(time), tolerates_all=True)
    found = judged(gate, time, [part(1), part(1, restarts_sequence=True), snapshot(2, 0), update(3, 0)])
    assert [each[0] for each in found] == ["buffer", "buffer", "accept", "accept"]
    assert found[2][2] == (1,), "the part that was given up is not released"


def test_a_snapshot_of_more_parts_than_there_may_be_is_refused() -> None:
    parts = [part(number) for number in range(1, PARTS_MAX + 2)]
    found = judged(MultipartGate(Sequence()), PartitionTime(), parts)
    assert found == [*[HELD] * PARTS_MAX, ("violation", "snapshot too long", ())]


def test_a_message_that_cannot_be_part_of_an_open_snapshot_leaves_no_trace_in_the_memory() -> None:
    """`Once` remembers ids in place: the trace of a refused message would make its second delivery a repeat."""
    once = Once(keep_ids=10)
    gate = MultipartGate(once.gate(PartitionTime()))
    snapshot_open, _ = gate.check(None, *part(1).at(0))
    known = deepcopy(snapshot_open)
    for refused in (end(2), anew(3, 0), snapshot(4, 0)):
        gate.check(snapshot_open, *refused.at(1))
        assert snapshot_open == known
