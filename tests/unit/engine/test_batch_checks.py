"""Checks of the driver over a whole batch: a session in two partitions of its topic, a burst of refused messages."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import FuzzyWindow, Halt, Limits, NoIntegrity, Once, Ordered, Sequence, Strict, Suspend
from lockstep.engine.driver import batch_checks
from lockstep.engine.driver.batch_checks import SessionPartitions, find_quarantine_burst, judge_finding
from lockstep.engine.protocol import PlannedRange, RangeResult, TaskResult
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.admin import PartitionOffsets
from lockstep.kafka.audit import explain_end
from lockstep.kafka.topic_end import EndSnapshot, GoneTopic, judge_topic_end
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from tests.support.cluster_views import topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.integrity.base import Policy

STRICT = Strict(evidence=Sequence())
A = b"a" * 8
B = b"b" * 8


POLICIES = (Halt(), Suspend(), Suspend(accept_loss=True))
COMPLETE = (
    lambda policy: Strict(evidence=Sequence(), on_violation=policy),
    lambda policy: Once(keep_ids=1_000, on_violation=policy),
)
TOLERANT = (
    lambda policy: Ordered(on_violation=policy),
    lambda policy: FuzzyWindow(lateness=timedelta(seconds=1), on_violation=policy),
    lambda policy: NoIntegrity(on_violation=policy),
)


@given(
    make=st.sampled_from((*COMPLETE, *TOLERANT)),
    policy=st.sampled_from(POLICIES),
    cause=st.sampled_from(sorted(Fault)),
    position=st.integers(0, 3),
    end=st.integers(0, 3),
    age=st.floats(0, 120),
    is_observed=st.booleans(),
)
def test_the_end_of_a_topic_is_no_fault_if_all_of_it_was_read_and_else_one_by_class_and_policy(  # one case
    make: Callable[[Policy], IntegrityClass],
    policy: Policy,
    cause: Fault,
    position: int,
    end: int,
    age: float,
    is_observed: bool,  # noqa: FBT001  # a case
) -> None:
    integrity = make(policy)
    stood = Position(topic="a", topic_id="id-a", partition=0, next_offset=position)
    look = EndSnapshot({0: PartitionOffsets(0, end, end)}, age_seconds=age, is_certain=True)
    gone = GoneTopic(topic("a", "id-a"), (look,), noticed_us=7) if is_observed else None
    ends = {"id-a": judge_topic_end(gone, {0: stood}, {}, 60.0)}
    finding = Finding.at(stood, cause)
    verdict = judge_finding(finding, ends, integrity)
    ended = cause in {Fault.TOPIC_DELETED, Fault.RECREATED}
    if ended and is_observed and position == end and age <= 60:
        assert verdict is Judgement.ACCEPT
        return
    assert verdict is integrity.judge(cause)
    if cause is Fault.TOPIC_DELETED:
        assert verdict is (Judgement.VIOLATION if make in COMPLETE else Judgement.GAP)
        shown = explain_end(finding, ends)
        assert (shown.offset, shown.until) == (position, max(position, end) if is_observed else position)
        assert ("were not read" in shown.detail) is (is_observed and end > position)


def worked(
    partition: int,
    *opened: bytes,
    closed: tuple[bytes, ...] = (),
    topic: str = "t",
    counts: MessageCounts | None = None,
) -> TaskResult:
    """Return the result of one range in which these sessions started or ended."""
    position = Position(topic=topic, topic_id=topic, partition=partition, next_offset=5, is_only=False)
    result = RangeResult(
        range=PlannedRange(position, 9),
        reached=msgspec.structs.replace(position, next_offset=9),
        counts=counts or MessageCounts(),
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
    """Return the partition and offset of each finding."""
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
    assert moved(homes, worked(1, A, closed=(A, B))) == [(1, 5)]


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
    assert found.expected == "each session in one partition; one started in partition 0"
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
    batch = [worked(at, counts=MessageCounts(messages=messages, refused=refused)) for at, (messages, refused) in each]
    burst = find_quarantine_burst(batch, BURST)
    assert (None if burst is None else (burst.partition, burst.found)) == found
