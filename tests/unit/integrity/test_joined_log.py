"""A log that was joined in the middle: the engine's gates and the prover's rules agree on each message."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest

from lockstep import (
    Checksum,
    Envelope,
    FuzzyWindow,
    Kind,
    Linked,
    LogOnly,
    NoIntegrity,
    Once,
    Ordered,
    Repeats,
    Sequence,
    SessionStart,
    Strict,
    Suspend,
)
from lockstep.integrity.base import PartitionTime
from lockstep.model.record import Link
from lockstep.verify.gates.base import ReplayWatermark, Suspension, decide_outcome
from lockstep.verify.gates.classes import make_rules
from tests.support.envelopes import at_offset

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from lockstep.integrity.gate_states import GateState

SNAPSHOT = Kind.SNAPSHOT
PART = Kind.SNAPSHOT_PART
UPDATE = Kind.UPDATE
END = Kind.END
SKIPPED = "skip"
ACCEPTED = "accept"
WINDOW = timedelta(seconds=10)
CLASSES: dict[str, tuple[IntegrityClass, list[str]]] = {
    "sequence": (Strict(evidence=Sequence()), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "linked": (Strict(evidence=Linked()), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "checksum": (Strict(evidence=Checksum()), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "log only": (Strict(evidence=LogOnly()), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "drop": (Strict(evidence=Sequence(), repeats=Repeats.DROP), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "suspend": (Strict(evidence=Sequence(), on_violation=Suspend()), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "ordered": (Ordered(), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "window": (FuzzyWindow(lateness=WINDOW), [SKIPPED, SKIPPED, ACCEPTED, ACCEPTED, ACCEPTED]),
    "once": (Once(keep_ids=10), [ACCEPTED] * 5),
    "none": (NoIntegrity(), [ACCEPTED] * 5),
    "first message": (
        Strict(evidence=LogOnly(), session_start=SessionStart.FIRST_MESSAGE),
        [ACCEPTED] * 5,
    ),
}
JOINED = [(UPDATE, 7), (UPDATE, 8), (SNAPSHOT, 9), (UPDATE, 10), (END, 11)]
"""A session that started before the log was joined: its END counts eleven messages."""


def make_envelope(kind: Kind, number: int) -> Envelope:
    link = Link(number, previous=number - 1)
    return Envelope("s", kind, sequence=number, link=link, id=number, count=number if kind is END else None)


def judge(integrity: IntegrityClass, messages: list[tuple[Kind, int]], *, joined: bool) -> list[str]:
    """Return the engine's verdicts on the messages of one session."""
    gate = integrity.gate_for(0, PartitionTime(), joined=joined)
    state = cast("GateState", None)
    found = list[str]()
    for offset, (kind, number) in enumerate(messages):
        after, verdict = gate.check(state, make_envelope(kind, number), at_offset(offset))
        found.append(verdict.judgement.value)
        state = None if kind is END else after if verdict.judgement.value == ACCEPTED else state
    return found


def prove(integrity: IntegrityClass, messages: list[tuple[Kind, int]], *, joined: bool) -> list[str]:
    """Return the prover's rulings on the messages of one session."""
    rules = make_rules(integrity, ReplayWatermark(), joined=joined)
    known = None
    found = list[str]()
    for offset, (kind, number) in enumerate(messages):
        outcome = decide_outcome(rules, known, make_envelope(kind, number), at_offset(offset), Suspension())
        found.append(outcome.what.value)
        known = None if kind is END else outcome.known
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_a_session_that_began_before_is_skipped_up_to_its_first_snapshot(name: str) -> None:
    integrity, expected = CLASSES[name]
    assert judge(integrity, JOINED, joined=True) == expected
    assert prove(integrity, JOINED, joined=True) == expected


@pytest.mark.parametrize("name", CLASSES)
def test_after_its_snapshot_a_session_is_judged_as_everywhere(name: str) -> None:
    integrity, _ = CLASSES[name]
    for broken in ([(SNAPSHOT, 3), (UPDATE, 4), (UPDATE, 6)], [(SNAPSHOT, 3), (UPDATE, 4), (UPDATE, 4)]):
        assert judge(integrity, broken, joined=True) == judge(integrity, broken, joined=False)
        assert prove(integrity, broken, joined=True) == prove(integrity, broken, joined=False)


def test_a_log_that_is_read_from_its_beginning_has_no_session_without_a_snapshot() -> None:
    strict = CLASSES["sequence"][0]
    ordered = CLASSES["ordered"][0]
    assert judge(strict, JOINED[:1], joined=False) == ["violation"]
    assert judge(ordered, JOINED[:1], joined=False) == ["quarantine"]


def test_updates_of_a_feed_that_buffers_them_wait_for_its_snapshot() -> None:
    """They are not skipped: the snapshot of this feed arrives later and covers only some of them."""
    integrity = Strict(evidence=Sequence(), buffer_until_snapshot=True)
    assert judge(integrity, [(UPDATE, 7)], joined=True) == ["buffer"]
    assert prove(integrity, [(UPDATE, 7)], joined=True) == ["hold"]
