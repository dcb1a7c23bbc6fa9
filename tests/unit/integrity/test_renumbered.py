"""A session that another class has left, under `FIRST_MESSAGE`: the engine and the proof go on with its state alike."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import Envelope, FuzzyWindow, Kind, Ordered, Sequence, SessionStart, Strict
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.opening import OpeningAtFirst
from lockstep.integrity.verdict import ACCEPT, Judgement
from lockstep.verify.gates.base import Action, ReplayWatermark
from lockstep.verify.gates.classes import make_rules
from tests.support.envelopes import RECORD, update

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass

FIRST = SessionStart.FIRST_MESSAGE
BOUND = timedelta(seconds=10)
CLASSES: tuple[IntegrityClass, ...] = (
    Strict(evidence=Sequence(), session_start=FIRST),
    Ordered(session_start=FIRST),
    FuzzyWindow(lateness=BOUND, session_start=FIRST),
    FuzzyWindow(lateness=BOUND, reorder=True, session_start=FIRST),
)


@pytest.mark.parametrize("integrity", CLASSES, ids=lambda each: type(each).__name__)
def test_its_next_message_is_the_first_of_its_evidence(integrity: IntegrityClass) -> None:
    left = {"f": True}
    gate, rules = integrity.gate_for(0, PartitionTime()), make_rules(integrity, ReplayWatermark())
    state = left if not integrity.suspends else {"o": 0, "g": left}
    after, verdict = gate.check(state, update(7), RECORD)
    ruling = rules.rule(left, update(7), RECORD)
    assert (verdict, ruling.what) == (ACCEPT, Action.ACCEPT)
    assert ruling.memory == (after["g"] if isinstance(after, dict) and "o" in after else after)


LEFT, NOW_US = {"f": True}, 100_000_000


@pytest.mark.parametrize(
    ("seconds", "judgement", "what"),
    [(89, Judgement.LATE, Action.LATE), (90, Judgement.BUFFER, Action.HOLD), (105, Judgement.BUFFER, Action.HOLD)],
)
def test_its_next_message_waits_for_its_order_unless_it_is_late(
    seconds: int, judgement: Judgement, what: Action
) -> None:
    """Applied at once, it would be in a window that is closed, or make the earlier ones late that are still to come."""
    integrity = FuzzyWindow(lateness=BOUND, reorder=True, session_start=FIRST)
    gate, watermark = OpeningAtFirst(integrity.gate(PartitionTime(NOW_US))), ReplayWatermark()
    watermark.advance(NOW_US)
    message = Envelope("s", Kind.UPDATE, event_time_us=seconds * 1_000_000)
    after, verdict = gate.check({**LEFT}, message, RECORD)
    ruling = make_rules(integrity, watermark).rule({**LEFT}, message, RECORD)
    assert (verdict.judgement, ruling.what) == (judgement, what)
    assert after == ruling.memory
    assert gate.held(after) == (() if what is Action.LATE else (RECORD.offset,))
