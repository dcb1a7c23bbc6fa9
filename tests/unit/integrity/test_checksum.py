"""Evidences `Checksum` and `LogOnly`: the gate knows only whether a session has started."""

from __future__ import annotations

import pytest

from lockstep import Checksum, Envelope, Link, LogOnly
from lockstep.integrity.gate_states import KNOWN, GateState, MessageCount
from lockstep.integrity.strict import Evidence
from lockstep.integrity.verdict import ACCEPT, Verdict, report_violation
from tests.support.envelopes import RECORD, end, snapshot, update

CELLS: dict[str, tuple[GateState, Envelope, GateState, Verdict]] = {
    "a snapshot opens a session": (None, snapshot(), MessageCount(1), ACCEPT),
    "a counted session": (MessageCount(4), update(), MessageCount(5), ACCEPT),
    "an update of a known session": (KNOWN, update(), KNOWN, ACCEPT),
    "a second snapshot": (KNOWN, snapshot(), KNOWN, ACCEPT),
    "the end of a known session": (KNOWN, end(), KNOWN, ACCEPT),
    "numbers are not looked at": (KNOWN, update(7), KNOWN, ACCEPT),
    "links are not looked at": (KNOWN, update(link=Link(7, previous=99)), KNOWN, ACCEPT),
    "an update of an unknown session": (
        None,
        update(),
        None,
        report_violation("unknown session", "a snapshot first", "update of a session without snapshot"),
    ),
    "the end of an unknown session": (
        None,
        end(),
        None,
        report_violation("unknown session", "a snapshot first", "end of a session without snapshot"),
    ),
}


@pytest.mark.parametrize("evidence", [Checksum(), LogOnly()], ids=lambda evidence: type(evidence).__name__)
@pytest.mark.parametrize("cell", CELLS)
def test_what_is_judged_and_remembered(cell: str, evidence: Evidence) -> None:
    before, envelope, after, verdict = CELLS[cell]
    assert evidence.check(before, envelope, RECORD) == (after, verdict)
