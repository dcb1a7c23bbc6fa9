"""Numbers that wrap around or restart, and the count in an END."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep import Checksum, Envelope, Kind, LogOnly, NoIntegrity, Ordered, Repeats, Sequence, Strict
from lockstep.errors import DeclarationError
from lockstep.integrity.base import IntegrityClass, PartitionTime
from lockstep.integrity.gate_states import KNOWN, GateState, KnownSession
from lockstep.integrity.sequence_numbers import unwrap_sequence
from lockstep.integrity.strict import Evidence
from lockstep.integrity.verdict import AnyGate
from tests.support.envelopes import RECORD, refused_at, snapshot, update

TOLD = "254 (1 back; wraps_at=256 tells up to 127 ahead)"


def test_a_number_of_8_bits_goes_on_at_0() -> None:
    places = [snapshot(254), update(255), update(0), update(1)]
    assert refused_at(Sequence(wraps_at=256), places) is None
    refused = refused_at(Sequence(), places)
    assert refused is not None
    assert (refused[1].cause, refused[1].expected, refused[1].found) == ("sequence goes back", "256", "0")


@pytest.mark.parametrize(
    ("number", "cause", "found"),
    [(1, "gap", "1, missing 0"), (254, "sequence goes back", TOLD), (255, "repeat", "255")],
)
def test_a_break_is_told_in_the_numbers_of_the_producer(number: int, cause: str, found: str) -> None:
    refused = refused_at(Sequence(wraps_at=256), [snapshot(255), update(number)])
    assert refused is not None
    assert (cause, "0", found) == (refused[1].cause, refused[1].expected, refused[1].found)


def test_ordered_takes_a_wrap_for_going_forward() -> None:
    assert refused_at(Ordered(wraps_at=256).gate(PartitionTime()), [snapshot(250), update(255), update(3)]) is None
    late = refused_at(Ordered(wraps_at=256).gate(PartitionTime()), [snapshot(3), update(250)])
    assert late is not None
    assert late[1].cause == "sequence goes back"


@given(last=some.integers(0, 10**12), step=some.integers(-100, 100), bits=some.sampled_from([8, 16, 32]))
def test_the_nearest_number_is_meant(last: int, step: int, bits: int) -> None:
    wraps_at = 2**bits
    assert last + step == unwrap_sequence((last + step) % wraps_at, last, wraps_at)


@pytest.mark.parametrize("integrity", [Strict(evidence=Sequence(wraps_at=256)), Ordered(wraps_at=256)], ids=str)
@pytest.mark.parametrize("number", [-1, 256, 300])
def test_a_number_that_a_producer_of_8_bits_cannot_send_is_refused(integrity: IntegrityClass, number: int) -> None:
    refused = refused_at(integrity.gate(PartitionTime()), [snapshot(7), update(number)])
    assert refused is not None
    expected = "a number from 0 to 255, because of wraps_at=256"
    assert (refused[1].cause, refused[1].expected, refused[1].found) == ("number out of range", expected, str(number))


@pytest.mark.parametrize(
    ("lost", "cause"), [(1, "gap"), (126, "gap"), (127, "sequence goes back"), (253, "sequence goes back")]
)
def test_half_a_round_is_the_bound_of_what_is_told_as_forward(lost: int, cause: str) -> None:
    for integrity in (Strict(evidence=Sequence(wraps_at=256)), Ordered(wraps_at=256), NoIntegrity(wraps_at=256)):
        gate: AnyGate = integrity.gate(PartitionTime())
        state, _ = gate.check(None, snapshot(255), RECORD)
        _, verdict = gate.check(state, update(lost), RECORD)  # the next number is 0
        assert verdict.cause == cause, integrity


def test_best_effort_counts_nothing_where_numbers_wrap_and_ignores_those_that_cannot_be() -> None:
    gate = NoIntegrity(wraps_at=256).gate(PartitionTime())
    state: int | KnownSession | None = None
    causes = []
    for number in (254, 255, 0, 1, 1000, 2, 4):
        state, verdict = gate.check(state, update(number), RECORD)
        causes.append(verdict.cause)
    assert causes == ["", "", "", "", "", "", "gap"]


def test_repeats_cannot_be_told_among_more_than_half_a_round() -> None:
    with pytest.raises(DeclarationError, match=r"Sequence.wraps_at = 16: is less than twice the 64 messages"):
        Strict(evidence=Sequence(wraps_at=16), repeats=Repeats.DROP)
    Strict(evidence=Sequence(wraps_at=256), repeats=Repeats.DROP)


def test_updates_wait_for_a_snapshot_within_half_a_round() -> None:
    gate = Strict(evidence=Sequence(wraps_at=8), buffer_until_snapshot=True).gate(PartitionTime())
    state: GateState = None
    said = []
    for number in (6, 7, 0, 1, 2):
        state, verdict = gate.check(state, update(number), RECORD)
        said.append((verdict.judgement.value, verdict.cause))
    assert said == [("buffer", "buffered")] * 4 + [("violation", "no snapshot")]


@pytest.mark.parametrize("wraps_at", [0, 3, -256, True, 2.0])
def test_a_wrap_around_that_is_none_is_refused(wraps_at: object) -> None:
    with pytest.raises(DeclarationError, match="is not how many numbers there are"):
        Sequence(wraps_at=wraps_at)  # type: ignore[arg-type]  # wrong on purpose


def test_a_snapshot_may_begin_the_numbering_anew_where_the_producer_says_so() -> None:
    anew = Envelope("s", Kind.SNAPSHOT, sequence=1, restarts_sequence=True)
    assert refused_at(Sequence(), [snapshot(7), update(8), anew, update(2)]) is None
    assert refused_at(Sequence(), [snapshot(7), update(8), snapshot(1)]) is not None


@pytest.mark.parametrize("evidence", [Checksum(), LogOnly()])
@pytest.mark.parametrize(("count", "cause"), [(3, None), (None, None), (4, "count"), (2, "count")])
def test_the_count_at_the_end_is_compared(evidence: Evidence, count: int | None, cause: str | None) -> None:
    refused = refused_at(evidence, [snapshot(), update(), Envelope("s", Kind.END, count=count)])
    assert cause == (refused[1].cause if refused else None)


def test_a_session_of_another_evidence_has_no_count_to_compare() -> None:
    gate: AnyGate = LogOnly()
    state, _ = gate.check(KNOWN, update(), RECORD)
    assert state is KNOWN
    _, verdict = gate.check(state, Envelope("s", Kind.END, count=99), RECORD)
    assert verdict.judgement.value == "accept"
