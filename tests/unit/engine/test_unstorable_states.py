"""A message after which the state cannot be stored is treated as one on which the transform raised."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from lockstep import FuzzyWindow, NoIntegrity, Once, Ordered, Sequence, SessionStart, Strict, Suspend
from lockstep.testing import RunResult, SentMessage, run
from tests.support.unstorable_stream import (
    AFTER_YEAR_9999,
    BEFORE_YEAR_1,
    LARGE,
    Measured,
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
