"""A connection with numbers out of order, under every class: the refusal, the restored order, or the final levels."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import FuzzyWindow, NoIntegrity, Once, Ordered, Sequence, Strict
from lockstep.testing import Judgement, SentMessage, run
from tests.streams.dydx_books.plain_fold import fold, wrong
from tests.streams.dydx_books.recording import as_numbered, as_received
from tests.streams.dydx_books.streams import AsTheyCome, Books, LevelSet, books

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from lockstep.testing import RunResult
    from tests.streams.dydx_books.recording import Message

SECOND = timedelta(seconds=1)
REORDERING = FuzzyWindow(lateness=SECOND, reorder=True)
THAT_LET_IT_RUN = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=100),
    "ordered": Ordered(),
    "window": FuzzyWindow(lateness=SECOND),
    "reordering": REORDERING,
}
NUMBERED = [message.value for message in as_numbered()]
RIGHT = fold(NUMBERED, newest=True).levels
HELD_MAX = 15
"""21 to 31, then 19, 12, 13 and 14 wait for 11."""


def ran(
    integrity: IntegrityClass, transform: AsTheyCome | None = None, sent: tuple[Message, ...] = as_received()
) -> RunResult[Books, LevelSet]:
    values: list[SentMessage[object]] = [
        SentMessage(value=each.value, key=each.key, timestamp_ms=each.timestamp_ms) for each in sent
    ]
    return run(books("dydx", integrity, transform), *values)  # type: ignore[arg-type]  # bytes of any type


def test_strict_refuses_at_the_twelfth_message() -> None:
    finding = ran(Strict(evidence=Sequence())).finding
    assert finding is not None
    assert (finding.offset, finding.cause, finding.expected, finding.found) == (11, "gap", "11", "21, missing 11 to 20")


def test_strict_takes_them_as_a_good_producer_sends_them() -> None:
    found = ran(Strict(evidence=Sequence()), sent=as_numbered()).or_raise()
    assert rows_of(found) == [row[1:] for row in fold(NUMBERED, newest=True).rows]


def test_reordering_restores_the_numbers() -> None:
    found = ran(REORDERING).or_raise()
    assert rows_of(found) == [row[1:] for row in fold(NUMBERED, newest=True).rows]
    assert held_most(found) == HELD_MAX


@pytest.mark.parametrize("name", THAT_LET_IT_RUN)
def test_who_keeps_the_highest_offset_ends_right_under_every_class_that_lets_it_run(name: str) -> None:
    found = ran(THAT_LET_IT_RUN[name]).or_raise()
    assert levels_of(found) == RIGHT


@pytest.mark.parametrize("name", THAT_LET_IT_RUN)
def test_who_takes_levels_as_they_come_ends_with_three_wrong_ones(name: str) -> None:
    """Even in the order of numbers: the exchange numbers messages in another order than it changes its books."""
    found = ran(THAT_LET_IT_RUN[name], AsTheyCome()).or_raise()
    assert len(wrong(levels_of(found), RIGHT)) == 3


def test_ordered_drops_what_comes_late_and_counts_one_gap() -> None:
    """None of the ten late messages contains levels."""
    verdicts = ran(Ordered()).or_raise().verdicts
    assert [verdict.judgement for verdict in verdicts].count(Judgement.LATE) == 10
    assert [verdict.cause for verdict in verdicts].count("gap") == 1


def rows_of(found: RunResult[Books, LevelSet]) -> list[tuple[object, ...]]:
    return [(row.market, row.side, row.price, row.size, row.offset, row.before) for row in found.rows]


def levels_of(found: RunResult[Books, LevelSet]) -> dict[tuple[str, str, str], tuple[int, str]]:
    (state,) = found.states.values()
    return {key: (level.offset, level.size) for key, level in state.items()}


def held_most(found: RunResult[Books, LevelSet]) -> int:
    held = most = 0
    for verdict in found.verdicts:
        held += (verdict.judgement is Judgement.BUFFER) - len(verdict.before + verdict.after)
        most = max(most, held)
    return most
