"""`Strict(repeats=DROP)`: an immediate repeat by the producer is dropped, and nothing else."""

from __future__ import annotations

import pytest

from lockstep import Checksum, Linked, LogOnly, Repeats, Sequence, Strict
from lockstep.errors import DeclarationError
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.gate_states import Deduplicated, GateState, LastLink, MessageCount
from lockstep.integrity.strict import REMEMBERED, Evidence
from tests.support.gate_feed import Sent, Told, anew, judged, snapshot, update

ACCEPTED: Told = ("accept", "", ())
DROPPED: Told = ("duplicate", "repeat", ())
DROPPING = Strict(evidence=Sequence(), repeats=Repeats.DROP)

CASES: dict[str, tuple[list[Sent], list[Told]]] = {
    "the last message again": ([snapshot(1, 0), update(2, 1), update(2, 1)], [ACCEPTED, ACCEPTED, DROPPED]),
    "several messages again": (
        [snapshot(1, 0), update(2, 1), update(3, 2), update(2, 1), update(3, 2), update(4, 3)],
        [ACCEPTED, ACCEPTED, ACCEPTED, DROPPED, DROPPED, ACCEPTED],
    ),
    "the snapshot again": ([snapshot(1, 0), snapshot(1, 0)], [ACCEPTED, DROPPED]),
    "the same number with other content": (
        [snapshot(1, 0), update(2, 1), update(2, 9)],
        [ACCEPTED, ACCEPTED, ("violation", "repeat", ())],
    ),
    "numbers that begin anew make no repeats of new messages": (
        [snapshot(1, 0), update(2, 1, b"x"), anew(1, 2), update(2, 3, b"x"), update(2, 3, b"x")],
        [ACCEPTED, ACCEPTED, ACCEPTED, ACCEPTED, DROPPED],
    ),
    "a gap stays a gap": ([snapshot(1, 0), update(3, 1)], [ACCEPTED, ("violation", "gap", ())]),
}


@pytest.mark.parametrize("case", CASES)
def test_identical_repeats_are_dropped(case: str) -> None:
    messages, told = CASES[case]
    time = PartitionTime()
    assert told == judged(DROPPING.gate(time), time, messages)


def test_what_is_not_remembered_any_longer_goes_back() -> None:
    messages = [snapshot(0, 0), *(update(number, number) for number in range(1, REMEMBERED + 1)), snapshot(0, 0)]
    time = PartitionTime()
    assert judged(DROPPING.gate(time), time, messages)[-1] == ("violation", "sequence goes back", ())


@pytest.mark.parametrize("evidence", [Checksum(), LogOnly()])
def test_evidence_without_numbers_cannot_drop_repeats(evidence: Evidence) -> None:
    with pytest.raises(DeclarationError, match="duplicates cannot be detected"):
        Strict(evidence=evidence, repeats=Repeats.DROP)


@pytest.mark.parametrize(
    ("evidence", "stored"), [(Sequence(), 41), (Linked(), LastLink(41, is_fresh=False)), (Checksum(), MessageCount(7))]
)
def test_the_option_may_change_between_two_runs(evidence: Evidence, stored: GateState) -> None:
    plain = Strict(evidence=evidence)
    assert stored == plain.make_state_adapter(0)(stored)
    if isinstance(evidence, Checksum):
        return
    dropping = Strict(evidence=evidence, repeats=Repeats.DROP)
    remembered = dropping.make_state_adapter(0)(stored)
    assert Deduplicated({}, stored) == remembered
    assert stored == plain.make_state_adapter(0)(remembered)
