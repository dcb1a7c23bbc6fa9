"""What becomes of a fold decides the bounds of the next one, until one is complete."""

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
    """A violation at an offset."""
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


@pytest.mark.parametrize("is_buffered", [True, False])
def test_messages_that_fail_are_left_out_until_they_are_too_many(*, is_buffered: bool) -> None:
    bounds = WHOLE
    for offset in range(10, 10 + REFUSED_MAX):
        bounds = narrow_bounds(bounds, MessageFailed(at(offset), is_buffered)) or WHOLE
    found = {offset: at(offset) for offset in range(10, 10 + REFUSED_MAX)}
    refused, buffered = ({}, found) if is_buffered else (found, {})
    without = Exclusions(killing=(7,), refused=refused, failed_buffered=buffered)
    assert bounds == FoldBounds(until=100, without=without)
    assert narrow_bounds(bounds, MessageFailed(at(50), is_buffered)) == FoldBounds(
        until=50, without=without, trouble=f"{REFUSED_MAX} messages that the transform cannot take"
    )


@pytest.mark.parametrize("outcome", [FoldStopped(at(100)), MessageFailed(at(100), False), MessageFailed(at(9), False)])  # noqa: FBT003  # its own field
def test_a_fold_that_does_not_repeat_the_one_before_is_a_bug(outcome: FoldOutcome) -> None:
    seen = replace(WHOLE, without=Exclusions(refused={9: at(9)}))
    with pytest.raises(AssertionError, match="not deterministic"):
        narrow_bounds(seen, outcome)
