"""Time until retention removes what is not committed yet: from figures alone."""

from __future__ import annotations

from lockstep.engine.driver.alarms import compute_headroom_seconds
from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
KEY = ("id-a", 0)


def view(retention_ms: int | None, high_watermark: int = 10) -> ClusterView:
    topic = Topic(name="a", topic_id="id-a", partitions=1, deletes_only=True, retention_ms=retention_ms)
    return ClusterView(
        cluster_id="c", topics={"a": topic}, ends={KEY: PartitionOffsets(0, high_watermark, high_watermark)}
    )


def test_a_partition_that_is_all_read_has_its_whole_retention_however_old_its_messages_are() -> None:
    assert compute_headroom_seconds({KEY: 10}, {KEY: 0}, view(12 * HOUR_MS), NOW_MS) == 12 * 3600


def test_unread_messages_are_taken_to_be_as_old_as_the_newest_committed_one() -> None:
    newest = {KEY: NOW_MS - 5 * HOUR_MS}
    assert compute_headroom_seconds({KEY: 9}, newest, view(12 * HOUR_MS), NOW_MS) == 7 * 3600


def test_what_retention_has_overtaken_is_negative() -> None:
    newest = {KEY: NOW_MS - 20 * HOUR_MS}
    assert compute_headroom_seconds({KEY: 9}, newest, view(12 * HOUR_MS), NOW_MS) == -8 * 3600


def test_the_partition_with_the_least_time_counts() -> None:
    both = view(12 * HOUR_MS)
    other = Topic(name="b", topic_id="id-b", partitions=1, deletes_only=True, retention_ms=HOUR_MS)
    both.topics["b"], both.ends["id-b", 0] = other, PartitionOffsets(0, 1, 1)
    assert compute_headroom_seconds({KEY: 10, ("id-b", 0): 1}, {}, both, NOW_MS) == 3600


def test_there_is_no_figure_without_a_limit_or_without_a_known_age() -> None:
    assert compute_headroom_seconds({KEY: 9}, {KEY: 0}, view(None), NOW_MS) is None
    assert compute_headroom_seconds({KEY: 9}, {}, view(HOUR_MS), NOW_MS) is None
    assert compute_headroom_seconds({}, {}, view(HOUR_MS), NOW_MS) is None
