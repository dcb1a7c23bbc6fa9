"""The outcome of a fold decides the bounds of the next fold, until a fold is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lockstep.engine.executor.outcome import BufferFull, FoldCompleted, FoldStopped, MessageFailed
from lockstep.engine.executor.rejects import Exclusions
from lockstep.engine.executor.task import REFUSED_MAX, FoldBounds, narrow_bounds
from lockstep.model.finding import Finding
from lockstep.model.position import Position

if TYPE_CHECKING:
    from lockstep.engine.executor.outcome import FoldOutcome

WHOLE = FoldBounds(until=100, without=Exclusions(killing=(7,)))


def at(offset: int) -> Finding:
    """Return a violation at an offset."""
    position = Position(topic="t", topic_id="id", partition=0, next_offset=0)
    return Finding.at(position, "transform raised", offset=offset, until=offset + 1)


@pytest.mark.parametrize("outcome", [FoldCompleted(), BufferFull(100)])
def test_a_fold_that_came_to_its_end_can_be_committed(outcome: FoldOutcome) -> None:
    assert narrow_bounds(WHOLE, outcome) is None


def test_the_next_fold_ends_before_a_violation() -> None:
    late = replace(WHOLE, trouble="Kafka does not answer")
    assert narrow_bounds(late, FoldStopped(at(50))) == replace(WHOLE, until=50, finding=at(50))


def test_a_range_ends_where_its_quarantine_is_full_and_not_at_a_violation_behind() -> None:
    narrower = narrow_bounds(replace(WHOLE, finding=at(100)), BufferFull(30))
    assert narrower is not None
    assert (narrower.until, narrower.finding) == (30, None)
    assert narrower.trouble == "quarantine or late table hold as much as one range may"


def refused_at(offset: int) -> MessageFailed:
    return MessageFailed(at(offset), offset, is_buffered=False)


def released_by(at_offset: int, offset: int) -> MessageFailed:
    """Return the failure of a buffered message while a later message is processed."""
    return MessageFailed(at(offset), at_offset, is_buffered=True)


def narrowed(bounds: FoldBounds, *outcomes: FoldOutcome) -> FoldBounds:
    for outcome in outcomes:
        narrower = narrow_bounds(bounds, outcome)
        assert narrower is not None
        bounds = narrower
    return bounds


FAILED = range(10, 10 + REFUSED_MAX)


def test_a_range_ends_before_a_message_that_fails_where_too_many_did() -> None:
    bounds = narrowed(WHOLE, *map(refused_at, FAILED))
    without = Exclusions(killing=(7,), refused={offset: at(offset) for offset in FAILED})
    assert bounds == FoldBounds(until=100, without=without)
    assert narrow_bounds(bounds, refused_at(50)) == FoldBounds(
        until=50, without=without, trouble=f"{REFUSED_MAX} messages that the transform cannot take"
    )


def test_a_range_ends_behind_a_message_that_releases_one_too_many_that_fail() -> None:
    """It may be the first message of its range and release any number, so the range cannot end before it."""
    bounds = narrowed(WHOLE, *(released_by(50, offset) for offset in FAILED))
    assert bounds.until == 100
    ended = narrowed(bounds, released_by(50, 40))
    assert (ended.until, ended.trouble) == (51, f"{REFUSED_MAX} messages that the transform cannot take")
    more = narrowed(ended, released_by(50, 41))
    assert more.until == 51
    assert more.without.failed_buffered.keys() == {*FAILED, 40, 41}


@pytest.mark.parametrize("outcome", [FoldStopped(at(30)), refused_at(30)])
def test_what_the_transform_refuses_before_a_release_comes_first(outcome: FoldOutcome) -> None:
    """The age of the released message does not matter."""
    assert outcome.offset < released_by(50, 3).offset


@pytest.mark.parametrize("outcome", [FoldStopped(at(100)), refused_at(100), refused_at(9)])
def test_a_fold_that_does_not_repeat_the_one_before_is_a_bug(outcome: FoldOutcome) -> None:
    seen = replace(WHOLE, without=Exclusions(refused={9: at(9)}))
    with pytest.raises(AssertionError, match="not deterministic"):
        narrow_bounds(seen, outcome)
