"""Sessions that start at their first message: the promises of the classes hold from this message on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import (
    Envelope,
    FuzzyWindow,
    Kind,
    LogOnly,
    NoIntegrity,
    Once,
    Ordered,
    Sequence,
    SessionStart,
    Strict,
    Suspend,
)
from lockstep.errors import DeclarationError
from lockstep.integrity.base import PartitionTime
from lockstep.model.position import SuspendedSession
from lockstep.testing import run
from tests.support.envelopes import at_offset
from tests.support.golden_streams import STREAMS, Change

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from lockstep.integrity.gate_states import GateState
    from lockstep.integrity.verdict import AnyGate

FIRST = SessionStart.FIRST_MESSAGE
LATENESS = timedelta(seconds=10)
CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(session_start=FIRST),
    "once": Once(keep_ids=10, session_start=FIRST),
    "once, suspending": Once(keep_ids=10, session_start=FIRST, on_violation=Suspend()),
    "ordered": Ordered(session_start=FIRST),
    "window": FuzzyWindow(lateness=LATENESS, session_start=FIRST),
    "reorder": FuzzyWindow(lateness=LATENESS, reorder=True, session_start=FIRST),
    "strict": Strict(evidence=Sequence(), session_start=FIRST),
    "log only": Strict(evidence=LogOnly(), session_start=FIRST),
    "strict, suspending": Strict(evidence=Sequence(), session_start=FIRST, on_violation=Suspend()),
}


def judged(gate: AnyGate, *messages: tuple[Kind, int]) -> list[str]:
    """Return a gate's verdicts on the messages of one session at the offsets 0, 1, 2 ..., driven as by the engine."""
    state: GateState = None
    said = []
    for offset, (kind, number) in enumerate(messages):
        after, verdict = gate.check(state, Envelope("s", kind, sequence=number), at_offset(offset))
        said.append(verdict.cause or verdict.judgement.value)
        kept = verdict.judgement.value in {"accept", "suspend"}
        state = None if kept and kind is Kind.END else after if kept else state
    return said


@pytest.mark.parametrize("name", CLASSES)
def test_under_every_class_a_session_begins_ends_and_begins_again_without_a_snapshot(name: str) -> None:
    gate = CLASSES[name].gate_for(0, PartitionTime())
    life = [(Kind.UPDATE, 5), (Kind.UPDATE, 6), (Kind.END, 7), (Kind.UPDATE, 1), (Kind.UPDATE, 2)]
    assert judged(gate, *life) == ["accept"] * 5


@pytest.mark.parametrize("name", CLASSES)
def test_under_every_class_an_end_of_an_unknown_session_changes_nothing(name: str) -> None:
    gate = CLASSES[name].gate_for(0, PartitionTime())
    assert judged(gate, (Kind.END, 9), (Kind.UPDATE, 1), (Kind.UPDATE, 2)) == ["accept"] * 3


@pytest.mark.parametrize("name", ["strict", "log only"])
def test_an_end_of_an_unknown_session_leaves_no_memory_of_it(name: str) -> None:
    gate = CLASSES[name].gate_for(0, PartitionTime())
    after, verdict = gate.check(None, Envelope("s", Kind.END, sequence=9), at_offset(0))
    assert (after, verdict.judgement.value) == (None, "accept")


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in {"none", "once"}])
def test_a_session_that_an_operator_skips_begins_anew_behind_what_was_given_up(name: str) -> None:
    gate = CLASSES[name].gate_for(0, PartitionTime(), (SuspendedSession("s", before=2),))
    life = [(Kind.UPDATE, 5), (Kind.UPDATE, 9), (Kind.UPDATE, 11), (Kind.UPDATE, 12)]
    assert judged(gate, *life) == ["suspended", "suspended", "accept", "accept"]


@pytest.mark.parametrize("name", ["strict", "strict, suspending"])
def test_what_is_lost_after_the_first_message_is_missed(name: str) -> None:
    gate = CLASSES[name].gate_for(0, PartitionTime())
    assert judged(gate, (Kind.UPDATE, 5), (Kind.UPDATE, 7)) == ["accept", "gap"]


def test_a_snapshot_still_sets_the_state() -> None:
    ran = run(
        STREAMS["first_strict"],
        Change(Kind.UPDATE, 1, add=2),
        Change(Kind.SNAPSHOT, 2, level=50),
        Change(Kind.UPDATE, 3, add=1),
        key="a",
    )
    assert [row.level for row in ran.rows] == [2, 50, 51]


def test_a_start_of_sessions_that_is_none_is_refused() -> None:
    from dataclasses import replace

    wrong = Ordered(session_start="first")  # type: ignore[arg-type]  # the refused value
    with pytest.raises(DeclarationError, match=r"(?s)session_start.*SessionStart\.FIRST_MESSAGE"):
        replace(STREAMS["ordered"], integrity=wrong)
