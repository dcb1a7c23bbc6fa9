"""A range ends when its quarantine is full: after a whole message, with any effect on its session."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep import LogOnly, Strict, Suspend
from lockstep.declare.stream import AnyStream
from lockstep.engine.executor import rejects
from lockstep.engine.executor.rejects import KEPT_BYTES_MAX
from lockstep.table.quarantine import VALUE_BYTES_MAX
from lockstep.testing import SentMessage, Split, run
from lockstep.testing.script import InLog
from tests.support.adding_stream import POISON, Snapshot, Update, adding
from tests.support.limited_machine import run_batches

FILLING = KEPT_BYTES_MAX // VALUE_BYTES_MAX - 1
"""Messages of the largest stored size; one more fills the quarantine."""
STREAM = adding("testing", Strict(evidence=LogOnly(), on_violation=Suspend()))


def large(value: int) -> Update:
    """Return an update of the largest size that is stored whole."""
    return Update(0, {"x" * (VALUE_BYTES_MAX - 500): value})


def of(session: str, message: Snapshot | Update) -> SentMessage[Snapshot | Update]:
    return SentMessage(value=message, key=session)


def test_a_message_that_fills_the_quarantine_suspends_its_session_all_the_same() -> None:
    messages = [
        of("full", Snapshot(1, {"x": 0})),
        of("next", Snapshot(1, {"x": 0})),
        of("full", Update(2, {"x": POISON})),
        *[of("full", large(number)) for number in range(FILLING)],
        of("next", large(POISON)),
        of("next", Update(0, {"x": 7})),
        of("next", Snapshot(9, {"x": 1})),
        of("next", Update(10, {"x": 1})),
    ]
    result = run(STREAM, *messages, split=Split(None, crashes=False))
    failed = 3 + FILLING
    assert [each.offset for each in result.quarantine] == [*range(2, failed + 2)]
    assert [(row.offset, row.row.value) for row in result.proven] == [(failed + 3, 2)]


@given(
    counts=some.lists(some.integers(1, 12), min_size=1, max_size=5),
    of_range=some.integers(600, 5_000),
    of_task=some.integers(600, 9_000),
    run_messages=some.integers(1, 12),
)
def test_all_ranges_of_a_task_together_hold_a_bounded_number_of_rejected_messages(
    counts: list[int], of_range: int, of_task: int, run_messages: int
) -> None:
    """Simultaneous garbage in many partitions must not fill the memory of a worker."""
    logs = {f"t{n}": [InLog(at, b"s", b"{") for at in range(count)] for n, count in enumerate(counts)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rejects, "KEPT_BYTES_MAX", of_range)
        patch.setattr(rejects, "TASK_KEPT_BYTES_MAX", of_task)
        batches = run_batches(cast("AnyStream", STREAM), logs, run_messages=run_messages)
    assert all(item.next_offset == len(logs[item.topic]) for item in batches.positions.values())
    quarantined = [[item.counts.quarantined for item in result.ranges] for result in batches.results]
    assert sum(map(sum, quarantined)) == sum(counts)
    for of_ranges in quarantined:
        assert max(of_ranges) <= of_range // 503 + 1
        assert sum(of_ranges) <= of_task // 503 + len(of_ranges)
