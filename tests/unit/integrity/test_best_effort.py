"""`NoIntegrity` accepts everything, and remarks on everything that it noticed."""

from __future__ import annotations

import pytest

from lockstep import Envelope, Kind, NoIntegrity
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.gate_states import KNOWN, KnownSession
from lockstep.integrity.sequence_numbers import LARGEST
from lockstep.integrity.verdict import ACCEPT, Verdict, accept_with_remark
from tests.support.envelopes import RECORD, end, snapshot, update

CELLS: dict[str, tuple[int | KnownSession | None, Envelope, int | KnownSession, Verdict]] = {
    "an update of an unknown session": (None, update(41), 41, ACCEPT),
    "a snapshot of an unknown session": (None, snapshot(41), 41, ACCEPT),
    "the next number": (41, update(42), 42, ACCEPT),
    "a second snapshot with the next number": (41, snapshot(42), 42, ACCEPT),
    "a second snapshot that repeats the last number": (41, snapshot(41), 41, ACCEPT),
    "the end with the next number": (41, end(42), 42, ACCEPT),
    "the same number again": (41, update(41), 41, accept_with_remark("repeat", 42, 41)),
    "one number missing": (41, update(43), 43, accept_with_remark("gap", 42, 43)),
    "several numbers missing": (41, update(50), 50, accept_with_remark("gap", 42, 50)),
    "a number of before is late, and changes nothing": (
        41,
        update(7),
        41,
        accept_with_remark("sequence goes back", 42, 7),
    ),
    "a snapshot that goes back begins anew": (41, snapshot(0), 0, accept_with_remark("sequence goes back", 42, 0)),
    "a snapshot after a gap begins anew": (41, snapshot(60), 60, accept_with_remark("gap", 42, 60)),
    "a snapshot that begins the numbers anew": (
        41,
        Envelope("s", Kind.SNAPSHOT, sequence=1, restarts_sequence=True),
        1,
        ACCEPT,
    ),
    "no number, unknown session": (None, update(), KNOWN, ACCEPT),
    "no number, no number before": (KNOWN, update(), KNOWN, ACCEPT),
    "no number after numbers": (41, update(), 41, ACCEPT),
    "the first number after none": (KNOWN, update(41), 41, ACCEPT),
    "1 after none, which is no repeat of it": (KNOWN, update(1), 1, ACCEPT),
    "a number that no state file holds": (41, update(LARGEST + 1), 41, ACCEPT),
    "0 and 1 are numbers": (0, update(1), 1, ACCEPT),
}


@pytest.mark.parametrize("cell", CELLS)
def test_what_is_remarked_on_and_remembered(cell: str) -> None:
    before, envelope, after, verdict = CELLS[cell]
    assert NoIntegrity().gate(PartitionTime()).check(before, envelope, RECORD) == (after, verdict)


def test_the_usual_verdict_is_the_very_object_that_the_fold_compares_with() -> None:
    _, verdict = NoIntegrity().gate(PartitionTime()).check(41, update(42), RECORD)
    assert verdict is ACCEPT
