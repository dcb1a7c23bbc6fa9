"""The audit names every difference between a log and the ledger, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.kafka.admin import ClusterView
from lockstep.kafka.audit import audit_positions, find_compacted, find_recreated_topics, need_epoch_check
from lockstep.model.finding import Finding
from lockstep.model.position import Position, TopicIdPartition
from tests.support.cluster_views import topic, view


def position(topic: str, partition: int, next_offset: int, leader_epoch: int | None = None) -> Position:
    """Return a position in a topic's first life."""
    return Position(
        topic=topic, topic_id=f"id-{topic}", partition=partition, next_offset=next_offset, leader_epoch=leader_epoch
    )


KNOWN = {TopicIdPartition("id-a", 0): position("a", 0, 50), TopicIdPartition("id-a", 1): position("a", 1, 70)}
HEALTHY = view(
    topic("a", "id-a", 2), ends={TopicIdPartition("id-a", 0): (0, 60, 60), TopicIdPartition("id-a", 1): (10, 70, 75)}
)


def finding(cause: str, partition: int, offset: int, until: int, expected: str, found: str, **more: str) -> Finding:
    return Finding(
        cause=cause,
        topic="a",
        topic_id="id-a",
        partition=partition,
        offset=offset,
        until=until,
        expected=expected,
        found=found,
        **more,
    )


def with_ends(partition: int, ends: tuple[int, int, int]) -> ClusterView:
    whole = {
        TopicIdPartition("id-a", 0): (0, 60, 60),
        TopicIdPartition("id-a", 1): (10, 70, 75),
        TopicIdPartition("id-a", partition): ends,
    }
    return view(topic("a", "id-a", 2), ends=whole)


def test_a_log_that_only_grew_is_in_order() -> None:
    assert audit_positions(KNOWN, HEALTHY) == ()


@pytest.mark.parametrize(
    ("ends", "case"),
    [
        ((50, 60, 60), "the log starts at the very position"),
        ((0, 50, 50), "the log ends at the very position"),
        ((50, 50, 50), "all was read and all has expired"),
        ((0, 40, 55), "open transactions hide what was read before"),
    ],
)
def test_a_log_at_its_bounds_is_in_order(ends: tuple[int, int, int], case: str) -> None:
    assert audit_positions(KNOWN, with_ends(0, ends)) == (), case


def test_messages_that_expired_unread_are_counted() -> None:
    expected = finding("expired unread", 0, 50, 57, "offset 50", "log start 57")
    assert audit_positions(KNOWN, with_ends(0, (57, 60, 60))) == (expected,)
    assert str(expected) == "expired unread at a/0 offset 50 to 56: expected offset 50, found log start 57"


def test_a_log_that_ends_before_the_position_was_truncated() -> None:
    expected = finding("log truncated", 1, 70, 70, "offset 70", "log end 69")
    assert audit_positions(KNOWN, with_ends(1, (0, 60, 69))) == (expected,)


def test_a_topic_that_is_not_there_is_gone() -> None:
    assert audit_positions(KNOWN, view(ends={})) == (
        finding("topic gone", 0, 50, 50, "topic id id-a", "no such topic"),
        finding("topic gone", 1, 70, 70, "topic id id-a", "no such topic"),
    )


def test_a_topic_with_another_id_was_recreated_whatever_its_offsets() -> None:
    again = view(
        topic("a", "id-b", 2),
        ends={TopicIdPartition("id-b", 0): (0, 60, 60), TopicIdPartition("id-b", 1): (10, 70, 75)},
    )
    assert audit_positions(KNOWN, again) == (
        finding("topic re-created", 0, 50, 50, "topic id id-a", "topic id id-b"),
        finding("topic re-created", 1, 70, 70, "topic id id-a", "topic id id-b"),
    )


def test_each_partition_that_a_topic_grew_by_is_named() -> None:
    grown = view(
        topic("a", "id-a", 4),
        ends={**ends_of(HEALTHY), TopicIdPartition("id-a", 2): (0, 0, 0), TopicIdPartition("id-a", 3): (0, 5, 5)},
    )
    detail = "sessions may have moved to another partition, where their order cannot be known"
    assert audit_positions(KNOWN, grown) == tuple(
        finding("partitions grew", partition, 0, 0, "2 partitions", "4 partitions", detail=detail)
        for partition in (2, 3)
    )


def test_a_partition_without_leader_is_unavailable_and_nothing_more() -> None:
    ends = ends_of(HEALTHY)
    del ends[TopicIdPartition("id-a", 1)]
    assert audit_positions(KNOWN, view(topic("a", "id-a", 2), ends=ends)) == ()


def test_a_topic_that_is_not_subscribed_is_none_of_the_audits_business() -> None:
    more = view(
        topic("a", "id-a", 2), topic("b", "id-b", 3), ends={**ends_of(HEALTHY), TopicIdPartition("id-b", 0): (7, 9, 9)}
    )
    assert audit_positions(KNOWN, more) == ()


def test_a_ledger_without_partitions_has_nothing_to_audit() -> None:
    assert audit_positions({}, HEALTHY) == ()


def test_findings_come_in_the_order_of_topic_and_partition() -> None:
    known = {
        TopicIdPartition("id-b", 0): position("b", 0, 5),
        TopicIdPartition("id-a", 1): position("a", 1, 70),
        TopicIdPartition("id-a", 0): position("a", 0, 50),
    }
    found = audit_positions(known, with_ends(0, (57, 60, 60)))
    assert [(each.topic, each.cause) for each in found] == [("a", "expired unread"), ("b", "topic gone")]


def test_compacted_topics_are_named() -> None:
    mixed = view(topic("b", "2", deletes_only=False), topic("a", "1", deletes_only=False), topic("c", "3"), ends={})
    assert find_compacted(mixed.topics) == ("a", "b")


def test_a_topic_of_another_life_was_replaced_and_so_was_one_that_is_gone() -> None:
    before = view(topic("a", "1"), topic("b", "2"), topic("c", "3"), ends={})
    after = {"a": topic("a", "1", partitions=2), "b": topic("b", "9"), "d": topic("d", "4")}
    assert find_recreated_topics(before, after) == ("b", "c")


def ends_of(cluster: ClusterView) -> dict[TopicIdPartition, tuple[int, int, int]]:
    return {key: msgspec.structs.astuple(ends) for key, ends in cluster.ends.items()}


KEY = TopicIdPartition("id-a", 0)
READ = position("a", 0, 50, 4)


def doubted(
    *, read: int | None = 4, now: int | None = 6, held: int | None = None, ends: tuple[int, int, int] = (0, 60, 60)
) -> dict[TopicIdPartition, Position]:
    """Return the positions to check by leader epoch: a partition read to offset 50, whose leader epoch may be new."""
    cluster = view(topic("a", "id-a"), ends={KEY: ends})
    cluster.ends[KEY] = msgspec.structs.replace(cluster.ends[KEY], leader_epoch=now)
    return need_epoch_check({KEY: position("a", 0, 50, read)}, cluster, {} if held is None else {KEY: held})


def test_a_log_whose_leader_has_changed_is_doubted_until_it_was_seen_to_hold_what_was_read() -> None:
    assert (doubted(), doubted(held=6)) == ({KEY: READ}, {})
    assert doubted(held=5) == {KEY: READ}, "that was another leader again"
    assert doubted(now=3) == {KEY: READ}, "an older leader is none of this log's life"


def test_a_log_of_the_same_leader_or_of_an_unknown_one_is_not() -> None:
    assert [doubted(now=4), doubted(read=None), doubted(now=None)] == [{}, {}, {}]


@pytest.mark.parametrize("ends", [(50, 60, 60), (0, 50, 50), (0, 40, 50)], ids=["start", "end", "unstable end"])
def test_a_log_that_begins_or_ends_exactly_where_was_read_is_doubted(ends: tuple[int, int, int]) -> None:
    assert doubted(ends=ends) == {KEY: READ}


@pytest.mark.parametrize("ends", [(51, 60, 60), (0, 49, 49)], ids=["expired", "shorter"])
def test_nor_is_one_whose_offsets_alone_say_what_it_lacks(ends: tuple[int, int, int]) -> None:
    assert doubted(ends=ends) == {}


def test_a_log_that_was_cut_and_has_grown_again_was_truncated() -> None:
    cut = msgspec.structs.replace(HEALTHY, cut=frozenset({TopicIdPartition("id-a", 1)}))
    found = "other records: the log was cut and has grown again"
    assert audit_positions(KNOWN, cut) == (finding("log truncated", 1, 70, 70, "offset 70", found),)
