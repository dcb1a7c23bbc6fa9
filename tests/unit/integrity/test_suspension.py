"""Suspension at its boundaries: an offset before which sessions are suspended, for a partition and for one session."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import FuzzyWindow, Sequence
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.gate_states import ActiveSession, SuspensionMark
from lockstep.integrity.suspension import (
    LOSS_ACCEPTED,
    SuspensionGate,
    list_skips_without_snapshot,
    list_unread_skips,
    mark_suspended,
    migrate_gate_state,
)
from lockstep.integrity.verdict import Judgement
from lockstep.model.position import SuspendedSession
from tests.support.gate_feed import Sent, anew, snapshot, update

if TYPE_CHECKING:
    from lockstep.integrity.gate_states import GateState

SUSPENDED = SuspensionMark(3, 5)
FROM = 10
"""Sessions that started before this offset are suspended."""


def began(offset: int, number: int = 1) -> ActiveSession[int]:
    """Return the state of a session that started at an offset and has reached a number."""
    return ActiveSession(offset, number)


def told(gate: SuspensionGate[int], state: ActiveSession[int] | SuspensionMark | None, sent: Sent, offset: int) -> str:
    envelope, record = sent.at(offset)
    return gate.check(state, envelope, record)[1].judgement.value


def gate_of(before: int, *skipped: SuspendedSession) -> SuspensionGate[int]:
    return SuspensionGate(Sequence(), before, skipped, tolerates_violations=True)


@pytest.mark.parametrize(("offset", "judgement"), [(FROM - 1, "suspend"), (FROM, "accept"), (FROM + 1, "accept")])
def test_a_session_is_suspended_where_it_began_before_the_offset_and_not_at_it(offset: int, judgement: str) -> None:
    assert told(gate_of(FROM), began(offset), update(2, 0), 20) == judgement
    assert told(gate_of(0, SuspendedSession("s", FROM)), began(offset), update(2, 0), 20) == judgement


@pytest.mark.parametrize(("offset", "judgement"), [(FROM - 1, "quarantine"), (FROM, "accept")])
def test_a_snapshot_begins_a_session_from_the_offset_on_and_not_before_it(offset: int, judgement: str) -> None:
    suspended = SuspensionMark(3, 5)
    assert [told(gate_of(FROM), each, snapshot(1, 0), offset) for each in (None, suspended)] == [judgement] * 2


@pytest.mark.parametrize(("skipped", "judgement"), [("s", "quarantine"), ("other", "violation")])
def test_an_update_of_an_unknown_session_halts_no_stream_that_skips_the_session(skipped: str, judgement: str) -> None:
    gate = SuspensionGate(Sequence(), 0, [SuspendedSession(skipped, FROM)], tolerates_violations=False)
    assert told(gate, None, update(2, 0), FROM) == judgement


@pytest.mark.parametrize(("offset", "kept"), [(FROM - 1, None), (FROM, 1)])
def test_where_the_policy_becomes_to_halt_the_same_sessions_are_unknown(offset: int, kept: GateState) -> None:
    assert migrate_gate_state(began(offset), FROM, suspends=False, inner=Sequence()) == kept


@pytest.mark.parametrize(("state", "before", "kept"), [(1, FROM, None), (1, 0, 1), (SUSPENDED, 0, None)])
def test_a_stream_that_halts_knows_no_session_that_was_given_up_or_suspended(
    state: GateState, before: int, kept: GateState
) -> None:
    assert migrate_gate_state(state, before, suspends=False, inner=Sequence()) == kept


@pytest.mark.parametrize(("before", "judgement"), [(FROM, "quarantine"), (0, "violation")])
def test_a_session_that_may_have_begun_in_what_was_given_up_halts_no_stream(before: int, judgement: str) -> None:
    gate = SuspensionGate(Sequence(), before, tolerates_violations=False)
    assert told(gate, None, update(2, 0), FROM) == judgement


@pytest.mark.parametrize(("state", "since"), [(began(3), "10"), (SUSPENDED, "5")])
def test_the_loss_that_a_snapshot_ends_began_at_the_first_offset_that_was_not_applied(
    state: ActiveSession[int] | SuspensionMark, since: str
) -> None:
    gate = SuspensionGate(Sequence(), FROM, tolerates_violations=True, accepts_loss=True)
    verdict = gate.check(state, *snapshot(9, 0).at(20))[1]
    assert (verdict.cause, verdict.expected, verdict.found) == (LOSS_ACCEPTED, since, "20")


@pytest.mark.parametrize(("sent", "judgement"), [(snapshot(1, 0), "suspend"), (anew(1, 0), "accept")])
def test_behind_a_broken_snapshot_only_one_that_begins_anew_ends_the_suspension(sent: Sent, judgement: str) -> None:
    broken = SuspensionMark(3, 5, is_broken=True)
    assert told(gate_of(0), broken, sent, 20) == judgement


@pytest.mark.parametrize(("sent", "judgement"), [(snapshot(1, 0), "accept"), (snapshot(2**63, 0), "suspend")])
def test_a_snapshot_that_no_session_could_begin_with_suspends_its_session(sent: Sent, judgement: str) -> None:
    assert told(gate_of(0), began(3, 7), sent, 20) == judgement


def test_the_repeat_of_a_snapshot_is_dropped_and_does_not_begin_its_session_again() -> None:
    time = PartitionTime()
    gate = SuspensionGate(FuzzyWindow(lateness=timedelta(seconds=10)).gate(time), 0, tolerates_violations=True)
    state, first = gate.check(None, *snapshot(1, 0).at(3))
    after, repeat = gate.check(state, *snapshot(1, 0).at(4))
    assert (first.judgement, repeat.judgement) == (Judgement.ACCEPT, Judgement.DUPLICATE)
    assert isinstance(after, ActiveSession)
    assert after.began_at == 3


def test_a_session_that_is_suspended_again_keeps_its_first_lost_offset() -> None:
    assert mark_suspended(SUSPENDED, 9) == SUSPENDED


def test_a_session_that_ended_after_it_was_skipped_waits_for_nothing() -> None:
    assert list_skips_without_snapshot([SuspendedSession("s", 0)], lambda _: None) == ()


@pytest.mark.parametrize(("offset", "skipped"), [(FROM - 1, True), (FROM, False)])
def test_a_skipped_session_is_so_until_a_snapshot_at_the_offset_or_after_it(offset: int, *, skipped: bool) -> None:
    session = SuspendedSession("s", FROM)
    assert bool(list_skips_without_snapshot([session], lambda _: began(offset))) is skipped


@pytest.mark.parametrize(("reached", "skipped"), [(FROM - 1, True), (FROM, False)])
def test_a_session_that_waits_for_no_snapshot_is_skipped_until_all_that_was_given_up_is_read(
    reached: int, *, skipped: bool
) -> None:
    """Earlier changes of the session do not count: a timer may have made them, or a range that ended at a burst."""
    assert bool(list_unread_skips([SuspendedSession("s", FROM)], reached)) is skipped
