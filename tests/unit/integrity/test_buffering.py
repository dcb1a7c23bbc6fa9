"""Updates that wait for their snapshot: recorded feeds as received, and generated feeds that are cut anywhere."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some

from assets.order_books import BookMessage, LevelChange, PriceLevel, order_books
from lockstep import Checksum, Envelope, Kind, Linked, LogOnly, Repeats, Sequence, SessionStart, Strict, Suspend
from lockstep.errors import DeclarationError
from lockstep.features.localdev.recordings import Recorded, RecordedKind, read_recorded_days, to_received, to_sent
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.buffering import WAITING_MAX
from lockstep.integrity.gate_states import (
    ActiveSession,
    Deduplicated,
    EarlyUpdate,
    EvidenceState,
    SnapshotApplied,
    SnapshotAwaited,
)
from lockstep.testing import SentMessage, run
from tests.support.envelopes import at_offset
from tests.support.golden_streams import STREAMS, Change

if TYPE_CHECKING:
    from collections.abc import Sequence as Many
    from decimal import Decimal

    from lockstep.integrity.gate_states import GateState
    from lockstep.testing import RunResult

RECORDINGS = Path(__file__).parents[2] / "recordings" / "binance_l2"
BOOKS = ("spot_btcusdt", "spot_ethusdt", "cm_btcusd_perp")
MESSAGES = 600
BUFFERING = dataclasses.replace(order_books, integrity=Strict(evidence=Linked(), buffer_until_snapshot=True))


@cache
def rows(book: str, *, received: bool) -> RunResult[dict[tuple[str, Decimal], PriceLevel], LevelChange]:
    days = read_recorded_days(RECORDINGS, book)
    messages: Many[Recorded] = to_received(days) if received else to_sent(days).messages
    sent = [SentMessage[BookMessage](value=each.value, key=each.key) for each in messages[:MESSAGES]]
    return run(BUFFERING, *sent)


@pytest.mark.parametrize("book", BOOKS)
def test_a_recorded_book_as_received_comes_to_the_rows_of_a_good_producer(book: str) -> None:
    received = rows(book, received=True).or_raise()
    sent = rows(book, received=False).or_raise()
    assert len(received.rows) > MESSAGES
    shorter = min(len(received.rows), len(sent.rows))
    assert received.rows[:shorter] == sent.rows[:shorter]


@pytest.mark.parametrize("book", BOOKS)
def test_a_recorded_book_has_updates_that_its_snapshot_covers(book: str) -> None:
    """A good producer would not have sent any of the dropped updates, except an update that ends with the snapshot."""
    received = to_received(read_recorded_days(RECORDINGS, book))
    days = read_recorded_days(RECORDINGS, book)
    snapshot = next(at for at, each in enumerate(received) if each.kind is RecordedKind.SNAPSHOT)
    covered = [each for each in received if each.first_id is not None and each.last_id <= received[snapshot].last_id]
    said = rows(book, received=True).verdicts
    told = said[snapshot].stale + tuple(at for at, verdict in enumerate(said) if verdict.cause == "stale")
    assert [received[at] for at in told] == covered
    assert len(to_sent(days).stale) <= len(covered) <= len(to_sent(days).stale) + 1
    assert covered


@given(some.data())
def test_wherever_a_snapshot_lies_the_state_is_that_of_all_messages(data: some.DataObject) -> None:
    """Its number may belong to an earlier or a later update than the updates around it."""
    count = data.draw(some.integers(1, 12))
    covered = data.draw(some.integers(0, count))
    at = data.draw(some.integers(0, count))
    updates = [Change(Kind.UPDATE, number, add=number) for number in range(1, count + 1)]
    whole = Change(Kind.SNAPSHOT, covered, level=sum(range(covered + 1)))
    ran = run(STREAMS["buffers"], *updates[:at], whole, *updates[at:], key="a").or_raise()
    assert ran.states["a"].level == sum(range(count + 1))
    assert len(ran.rows) == count - covered


@given(some.data())
def test_what_is_missing_behind_the_snapshot_is_missed(data: some.DataObject) -> None:
    count = data.draw(some.integers(3, 12))
    covered = data.draw(some.integers(0, count - 2))
    missing = data.draw(some.integers(covered + 1, count - 1))
    at = data.draw(some.integers(0, count - 1))
    updates = [Change(Kind.UPDATE, number, add=1) for number in range(1, count + 1) if number != missing]
    ran = run(STREAMS["buffers"], *updates[:at], Change(Kind.SNAPSHOT, covered, level=1), *updates[at:], key="a")
    assert ran.finding is not None
    assert ran.finding.cause == "gap"
    assert f"missing {missing}" in (ran.finding.found or "")


def test_a_session_whose_snapshot_never_comes_ends_the_patience() -> None:
    gate = Strict(evidence=Sequence(), buffer_until_snapshot=True).gate_for(0, PartitionTime())
    state = SnapshotAwaited([EarlyUpdate(number, number, None, None) for number in range(WAITING_MAX)])
    _, verdict = gate.check(state, Envelope("s", sequence=WAITING_MAX), at_offset(WAITING_MAX))
    assert (verdict.judgement.value, verdict.cause) == ("violation", "no snapshot")


def test_a_session_that_waits_is_unknown_once_the_option_is_gone() -> None:
    waiting = SnapshotAwaited([EarlyUpdate(0, 5, None, None)])
    fresh: SnapshotApplied[EvidenceState] = SnapshotApplied(5, 5)
    adapted = Strict(evidence=Sequence()).make_state_adapter(0)
    assert (adapted(waiting), adapted(fresh)) == (None, 5)
    suspends = Strict(evidence=Sequence(), repeats=Repeats.DROP, on_violation=Suspend()).make_state_adapter(0)
    assert suspends(ActiveSession(3, Deduplicated({}, fresh))) == ActiveSession(3, Deduplicated({}, 5))
    assert suspends(ActiveSession(3, Deduplicated({}, waiting))) is None


def test_a_session_of_before_the_option_goes_on() -> None:
    adapted = Strict(evidence=Sequence(), buffer_until_snapshot=True).make_state_adapter(0)
    states: list[GateState] = [7, SnapshotApplied(5, 5), SnapshotAwaited([])]
    assert list(map(adapted, states)) == states


@pytest.mark.parametrize("evidence", [Checksum(), LogOnly()], ids=lambda each: type(each).__name__)
def test_waiting_without_numbers_is_refused(evidence: Checksum) -> None:
    with pytest.raises(DeclarationError, match="needs numbers"):
        Strict(evidence=evidence, buffer_until_snapshot=True)


def test_waiting_for_a_snapshot_that_is_not_needed_is_refused() -> None:
    with pytest.raises(DeclarationError, match="leave one of the two out"):
        Strict(evidence=Sequence(), buffer_until_snapshot=True, session_start=SessionStart.FIRST_MESSAGE)
