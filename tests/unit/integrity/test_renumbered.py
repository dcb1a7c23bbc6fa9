"""A session that another class has left, under `FIRST_MESSAGE`: engine and proof continue its state alike."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Envelope, FuzzyWindow, Kind, Ordered, Sequence, SessionStart, Strict
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.gate_states import ActiveSession, Renumbered
from lockstep.integrity.opening import OpeningAtFirst
from lockstep.integrity.verdict import ACCEPT, Judgement
from lockstep.verify.gates.base import Action, ReplayWatermark
from lockstep.verify.gates.classes import make_rules
from lockstep.verify.gates.stored import read_gate
from tests.support.envelopes import RECORD, update

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from lockstep.integrity.gate_states import GateState
    from lockstep.verify.gates.base import Memory

FIRST = SessionStart.FIRST_MESSAGE
BOUND = timedelta(seconds=10)
CLASSES: tuple[IntegrityClass, ...] = (
    Strict(evidence=Sequence(), session_start=FIRST),
    Ordered(session_start=FIRST),
    FuzzyWindow(lateness=BOUND, session_start=FIRST),
    FuzzyWindow(lateness=BOUND, reorder=True, session_start=FIRST),
)


LEFT = {"f": True}
"""The memory of the proof."""


def remembered(state: GateState) -> Memory:
    """Return a stored state as the proof reads it."""
    gate = read_gate(msgspec.msgpack.encode(state))
    return None if gate is None else gate.known.memory


@pytest.mark.parametrize("integrity", CLASSES, ids=lambda each: type(each).__name__)
def test_its_next_message_is_the_first_of_its_evidence(integrity: IntegrityClass) -> None:
    gate = integrity.gate_for(0, PartitionTime())
    rules = make_rules(integrity, ReplayWatermark())
    state = ActiveSession(0, Renumbered()) if integrity.suspends else Renumbered()
    after, verdict = gate.check(state, update(7), RECORD)
    ruling = rules.rule(LEFT, update(7), RECORD)
    assert (verdict, ruling.what) == (ACCEPT, Action.ACCEPT)
    assert ruling.memory == remembered(after)


NOW_US = 100_000_000


@pytest.mark.parametrize(
    ("seconds", "judgement", "what"),
    [(89, Judgement.LATE, Action.LATE), (90, Judgement.BUFFER, Action.HOLD), (105, Judgement.BUFFER, Action.HOLD)],
)
def test_its_next_message_waits_for_its_order_unless_it_is_late(
    seconds: int, judgement: Judgement, what: Action
) -> None:
    """Applied immediately, it would be in a closed window, or make earlier messages late that have yet to arrive."""
    integrity = FuzzyWindow(lateness=BOUND, reorder=True, session_start=FIRST)
    gate = OpeningAtFirst(integrity.gate(PartitionTime(NOW_US)))
    watermark = ReplayWatermark()
    watermark.advance(NOW_US)
    message = Envelope("s", Kind.UPDATE, event_time_us=seconds * 1_000_000)
    after, verdict = gate.check(Renumbered(), message, RECORD)
    ruling = make_rules(integrity, watermark).rule({**LEFT}, message, RECORD)
    assert (verdict.judgement, ruling.what) == (judgement, what)
    assert remembered(after) == ruling.memory
    assert gate.buffered_offsets(after) == (() if what is Action.LATE else (RECORD.offset,))
