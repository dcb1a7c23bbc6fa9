"""The promise of each class, and its verdicts on cases that never reach a gate."""

from __future__ import annotations

import pytest

from lockstep import Checksum, Halt, Linked, LogOnly, NoIntegrity, Sequence, Strict
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.strict import Evidence
from lockstep.integrity.verdict import Judgement
from lockstep.model.fault import Fault

PROMISES = [
    (Strict(evidence=Sequence()), "strict: in order, none missing, none repeated, by Sequence"),
    (Strict(evidence=Linked()), "strict: in order, none missing, none repeated, by Linked"),
    (Strict(evidence=Checksum()), "strict: in order, none missing, none repeated, by Checksum"),
    (
        Strict(evidence=LogOnly()),
        "strict: in order, none missing, none repeated, by LogOnly (the log only: what the producer lost is not seen)",
    ),
    (NoIntegrity(), "none: best effort, everything noticed is counted"),
]


@pytest.mark.parametrize(("integrity", "promise"), PROMISES)
def test_a_class_says_what_it_promises(integrity: Strict | NoIntegrity, promise: str) -> None:
    assert integrity.guarantee() == promise


def test_strict_stops_at_what_it_cannot_prove() -> None:
    strict = Strict(evidence=Sequence())
    assert {strict.judge(fault) for fault in Fault} == {Judgement.VIOLATION}
    assert not strict.passes_unknown_sessions
    assert strict.on_violation == Halt()


def test_no_integrity_counts_it_and_goes_on() -> None:
    answers = {fault: NoIntegrity().judge(fault) for fault in Fault}
    assert {answers.pop(fault) for fault in (Fault.TRANSFORM_FAILED, Fault.UNDECODABLE)} == {Judgement.QUARANTINE}
    assert set(answers.values()) == {Judgement.GAP}
    assert NoIntegrity.passes_unknown_sessions


def test_the_gate_of_strict_is_its_evidence() -> None:
    evidence = Sequence()
    assert Strict(evidence=evidence).gate(PartitionTime()) is evidence


def test_evidence_that_judges_nothing_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="base class without check"):
        Evidence()  # type: ignore[abstract]  # wrong on purpose
