"""A message after which the state cannot be stored is treated as a message on which the transform raised."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lockstep import (
    Envelope,
    FuzzyWindow,
    NoIntegrity,
    Once,
    Ordered,
    Record,
    Sequence,
    SessionStart,
    Stream,
    Strict,
    Suspend,
    Topics,
    Transform,
)
from lockstep.engine.executor.state_checks import BYTES_PER_MESSAGE
from lockstep.state import codec
from lockstep.state.codec import StateNotOfItsType
from lockstep.state.local_store_pool import MemoryBudget
from lockstep.state.store import PartitionState
from lockstep.testing import RunResult, SentMessage, run
from tests.support.unstorable_stream import (
    AFTER_YEAR_9999,
    BEFORE_YEAR_1,
    LARGE,
    History,
    KeepHistory,
    Measured,
    Seen,
    histories,
    tables,
)

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass

FIRST = SessionStart.FIRST_MESSAGE
REORDER = FuzzyWindow(lateness=timedelta(seconds=2), reorder=True, session_start=FIRST)
STRICT = Strict(evidence=Sequence(), session_start=FIRST)
SPLITS = [None, 1, 2, 5]


def at(seq: int, time: str) -> Measured:
    return Measured(seq, at=datetime.fromisoformat(time))


BAD = [Measured(2, LARGE), at(2, BEFORE_YEAR_1), at(2, AFTER_YEAR_9999)]


def rejected(ran: RunResult[Any, Any]) -> list[tuple[int, str]]:
    return [(each.offset, each.cause) for each in ran.quarantine]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("integrity", [NoIntegrity(), Once(keep_ids=10)])
def test_it_is_quarantined_and_the_others_are_applied(
    integrity: IntegrityClass, bad: Measured, split: int | None
) -> None:
    stream = histories(integrity)
    ran = run(
        stream, Measured(1, 7), bad, Measured(3, 8), SentMessage(value=Measured(1, 5), key="q"), key="p", split=split
    )
    assert rejected(ran) == [(1, "state not storable")]
    assert [row.seq for row in ran.rows] == [3]
    assert [ran.states[key].values for key in ("p", "q")] == [{1: 7, 3: 8}, {1: 5}]


@pytest.mark.parametrize("split", SPLITS)
def test_a_class_that_suspends_suspends_its_session_only(split: int | None) -> None:
    stream = histories(Ordered(session_start=FIRST, on_violation=Suspend()))
    sent = [SentMessage(value=Measured(seq), key="q") for seq in (1, 2)]
    ran = run(stream, Measured(1), Measured(2, LARGE), Measured(3), *sent, key="p", split=split)
    assert rejected(ran)[0] == (1, "state not storable")
    assert ran.states["q"].values == {1: 0, 2: 0}


@pytest.mark.parametrize("split", SPLITS)
def test_a_strict_stream_halts_before_it(split: int | None) -> None:
    ran = run(histories(STRICT), Measured(1), Measured(2, LARGE), Measured(3), key="p", split=split)
    assert ran.finding is not None
    assert (ran.finding.cause, ran.finding.offset, ran.finding.session) == ("state not storable", 1, "p")
    assert ran.states["p"].values == {1: 0}


@pytest.mark.parametrize("split", SPLITS)
def test_a_table_of_the_state_is_checked_too(split: int | None) -> None:
    ran = run(tables(NoIntegrity()), Measured(1, 7), Measured(2, LARGE), Measured(3, 8), key="p", split=split)
    assert rejected(ran) == [(1, "state not storable")]
    assert [(row.seq, row.before) for row in ran.rows] == [(3, 1)]


@pytest.mark.parametrize("split", SPLITS)
def test_of_messages_in_disorder_the_one_to_blame_is_refused_when_it_is_applied(split: int | None) -> None:
    sent = [Measured(1), Measured(3, LARGE), Measured(2), Measured(4), Measured(9), Measured(12)]
    ran = run(histories(REORDER), *sent, key="p", split=split)
    assert (1, "state not storable") in rejected(ran)
    assert (2, "state not storable") not in rejected(ran)


@pytest.mark.parametrize("split", [None, 20])
def test_more_of_them_than_one_range_folds_again_for(split: int | None) -> None:
    sent = [SentMessage(value=Measured(seq, LARGE if seq % 2 else seq), key=f"p{seq % 3}") for seq in range(40)]
    ran = run(histories(NoIntegrity()), *sent, split=split)
    assert [(seq, "state not storable") for seq in range(1, 40, 2)] == rejected(ran)


def test_it_is_found_when_states_move_to_the_disk_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with more states than its memory may hold stores some of them before its last message."""
    monkeypatch.setattr(MemoryBudget.__init__, "__defaults__", (1_000,))
    bad = {17, 64, 65, 99}
    sent = [SentMessage(value=Measured(at, LARGE if at in bad else at), key=f"p{at % 33}") for at in range(100)]
    ran = run(histories(NoIntegrity()), *sent, split=100)
    assert rejected(ran) == [(seq, "state not storable") for seq in sorted(bad)]
    assert ran.states["p31"].values == {31: 31, 97: 97}


GROWN = [Measured(seq, 2**60) for seq in range(205)]
"""Messages that leave a state of 3 kB, which is finally checked after each third message."""


@pytest.mark.parametrize("at", [*range(190, 194), 199])
@pytest.mark.parametrize("repairs", [[], [Measured(0, 1)] * 5])
def test_of_a_large_state_the_message_to_blame_is_found_too(at: int, repairs: list[Measured]) -> None:
    """The message is found also if a later message repairs the state."""
    sent = [*GROWN[:at], Measured(0, LARGE), *GROWN[at + 1 : at + 4], *repairs]
    ran = run(histories(NoIntegrity()), *sent, key="p")
    assert rejected(ran) == [(at, "state not storable")]


@pytest.mark.parametrize("at", [190, 191, 199])
def test_of_a_large_state_a_strict_stream_halts_before_the_message_to_blame(at: int) -> None:
    ran = run(histories(STRICT), *GROWN[:at], Measured(at, LARGE), *GROWN[at + 1 :], key="p")
    assert ran.finding is not None
    assert (ran.finding.cause, ran.finding.offset) == ("state not storable", at)


def test_checks_of_a_state_cost_what_its_messages_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    check = PartitionState[object].check_storable

    def measure(state: PartitionState[object], session: str) -> int:
        sizes.append(check(state, session))
        return sizes[-1]

    monkeypatch.setattr(PartitionState, "check_storable", measure)
    run(histories(NoIntegrity()), *GROWN, key="p").or_raise()
    assert max(sizes) > 2 * BYTES_PER_MESSAGE
    assert sum(sizes) < 1.5 * BYTES_PER_MESSAGE * len(GROWN)


class Pair(msgspec.Struct):
    """Two lists of the last values."""

    left: list[int]
    right: list[int]


class ShareList(Transform[Measured, Pair, Seen]):
    """A transform that stores one list in two places with its last message."""

    def envelope(self, message: Measured, record: Record) -> Envelope:
        """Use the key as the session."""
        return Envelope(record.key_text, sequence=message.seq)

    def on_snapshot(self, message: Measured, record: Record, previous: Pair | None) -> Pair:
        """Return a large state."""
        return Pair(list(range(10_000)), [])

    def on_update(self, state: Pair, message: Measured, record: Record) -> list[Seen]:
        """Share the list if the message has a value."""
        if message.value:
            state.right = state.left
        return []


@pytest.mark.parametrize("split", [None, 5, 10])
@pytest.mark.parametrize("at", range(1, 10))
def test_of_a_large_state_one_object_in_two_places_is_found_too(
    at: int, split: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch by itself examines only some of its states."""
    monkeypatch.setattr(codec, "EXAMINED_FIRST", 0)
    stream = Stream(name="pairs", topics=Topics(pattern="pairs"), transform=ShareList(), integrity=NoIntegrity())
    with pytest.raises(StateNotOfItsType, match=r"state\.left and state\.right are one list"):
        run(stream, *(Measured(seq, int(seq == at)) for seq in range(10)), key="p", split=split)


class Timed(KeepHistory):
    """A transform with a timer that stores a number which no state can hold."""

    def deadline(self, state: History) -> int | None:
        """Return the time one second after the first message."""
        return None if len(state.times) > 1 else 2_000_000

    def on_timer(self, state: History, deadline_us: int) -> list[Seen]:
        """Store the number."""
        state.values[0] = LARGE
        state.times.append(None)
        return []


def test_a_timer_to_blame_stops_the_stream_under_every_class() -> None:
    stream = dataclasses.replace(
        histories(FuzzyWindow(lateness=timedelta(seconds=1), session_start=FIRST)), transform=Timed()
    )
    ran = run(stream, Measured(1), Measured(9), Measured(10), key="p", split=3)
    assert ran.finding is not None
    assert (ran.finding.cause, ran.finding.offset, ran.finding.session) == ("state not storable", 1, "p")
