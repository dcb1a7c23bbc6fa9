"""What the driver sees in a whole batch: a session in two partitions of its topic, a burst of refused messages."""

from __future__ import annotations

import msgspec
import pytest

from lockstep import Limits, NoIntegrity, Ordered, Sequence, Strict
from lockstep.engine.driver import batch_checks
from lockstep.engine.driver.batch_checks import SessionPartitions, find_quarantine_burst
from lockstep.engine.protocol import Counts, PlannedRange, RangeResult, TaskResult
from lockstep.integrity.base import IntegrityClass
from lockstep.model.finding import Finding
from lockstep.model.position import Position

STRICT = Strict(evidence=Sequence())
A, B = b"a" * 8, b"b" * 8


def worked(
    partition: int, *opened: bytes, closed: tuple[bytes, ...] = (), topic: str = "t", counts: Counts | None = None
) -> TaskResult:
    """The result of one range in which these sessions began, and these ended."""
    position = Position(topic=topic, topic_id=topic, partition=partition, next_offset=5, is_only=False)
    result = RangeResult(
        range=PlannedRange(position, 9),
        reached=msgspec.structs.replace(position, next_offset=9),
        counts=counts or Counts(),
        rows=0,
        holes=(),
        first_event_time_us=None,
        last_event_time_us=None,
        newest_timestamp_ms=None,
        state_bytes=0,
        cpu_seconds=0.0,
        opened=opened,
        closed=closed,
    )
    return TaskResult(ranges=(result,), files=(), cpu_seconds=0.0)


def moved(homes: SessionPartitions, *batch: TaskResult, integrity: IntegrityClass = STRICT) -> list[tuple[int, int]]:
    """Partition and offset of what is found."""
    found: tuple[Finding, ...] = homes.find_split_sessions(batch, integrity)
    return [(each.partition, each.offset) for each in found]


@pytest.mark.parametrize("integrity", [STRICT, Ordered()])
def test_a_session_that_begins_in_a_second_partition_is_found(integrity: IntegrityClass) -> None:
    homes = SessionPartitions()
    assert moved(homes, worked(0, A), worked(1, B), integrity=integrity) == []
    assert moved(homes, worked(1, A), integrity=integrity) == [(1, 5)]


def test_in_one_batch_as_well() -> None:
    assert moved(SessionPartitions(), worked(1, A), worked(0, A)) == [(1, 5)]


def test_a_session_that_ended_may_begin_elsewhere() -> None:
    homes = SessionPartitions()
    assert moved(homes, worked(0, A)) == []
    assert moved(homes, worked(0, closed=(A,))) == []
    assert moved(homes, worked(1, A)) == []


@pytest.mark.parametrize(("home", "other"), [(0, 1), (1, 0)])
def test_it_may_begin_elsewhere_in_the_batch_in_which_it_ended(home: int, other: int) -> None:
    homes = SessionPartitions()
    assert moved(homes, worked(home, A)) == []
    assert moved(homes, worked(home, closed=(A,)), worked(other, A)) == []
    assert moved(homes, worked(home, A)) == [(home, 5)]


def test_an_end_elsewhere_does_not_free_it() -> None:
    homes = SessionPartitions()
    assert moved(homes, worked(0, A)) == []
    assert moved(homes, worked(1, A, closed=(B,))) == [(1, 5)]


def test_the_same_name_in_two_topics_is_two_sessions() -> None:
    assert moved(SessionPartitions(), worked(0, A), worked(1, A, topic="other")) == []


def test_after_growth_sessions_may_move() -> None:
    homes = SessionPartitions()
    moved(homes, worked(0, A), worked(0, A, topic="other"))
    homes.forget("t")
    assert moved(homes, worked(1, A)) == []
    assert moved(homes, worked(1, A, topic="other")) == [(1, 5)]


def test_a_class_without_order_does_not_mind() -> None:
    homes = SessionPartitions()
    assert moved(homes, worked(0, A), integrity=NoIntegrity()) == []
    assert moved(homes, worked(1, A), integrity=NoIntegrity()) == []


def test_the_finding_says_where_the_session_is_at_home() -> None:
    homes = SessionPartitions()
    homes.find_split_sessions([worked(0, A)], STRICT)
    (found,) = homes.find_split_sessions([worked(1, A)], STRICT)
    assert found.cause == "session in two partitions"
    assert found.expected == "each session in one partition; one began in partition 0"
    assert msgspec.structs.asdict(found)["until"] == 9


def test_of_more_sessions_than_are_remembered_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_checks, "SESSIONS_MAX", 2)
    homes = SessionPartitions()
    moved(homes, worked(0, b"1", b"2", b"3"))
    assert moved(homes, worked(1, b"1")) == []
    assert moved(homes, worked(1, b"3")) == [(1, 5)]


BURST = Limits(quarantine_burst=10, quarantine_share=0.5)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([(9, 9)], None),  # fewer than the limit
        ([(20, 10)], None),  # not more than the share
        ([(19, 10)], (0, "10 of 19 messages")),
        ([(15, 4), (4, 6), (0, 0)], (1, "10 of 19 messages")),
    ],
)
def test_a_burst_is_more_than_a_number_and_a_share_of_a_batch_and_is_named_where_most_were_refused(
    counts: list[tuple[int, int]], found: tuple[int, str] | None
) -> None:
    each = enumerate(counts)
    batch = [worked(at, counts=Counts(messages=messages, refused=refused)) for at, (messages, refused) in each]
    burst = find_quarantine_burst(batch, BURST)
    assert (None if burst is None else (burst.partition, burst.found)) == found
