"""The rest of a silent partition and the reports about it, from results and a clock alone."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.engine.driver.idle_partitions import SilentPartitions
from lockstep.engine.protocol import PlannedRange, RangeResult
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from lockstep.model.tuning import DEFAULT_TUNING

POSITION = Position(topic="t", topic_id="id", partition=0, next_offset=5)
SILENT = "nothing was heard"
REFUSED = "may not be read"


def read(until: int, trouble: str | None = None) -> list[RangeResult]:
    """Return the result of a range of this partition that ended before this offset."""
    result = RangeResult(
        range=PlannedRange(POSITION, 9),
        reached=msgspec.structs.replace(POSITION, next_offset=until),
        counts=MessageCounts(),
        rows=0,
        holes=(),
        first_event_time_us=None,
        last_event_time_us=None,
        newest_timestamp_ms=None,
        state_bytes=0,
        cpu_seconds=0.0,
        trouble=trouble,
    )
    return [result]


@pytest.mark.parametrize(("waited", "rest"), [(0.05, 2.0), (3.0, 30.0), (30.0, 300.0), (120.0, 300.0)])
def test_a_partition_rests_for_ten_times_as_long_as_it_was_waited_for(waited: float, rest: float) -> None:
    """After three errors within a second, a partition once rested for five minutes."""
    silent = SilentPartitions(DEFAULT_TUNING)
    for began in (0.0, 200.0, 400.0):
        assert silent.find_resting(began) == frozenset()
        silent.note(read(5, SILENT), began, began + waited)
    ended = 400.0 + waited
    assert silent.find_resting(ended + rest - 0.01) == {POSITION.key}
    assert silent.find_resting(ended + rest) == frozenset()


def test_what_is_new_is_said_once_and_what_is_read_ends_it() -> None:
    silent = SilentPartitions(DEFAULT_TUNING)
    assert silent.note(read(5, SILENT), 0.0, 1.0) == ["t/0: nothing was heard"]
    assert silent.note(read(5, SILENT), 1.0, 2.0) == []
    assert silent.note(read(5, REFUSED), 2.0, 3.0) == ["t/0: may not be read"]
    assert silent.find_lasting(120.0) == {}
    assert [each.trouble for each in silent.find_lasting(120.1).values()] == [REFUSED]
    assert silent.note(read(7, REFUSED), 3.0, 4.0) == []  # something was read
    assert silent.find_lasting(1_000.0) == {}
    assert silent.note(read(9), 4.0, 5.0) == []
