"""A stable end that stays while the log grows is reported, in time and not before; a moving end is not."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from lockstep import AvailableNow, Every, FileSize
from lockstep.engine.driver.log_warnings import (
    BlockedPartitions,
    LastStableOffsets,
    compute_stuck_patience_seconds,
    describe_hidden,
)
from lockstep.kafka.admin import ClusterView
from lockstep.kafka.open_transaction import OpenTransaction
from lockstep.model.position import TopicIdPartition
from lockstep.model.tuning import Tuning
from tests.support.cluster_views import topic, view

OPEN, GREW, CLOSED, FURTHER = (0, 3, 5), (0, 3, 9), (0, 9, 9), (0, 4, 9)
"""Log start, stable end and high watermark."""


def seen(ends: tuple[int, int, int] | None) -> ClusterView:
    other = {TopicIdPartition("id-a", 1): (0, 8, 8)}
    return view(topic("a", "id-a", 2), ends=other if ends is None else {TopicIdPartition("id-a", 0): ends, **other})


def stalls(*looks: tuple[float, tuple[int, int, int] | None]) -> tuple[OpenTransaction, ...]:
    """Return the stalls after these reads, each with its time and offsets, for a patience of a minute."""
    assert all(earlier < later for (earlier, _), (later, _) in pairwise(looks))
    ends = LastStableOffsets()
    for clock, each in looks:
        ends = ends.update(seen(each), clock)
    clock, each = looks[-1]
    return ends.stalls(seen(each), clock, 60.0)


def test_a_stable_end_that_stands_for_longer_than_the_patience_is_told_with_place_and_time() -> None:
    assert stalls((100.0, OPEN), (130.0, OPEN), (161.0, GREW)) == (OpenTransaction("a", 0, 3, 9, 61.0),)


def test_until_then_nothing_is_told() -> None:
    assert stalls((100.0, OPEN), (160.0, GREW)) == ()


def test_it_is_over_when_the_stable_end_moves_however_little() -> None:
    assert stalls((100.0, OPEN), (161.0, FURTHER)) == ()
    assert stalls((100.0, OPEN), (161.0, FURTHER), (222.0, FURTHER)) == (OpenTransaction("a", 0, 4, 9, 61.0),)


def test_a_transaction_that_ends_begins_the_time_anew() -> None:
    assert stalls((100.0, OPEN), (130.0, CLOSED), (170.0, (0, 9, 12)), (180.0, (0, 9, 12))) == ()


def test_a_partition_without_a_leader_keeps_its_time() -> None:
    assert stalls((100.0, OPEN), (150.0, None)) == ()
    assert stalls((100.0, OPEN), (150.0, None), (161.0, OPEN)) == (OpenTransaction("a", 0, 3, 5, 61.0),)


def test_a_partition_that_is_read_to_its_end_never_stalls() -> None:
    assert stalls((100.0, CLOSED), (1_000.0, CLOSED)) == ()


def test_patience_is_a_minute_and_three_triggers_at_least() -> None:
    assert compute_stuck_patience_seconds(Every(seconds=5), Tuning()) == 60.0
    assert compute_stuck_patience_seconds(Every(seconds=30), Tuning()) == 90.0
    assert compute_stuck_patience_seconds(AvailableNow(), Tuning()) == 60.0
    assert compute_stuck_patience_seconds(FileSize("128 MB", at_most=timedelta(hours=1)), Tuning()) == 60.0


def test_what_waits_behind_open_transactions_is_counted_with_the_worst_place_and_what_to_do() -> None:
    one = OpenTransaction("a", 0, 3, 5, 0.0)
    other = OpenTransaction("b", 1, 4, 9, 100.0)
    said = describe_hidden("books", (one,))
    assert said.startswith("2 offsets wait behind open transactions and are not read, 2 of them in a/0 from 3 on; when")
    assert "lockstep run books --available-now; for one that stays open: kafka-transactions.sh" in said
    assert describe_hidden("books", (one, other)).startswith(
        "7 offsets wait behind open transactions and are not read, 5 of them in b/1 from 4 on (2 partitions in all); "
    )


def test_a_stuck_transaction_is_warned_of_once_and_reported_while_it_lasts() -> None:
    blocked = BlockedPartitions(60.0)
    assert blocked.note(seen(OPEN), 100.0) == []
    warnings = blocked.note(seen(OPEN), 161.0)
    assert warnings == [f"{OpenTransaction('a', 0, 3, 5, 61.0)}; find it by: kafka-transactions.sh find-hanging"]
    assert blocked.note(seen(GREW), 170.0) == []
    assert blocked.stalls == (OpenTransaction("a", 0, 3, 9, 70.0),)
    blocked.note(seen(CLOSED), 180.0)
    assert len(blocked.stalls) == 0


def test_partitions_that_lose_their_leader_are_warned_of_once_for_each_loss() -> None:
    both = view(topic("a", "id-a", 2), ends={})
    blocked = BlockedPartitions(60.0)
    assert blocked.note(both, 1.0) == ["a/0 has no leader that answers, nor 1 more: its messages wait"]
    assert blocked.note(seen(None), 2.0) == []
    assert blocked.note(seen(CLOSED), 3.0) == []
    assert blocked.note(seen(None), 4.0) == ["a/0 has no leader that answers: its messages wait"]


def test_a_run_that_ends_finds_transactions_of_this_moment_too() -> None:
    blocked = BlockedPartitions(60.0)
    assert blocked.find_hidden(seen(OPEN), 100.0) == (OpenTransaction("a", 0, 3, 5, 0.0),)
    assert blocked.find_hidden(seen(CLOSED), 100.0) == ()
