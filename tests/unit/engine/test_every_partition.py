"""Questions of a batch about every partition: the fast answer equals the plain answer, for any cluster."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.driver.log_warnings import LastStableOffsets
from lockstep.engine.driver.subscription import Subscription
from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.kafka.audit import audit_positions
from lockstep.model.fault import Fault
from lockstep.model.position import Position, TopicIdPartition

NAMES = ("a", "b", "c")
OFFSETS = st.integers(0, 4)
RETENTIONS = st.sampled_from([None, 0, 1, 60_000, 3_600_000])
NOW_MS = 10_000_000


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    """Draw topics, some with another id than their positions have, and offsets of some of their partitions."""
    topics = dict[str, Topic]()
    ends = dict[TopicIdPartition, PartitionOffsets]()
    for name in draw(st.sets(st.sampled_from(NAMES))):
        topic_id = draw(st.sampled_from([f"id-{name}", f"other-{name}"]))
        partitions = draw(st.integers(1, 3))
        topics[name] = Topic(name, topic_id, partitions, deletes_only=True, retention_ms=draw(RETENTIONS))
        for partition in range(partitions):
            if draw(st.integers(0, 4)):
                start, stable, high = sorted(draw(st.tuples(OFFSETS, OFFSETS, OFFSETS)))
                ends[TopicIdPartition(topic_id, partition)] = PartitionOffsets(start, stable, high, 0)
    cut = draw(st.sets(st.sampled_from(sorted(ends)))) if ends else set[TopicIdPartition]()
    return ClusterView("cluster", topics, ends, cut=frozenset(cut))


@st.composite
def positions(draw: st.DrawFn) -> dict[TopicIdPartition, Position]:
    """Draw positions of some partitions."""
    found = dict[TopicIdPartition, Position]()
    for name in NAMES:
        for partition in range(draw(st.integers(0, 3))):
            position = Position(
                topic=name,
                topic_id=f"id-{name}",
                partition=partition,
                next_offset=draw(OFFSETS),
                catching_up=draw(st.booleans()),
            )
            found[position.key] = position
    return found


def judge(position: Position, view: ClusterView) -> str | None:
    """Return the fault of a position, by one check after another."""
    topic = view.topics.get(position.topic)
    ends = view.ends.get(position.key)
    if topic is None:
        return Fault.TOPIC_DELETED
    if topic.topic_id != position.topic_id:
        return Fault.RECREATED
    if position.key in view.cut:
        return Fault.TRUNCATED
    if ends is None:
        return None
    if ends.start > position.next_offset:
        return Fault.EXPIRED
    is_short = ends.high_watermark < position.next_offset and not position.catching_up
    return Fault.TRUNCATED if is_short else None


@given(positions(), clusters())
def test_an_audit_finds_the_fault_of_each_position_and_each_new_partition(
    known: dict[TopicIdPartition, Position], view: ClusterView
) -> None:
    expected = {(key, fault) for key, position in known.items() if (fault := judge(position, view)) is not None}
    ids = {key.topic_id for key in known}
    for topic in view.topics.values():
        for partition in range(topic.partitions if topic.topic_id in ids else 0):
            key = TopicIdPartition(topic.topic_id, partition)
            expected |= set() if key in known else {(key, Fault.PARTITIONS_ADDED)}
    found = audit_positions(known, view)
    assert {(TopicIdPartition(each.topic_id, each.partition), each.cause) for each in found} == expected
    assert [each.topic for each in found] == sorted(each.topic for each in found)


@given(positions(), clusters(), st.dictionaries(st.sampled_from(NAMES), st.integers(1, NOW_MS)))
def test_headroom_is_the_least_of_all_partitions(
    known: dict[TopicIdPartition, Position], view: ClusterView, newest_ms: dict[str, int]
) -> None:
    run = Subscription({}, ClusterView("cluster", {}, {}), frozenset())
    run.positions = known
    run._newest_ms = {key: newest_ms[each.topic] for key, each in known.items() if each.topic in newest_ms}  # noqa: SLF001
    retentions = {topic.topic_id: topic.retention_ms for topic in view.topics.values()}
    expected = list[float]()
    for key, position in known.items():
        retention_ms = retentions.get(key.topic_id)
        ends = view.ends.get(key)
        if retention_ms is None or ends is None:
            continue
        newest = newest_ms.get(position.topic)
        if ends.high_watermark <= position.next_offset:
            expected.append(retention_ms / 1000)
        elif newest is not None and ends.start < position.next_offset:
            expected.append((retention_ms - max(0, NOW_MS - newest)) / 1000)
    assert run.headroom_seconds(view, NOW_MS) == min(expected, default=None)


@given(st.lists(clusters(), min_size=1, max_size=4))
def test_stalls_are_the_offsets_that_have_not_moved_below_the_high_watermark(views: list[ClusterView]) -> None:
    watched = LastStableOffsets()
    since = dict[TopicIdPartition, tuple[int, float]]()
    for clock, view in enumerate(views):
        watched = watched.update(view, float(clock))
        for key, ends in view.ends.items():
            if ends.stable_end == ends.high_watermark:
                since.pop(key, None)
            elif since.get(key, (-1, 0.0))[0] != ends.stable_end:
                since[key] = (ends.stable_end, float(clock))
        names = {topic.topic_id: topic.name for topic in view.topics.values()}
        stuck = [key for key, (_, at) in since.items() if clock - at > 1 and key in view.ends]
        expected = sorted((names[key.topic_id], key.partition, since[key][0], clock - since[key][1]) for key in stuck)
        found = watched.stalls(view, float(clock), 1.0)
        assert [(each.topic, each.partition, each.stable_end, each.seconds) for each in found] == expected


@given(clusters())
def test_partitions_without_an_answer_are_listed_by_topic(view: ClusterView) -> None:
    expected = list[tuple[str, int]]()
    for topic in sorted(view.topics.values(), key=lambda topic: topic.name):
        keys = [TopicIdPartition(topic.topic_id, partition) for partition in range(topic.partitions)]
        expected += [(topic.name, key.partition) for key in keys if key not in view.ends]
    assert list(view.unavailable) == expected
    assert msgspec.structs.replace(view, topics={}).unavailable == ()
