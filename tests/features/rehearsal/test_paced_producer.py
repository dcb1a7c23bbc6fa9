"""The pace of a load test's producer is steady over all partitions, even with few messages each."""

from __future__ import annotations

import pytest

from lockstep.features.rehearsal.message_copy import CopiedMessage
from lockstep.features.rehearsal.paced_producer import Lane, PartitionOrder, SendOrder, make_lanes

SECONDS = 60.0


def lanes_of(*counts: int) -> list[Lane]:
    message = (CopiedMessage(b"k", b"v"),)
    partitions = tuple(PartitionOrder("t", number, count, message) for number, count in enumerate(counts))
    return make_lanes(SendOrder("{}", SECONDS, renames_keys=False, partitions=partitions))


@pytest.mark.parametrize("counts", [(600,), (1,) * 60, (2,) * 120])
def test_partitions_take_turns(counts: tuple[int, ...]) -> None:
    lanes = lanes_of(*counts)
    for second in range(0, 61, 5):
        due = sum(lane.count_due(float(second)) for lane in lanes)
        assert due == pytest.approx(sum(counts) * second / SECONDS, abs=1)


@pytest.mark.parametrize("counts", [(90, 0, 7, 3), (0, 1), (13,) * 17])
def test_all_is_sent_in_time(counts: tuple[int, ...]) -> None:
    lanes = lanes_of(*counts)
    assert len(lanes) == sum(count > 0 for count in counts)
    assert sum(lane.count_due(SECONDS) for lane in lanes) == sum(counts)


def test_a_message_is_late_after_its_time_only() -> None:
    (lane,) = lanes_of(6)
    assert [lane.get_behind_seconds(passed) for passed in (0.0, 9.9, 10.0, 12.5)] == [0.0, 0.0, 0.0, 2.5]
    lane.sent = 6
    assert lane.get_behind_seconds(100.0) == 0.0
