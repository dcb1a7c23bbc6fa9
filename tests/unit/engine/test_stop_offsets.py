"""The end of a bounded run, from positions, views of Kafka and a clock alone."""

from __future__ import annotations

import pytest

from lockstep.engine.driver.idle_partitions import Silence
from lockstep.engine.driver.stop_offsets import StopOffsets
from lockstep.errors import KafkaError
from lockstep.kafka.admin import ClusterView
from lockstep.model.position import Position, TopicIdPartition
from lockstep.model.tuning import Tuning
from tests.support.cluster_views import topic, view

TUNING = Tuning(patience_seconds=120.0)


def seen(*ends: int | None) -> ClusterView:
    """Return a topic with these last stable offsets, 1 below the high watermarks; None for a missing leader."""
    shown = {TopicIdPartition("id-t", number): (0, end, end + 1) for number, end in enumerate(ends) if end is not None}
    return view(topic("t", "id-t", len(ends)), ends=shown)


def at(*offsets: int) -> dict[TopicIdPartition, Position]:
    """Return positions by partition."""
    return {
        TopicIdPartition("id-t", number): Position(topic="t", topic_id="id-t", partition=number, next_offset=offset)
        for number, offset in enumerate(offsets)
    }


def bounded(*looks: ClusterView) -> StopOffsets:
    """Return the stop offsets of a bounded run after these views."""
    stops = StopOffsets("books", TUNING, is_bounded=True)
    for each in looks:
        stops.note(each)
    return stops


def is_reached(
    stops: StopOffsets, positions: dict[TopicIdPartition, Position], now_seen: ClusterView, now: float = 0.0
) -> bool:
    return stops.is_reached(positions, now_seen, {}, now)


def test_a_run_stops_where_each_log_ended_when_it_was_first_seen() -> None:
    stops = bounded(seen(5, None), seen(9, 7), seen(11, 12))
    assert stops.offsets == {TopicIdPartition("id-t", 0): 5, TopicIdPartition("id-t", 1): 7}
    assert not is_reached(stops, at(5, 6), seen(11, 12))
    assert not is_reached(stops, at(4, 7), seen(11, 12))
    assert is_reached(stops, at(5, 7), seen(11, 12))


def test_a_never_ending_run_has_no_stop_offsets() -> None:
    stops = StopOffsets("books", TUNING, is_bounded=False)
    stops.note(seen(5))
    assert stops.offsets == {}


def test_of_a_truncated_log_the_end_counts_and_what_is_lost_is_named_once_its_position_is_known() -> None:
    stops = bounded(seen(9, 9))
    assert not is_reached(stops, at(2, 9), seen(2, 9))  # its high watermark is 3
    assert is_reached(stops, at(3, 9), seen(2, 9))
    lost = "t/0: the log ends at offset 3 now, and at 9 before: unread messages are gone"
    assert list(stops.describe_lost(at(3, 9), seen(2, 9))) == [lost]
    assert list(stops.describe_lost({}, seen(2, 9))) == []
    assert list(stops.describe_lost(at(3, 9), seen(8, 9))) == []


def test_a_partition_without_a_leader_is_waited_for_in_one_piece_and_then_ends_the_run() -> None:
    stops = bounded(seen(5, 5, 5))
    assert not is_reached(stops, at(5, 4, 4), seen(5, None, None), 10.0)
    assert not is_reached(stops, at(5, 4, 4), seen(5, 5, 5), 100.0)  # both have a leader again
    assert not is_reached(stops, at(5, 4, 4), seen(5, None, 5), 129.0)
    assert not is_reached(stops, at(5, 4, 4), seen(5, None, 5), 249.0)
    with pytest.raises(KafkaError, match=r"t/1 has no leader that answers, nor have 1 more: .*") as failed:
        is_reached(stops, at(5, 4, 4), seen(5, None, None), 249.1)
    assert failed.value.next_step.endswith("lockstep run books --available-now")


def test_a_partition_without_a_leader_that_is_read_to_its_stop_offset_is_not_waited_for() -> None:
    assert is_reached(bounded(seen(5, 5)), at(5, 5), seen(5, None), 1_000.0)
    assert not is_reached(bounded(seen(5, None)), at(5, 0), seen(5, None))  # its stop offset is not known


def test_a_silent_partition_ends_the_run_only_where_messages_are_left_unread() -> None:
    stops = bounded(seen(5))
    silence = Silence(count=4, since=10.0, at=100.0, waited=30.0, place="t/0", trouble="mute")
    assert stops.is_reached(at(5), seen(5), {TopicIdPartition("id-t", 0): silence}, 140.0)
    with pytest.raises(KafkaError, match=r"t/0 gave no message for 130 s \(mute\)"):
        stops.is_reached(at(4), seen(5), {TopicIdPartition("id-t", 0): silence}, 140.0)
