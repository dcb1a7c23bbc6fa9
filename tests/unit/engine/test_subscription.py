"""Results become ledger rows and positions again: nothing is lost, and nothing is added."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from typing_extensions import override

from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.subscription import (
    TELLING_BYTES,
    TELLING_MESSAGES,
    Subscription,
    find_initial_positions,
    make_ledger_row,
)
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.task import run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, RangeResult, TaskResult, TaskSpec
from lockstep.errors import EnvironmentProblem
from lockstep.kafka.admin import ClusterView, PartitionOffsets
from lockstep.kafka.audit import audit_positions
from lockstep.kafka.reader import MessageRun, Range, UnreadableRange
from lockstep.kafka.topic_end import TopicEnd
from lockstep.model.fault import Fault
from lockstep.model.finding import Hole
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position, SegmentRef, TopicIdPartition
from lockstep.table.ledger import LedgerRow
from lockstep.table.parquet import DataFile
from lockstep.table.positions import RETIRED, LedgerStamp, make_unchanged_row, read_position
from lockstep.testing.script import InLog
from tests.support.adding_stream import adding
from tests.support.cluster_views import topic, view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from confluent_kafka import Message

    from lockstep import Stream

STAMP = LedgerStamp(
    generation=1,
    batch=7,
    epoch=3,
    committed_at=datetime(2026, 1, 1, 12, tzinfo=UTC),
    batch_seconds=0.5,
    restart_cause="first; asked for",
)
OLD_STATE = SegmentRef(file="old", start=1, length=2)
NEW_STATE = SegmentRef(file="new", start=30, length=40)
POSITION = Position(topic="a", topic_id="id-a", partition=1, next_offset=50, leader_epoch=4, state=OLD_STATE)
ENDS = PartitionOffsets(start=0, stable_end=70, high_watermark=75)
NOTHING = view(ends={})
FACTS = RangeResult(
    range=PlannedRange(POSITION, 64),
    reached=msgspec.structs.replace(POSITION, next_offset=60, leader_epoch=5, state=NEW_STATE, suspended_from=57),
    counts=MessageCounts(
        messages=9, with_rows=3, accepted_without_row=2, skipped=1, dropped=2, quarantined=1, repeats=1, gaps=3
    ),
    rows=11,
    holes=(Hole(start=53, until=54, cause="marker"),),
    first_event_time_us=1_700_000_000_000_000,
    last_event_time_us=1_700_000_001_000_000,
    newest_timestamp_ms=1_700_000_002_500,
    state_bytes=40,
    cpu_seconds=0.01,
)


def test_offsets_that_expired_before_and_after_a_batch_that_was_not_committed_are_all_in_the_ledger() -> None:
    def seen(start: int) -> ClusterView:
        return view(topic("a", "id-a"), ends={TopicIdPartition("id-a", 0): (start, 1_000, 1_000)})

    subscription = Subscription({}, seen(100), frozenset({"a"}))
    subscription.ledger_rows(STAMP, (), seen(100).ends, full=True)
    subscription.advance(())
    for start in (200, 250):
        for finding in audit_positions(subscription.known, seen(start)):
            subscription.accept(finding, seen(start), suspend=False)
    (row,) = subscription.ledger_rows(STAMP, (), seen(250).ends, full=subscription.is_unsaved)
    assert (row.start, row.until, row.holes) == (100, 250, [Hole(start=100, until=250, cause="expired")])


def test_messages_that_an_operator_has_given_up_stay_given_up_when_some_of_them_expire() -> None:
    given_up = msgspec.structs.replace(POSITION, partition=0, suspended_from=500)
    cluster = view(topic("a", "id-a"), ends={TopicIdPartition("id-a", 0): (300, 1_000, 1_000)})
    subscription = Subscription({given_up.key: make_unchanged_row(STAMP, given_up, ENDS)}, cluster, frozenset({"a"}))
    (finding,) = audit_positions(subscription.known, cluster)
    subscription.accept(finding, cluster, suspend=True)
    (position,) = subscription.positions.values()
    assert (position.next_offset, position.suspended_from) == (300, 500)


def test_offsets_of_a_log_that_is_gone_give_up_nothing_of_the_log_that_replaces_it() -> None:
    given_up = msgspec.structs.replace(POSITION, partition=0, suspended_from=500)
    cluster = view(topic("a", "id-a"), ends={TopicIdPartition("id-a", 0): (0, 20, 20)})
    subscription = Subscription({given_up.key: make_unchanged_row(STAMP, given_up, ENDS)}, cluster, frozenset({"a"}))
    (finding,) = audit_positions(subscription.known, cluster)
    subscription.accept(finding, cluster, suspend=True)
    (position,) = subscription.positions.values()
    assert (position.next_offset, position.suspended_from) == (50, 50)


def test_what_expired_of_a_topic_made_anew_before_it_was_seen_is_found_as_after_a_restart() -> None:
    """If it were read from the first offset that is left, the messages before it would be lost unnoticed."""
    before = topic("a", "id-1")
    after = topic("a", "id-2")
    subscription = Subscription({}, view(before, ends={TopicIdPartition("id-1", 0): (0, 9, 9)}), frozenset({"a"}))
    seen = view(after, ends={TopicIdPartition("id-2", 0): (3, 5, 5)})
    (made_anew,) = audit_positions(subscription.known, seen)
    subscription.accept(made_anew, seen, suspend=True)
    assert subscription.find_new_topics(seen) == [after]
    subscription.take_up(seen, {TopicIdPartition("id-2", 0): 0})
    assert [each.cause for each in audit_positions(subscription.known, seen)] == [Fault.EXPIRED]
    rows = subscription.ledger_rows(STAMP, (), seen.ends, full=True)
    told = {row.topic_id: (row.until, row.lifecycle, row.retired) for row in rows}
    assert told == {"id-1": (0, "re-created", True), "id-2": (0, "re-created", False)}


def test_a_deletion_is_told_of_a_partition_of_which_something_else_was_told_before() -> None:
    """Otherwise it would be subscribed until the end of the run, and its deletion in no ledger."""
    seen = view(topic("a", "id-1"), ends={TopicIdPartition("id-1", 0): (100, 1_000, 1_000)})
    stood = msgspec.structs.replace(POSITION, topic_id="id-1", partition=0)
    subscription = Subscription({stood.key: make_unchanged_row(STAMP, stood, ENDS)}, seen, frozenset({"a"}))
    (expired,) = audit_positions(subscription.known, seen)
    subscription.accept(expired, seen, suspend=False)
    for _ in range(2):  # Kafka hides the topic, shows it again, and has then deleted it
        (gone,) = audit_positions(subscription.known, NOTHING)
        assert subscription.is_news(gone, suspend=False)
        subscription.accept(gone, NOTHING, suspend=False)
        (row,) = subscription.ledger_rows(STAMP, (), {}, full=subscription.is_unsaved)
        assert (row.lifecycle, row.retired) == ("deleted", True)
        subscription.read_again(seen)
        assert not audit_positions(subscription.known, seen)


def test_a_topic_made_anew_that_is_deleted_before_it_has_a_leader_is_deleted() -> None:
    subscription = Subscription(
        {}, view(topic("a", "id-1"), ends={TopicIdPartition("id-1", 0): (0, 9, 9)}), frozenset({"a"})
    )
    leaderless = view(topic("a", "id-2"), ends={})
    (made_anew,) = audit_positions(subscription.known, leaderless)
    subscription.accept(made_anew, leaderless, suspend=False)
    assert subscription.positions.keys() == {TopicIdPartition("id-1", 0)}
    (gone,) = audit_positions(subscription.known, NOTHING)
    assert subscription.is_news(gone, suspend=False)
    subscription.accept(gone, NOTHING, suspend=False)
    assert not subscription.known


def test_a_run_keeps_no_measurements_of_a_retired_topic() -> None:
    """Otherwise a run of months would keep measurements of every topic that ever existed."""
    seen = view(
        topic("a", "id-a", 2), ends={TopicIdPartition("id-a", 0): (0, 75, 75), TopicIdPartition("id-a", 1): (0, 75, 75)}
    )
    subscription = Subscription({}, seen, frozenset())
    file = DataFile(path="f", size=TELLING_BYTES, rows=11, statistics="{}")
    large = msgspec.structs.replace(FACTS, counts=MessageCounts(messages=TELLING_MESSAGES))
    batch = BatchIdentity(generation=1, epoch=3, number=7, commit_hour="2026-01-01T12")
    subscription.remember(BatchPlan(batch=batch, bins=((FACTS.range,),), unavailable=(), backlog=0))
    subscription.advance([TaskResult(ranges=(large,), files=(file,), cpu_seconds=0.0)])
    learned = subscription.learned
    assert [*learned.seconds_a_message, *learned.bytes_a_message, *learned.bins_before] == [POSITION.key] * 3
    subscription.retire({"a"}, RETIRED, who="ann", why="done")
    learned = subscription.learned
    assert [*learned.seconds_a_message, *learned.bytes_a_message, *learned.bins_before] == []


def test_a_topic_made_anew_waits_until_all_its_partitions_have_a_leader() -> None:
    subscription = Subscription(
        {}, view(topic("a", "id-1"), ends={TopicIdPartition("id-1", 0): (0, 9, 9)}), frozenset({"a"})
    )
    partly = view(topic("a", "id-2", 2), ends={TopicIdPartition("id-2", 0): (0, 5, 5)})
    (made_anew,) = audit_positions(subscription.known, partly)
    subscription.accept(made_anew, partly, suspend=True)
    assert subscription.find_new_topics(partly) == []
    assert subscription.known.keys() == {TopicIdPartition("id-1", 0)}


def test_a_worked_range_becomes_its_ledger_row() -> None:
    assert make_ledger_row(STAMP, FACTS, ENDS) == LedgerRow(
        generation=1,
        batch=7,
        epoch=3,
        committed_at=datetime(2026, 1, 1, 12, tzinfo=UTC),
        topic_id="id-a",
        topic="a",
        partition=1,
        start=50,
        until=60,
        stable_end=70,
        high_watermark=75,
        messages=9,
        rows=11,
        accepted_without_row=2,
        skipped=1,
        repeats=1,
        gaps=3,
        dropped=2,
        quarantined=1,
        suspended_from=57,
        holes=[Hole(start=53, until=54, cause="marker")],
        leader_epoch=5,
        first_event_time=datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        last_event_time=datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC),
        newest_timestamp=datetime(2023, 11, 14, 22, 13, 22, 500_000, tzinfo=UTC),
        batch_seconds=0.5,
        cpu_seconds=0.01,
        state_file="new",
        state_start=30,
        state_length=40,
        state_bytes=40,
        restart_cause="first; asked for",
        with_rows=3,
    )


def test_messages_and_holes_of_a_ledger_row_add_up_to_its_range() -> None:
    row = make_ledger_row(STAMP, FACTS, ENDS)
    assert row.messages + sum(hole.until - hole.start for hole in row.holes) == row.until - row.start


def test_a_quiet_partition_stays_where_it_is_with_its_state() -> None:
    row = make_unchanged_row(STAMP, POSITION, None)
    assert (row.start, row.until, row.messages, row.rows, row.holes) == (50, 50, 0, 0, [])
    assert (row.state_file, row.state_start, row.state_length, row.state_bytes) == ("old", 1, 2, 0)
    assert (row.stable_end, row.high_watermark) == (-1, -1)
    assert row.leader_epoch == 4


def test_a_position_comes_back_from_its_ledger_row() -> None:
    assert read_position(make_unchanged_row(STAMP, POSITION, ENDS)) == POSITION
    stateless = msgspec.structs.replace(POSITION, state=None, leader_epoch=None)
    assert read_position(make_unchanged_row(STAMP, stateless, ENDS)) == stateless


def test_a_run_and_its_restart_from_the_ledger_stand_at_the_same_position() -> None:
    assert read_position(make_ledger_row(STAMP, FACTS, ENDS)) == FACTS.reached


class OnlyMarkers:
    """A log that has only control records."""

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun | UnreadableRange]:
        for index, wanted in enumerate(ranges):
            yield MessageRun(index, [], [(wanted.start, wanted.until)], wanted.until)

    def ahead(self, beyond: Range) -> Iterator[MessageRun | UnreadableRange]:
        return self.read([beyond])

    def readable_again(self, corrupt: Range) -> int | None:
        return corrupt.start

    def explain(self, planned: PlannedRange, gaps: Sequence[tuple[int, int]]) -> list[Hole]:
        del planned
        return [Hole(start, until, "marker") for start, until in gaps]


def job_in(folder: Path) -> JobSpec:
    return JobSpec(
        stream=b"",
        kafka={},
        table=folder / "table",
        quarantine=folder / "quarantine",
        late=folder / "late",
        archive=folder / "archive",
        state=folder / "state",
        local_root=folder / "hot",
    )


NUMBERS = (1, 2, 3, 4, None, 5, 9)
"""The numbers of a log's messages: offset 4 is a control record, and one number is wrong."""


def message_at(offset: int) -> Message:
    kind = b"update" if offset else b"snapshot"
    values = b'{"a":1}' if offset else b"{}"
    value = b'{"type":"%b","seq":%d,"values":%b}' % (kind, NUMBERS[offset] or 0, values)
    return cast("Message", InLog(offset, b"s", value))


@dataclass
class ReadTwice(OnlyMarkers):
    """A log whose second read differs from the first."""

    second: Sequence[MessageRun | UnreadableRange]
    is_second: bool = False

    @override
    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun | UnreadableRange]:
        if self.is_second:
            yield from self.second
        else:
            self.is_second = True
            (wanted,) = ranges
            messages = [message_at(at) for at in range(wanted.until) if at != 4]
            yield MessageRun(0, messages, [(4, 5)], wanted.until)


def read_twice(folder: Path, until: int, *second: MessageRun | UnreadableRange) -> RangeResult:
    position = Position(topic="a", topic_id="id-a", partition=0, next_offset=0)
    batch = BatchIdentity(generation=1, epoch=1, number=1, commit_hour="2026-01-01T12", planned_at_us=2 * 10**15)
    compiled = compile_stream(cast("Stream[object, object, msgspec.Struct]", adding("a")))
    task = TaskSpec(batch, (PlannedRange(position, until),))
    (found,) = run_bin(job_in(folder), task, compiled, ReadTwice(second)).ranges
    return found


def test_a_second_read_that_ends_early_leaves_the_rest_to_a_later_batch(tmp_path: Path) -> None:
    """The later part of the first read, a control record and a violation, does not belong to this batch."""
    whole = read_twice(tmp_path / "whole", 6)
    assert (whole.reached.next_offset, whole.holes) == (6, (Hole(4, 5, "marker"),))
    first = MessageRun(0, list(map(message_at, range(3))), [], 3)
    cut = read_twice(tmp_path / "cut", 7, first, UnreadableRange(0, "Kafka is silent"))
    assert (cut.reached.next_offset, cut.counts.messages) == (3, 3)
    assert (cut.holes, cut.finding, cut.trouble) == ((), None, "Kafka is silent")


def test_a_second_read_that_lacks_a_message_of_the_first_is_not_committed(tmp_path: Path) -> None:
    """Kafka compacted the message away meanwhile, and no cause for its absence was read."""
    less = MessageRun(0, list(map(message_at, range(4))), [(4, 6)], 6)
    with pytest.raises(EnvironmentProblem, match=r"a/0: offsets 0 to 5 held 4 messages, and 1 none"):
        read_twice(tmp_path, 7, less)


def test_a_range_without_messages_keeps_leader_epoch_and_state(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    before = msgspec.structs.replace(POSITION, state=None, suspended_from=7, catching_up=True)
    task = TaskSpec(
        BatchIdentity(generation=1, epoch=3, number=7, commit_hour="2026-01-01T12"),
        (PlannedRange(before, 64), PlannedRange(msgspec.structs.replace(before, partition=2), 50)),
    )
    compiled = compile_stream(cast("Stream[object, object, msgspec.Struct]", adding("a")))
    done = run_bin(job, task, compiled, OnlyMarkers())
    read, idle = (item.reached for item in done.ranges)
    assert read == msgspec.structs.replace(before, next_offset=64, catching_up=False)
    assert idle == msgspec.structs.replace(before, partition=2)
    row = make_ledger_row(STAMP, done.ranges[0], ENDS)
    assert (row.start, row.until, row.leader_epoch, row.newest_timestamp) == (50, 64, 4, None)


def test_an_event_time_that_no_calendar_holds_is_left_out() -> None:
    absurd = msgspec.structs.replace(FACTS, first_event_time_us=-(10**18), last_event_time_us=10**18)
    row = make_ledger_row(STAMP, absurd, ENDS)
    assert (row.first_event_time, row.last_event_time) == (None, None)


def test_known_partitions_go_on_and_new_topics_begin_at_their_first_offset() -> None:
    """Partition 0 of topic a is new to the ledger: the topic grew, which the audit reports to the class."""
    known = {
        TopicIdPartition("id-a", 1): make_unchanged_row(STAMP, POSITION, ENDS),
        TopicIdPartition("id-x", 0): make_unchanged_row(STAMP, POSITION, ENDS),
    }
    cluster = view(
        topic("a", "id-a", 2),
        topic("b", "id-b", deletes_only=False),
        ends={
            TopicIdPartition("id-a", 0): (0, 9, 9),
            TopicIdPartition("id-a", 1): (0, 70, 75),
            TopicIdPartition("id-b", 0): (17, 20, 20),
        },
    )
    found = find_initial_positions(known, cluster)
    assert {key: position.next_offset for key, position in found.items()} == {
        TopicIdPartition("id-a", 1): 50,
        TopicIdPartition("id-b", 0): 17,
    }
    assert found[TopicIdPartition("id-a", 1)] == msgspec.structs.replace(POSITION, is_only=False)


def test_a_known_partition_without_leader_stays_subscribed() -> None:
    known = {
        TopicIdPartition("id-a", 0): make_unchanged_row(STAMP, msgspec.structs.replace(POSITION, partition=0), ENDS)
    }
    assert find_initial_positions(known, view(topic("a", "id-a"), ends={})).keys() == {TopicIdPartition("id-a", 0)}


def test_a_new_topic_of_which_one_partition_has_no_leader_waits_for_a_later_run() -> None:
    """If it were read in part, it would seem to grow when the leader returns."""
    cluster = view(
        topic("a", "id-a", 2),
        topic("b", "id-b"),
        ends={TopicIdPartition("id-a", 0): (0, 5, 5), TopicIdPartition("id-b", 0): (0, 5, 5)},
    )
    assert find_initial_positions({}, cluster).keys() == {TopicIdPartition("id-b", 0)}


HOUR_MS = 3_600_000
RETAINED_12_HOURS = msgspec.structs.replace(topic("a", "id-a", 2), retention_ms=12 * HOUR_MS)


def subscribe(ends: PartitionOffsets) -> tuple[Subscription, ClusterView]:
    """Return a run that continues at offset 60 of a partition, whose newest committed message has the time of FACTS."""
    cluster = ClusterView(cluster_id="c", topics={"a": RETAINED_12_HOURS}, ends={TopicIdPartition("id-a", 1): ends})
    return Subscription(
        {TopicIdPartition("id-a", 1): make_ledger_row(STAMP, FACTS, ENDS)}, cluster, frozenset({"a"})
    ), cluster


def newest_plus(hours: int) -> int:
    """Return the time, in ms, so many hours after the newest message of FACTS."""
    return (FACTS.newest_timestamp_ms or 0) + hours * HOUR_MS


def test_the_lag_of_a_run_is_that_of_the_partitions_whose_end_is_known() -> None:
    partitions, cluster = subscribe(ENDS)
    assert partitions.lag_messages(cluster.ends) == 15
    assert partitions.lag_messages({TopicIdPartition("id-a", 2): ENDS}) == 0


def test_a_run_takes_unread_messages_to_be_as_old_as_the_newest_committed_one() -> None:
    partitions, cluster = subscribe(ENDS)
    assert partitions.headroom_seconds(cluster, newest_plus(hours=5)) == 7 * 3600


def test_each_batch_makes_the_newest_committed_message_newer() -> None:
    partitions, cluster = subscribe(ENDS)
    position = partitions.positions[TopicIdPartition("id-a", 1)]
    reached = msgspec.structs.replace(position, next_offset=70)
    later = msgspec.structs.replace(
        FACTS, range=PlannedRange(position, 70), reached=reached, newest_timestamp_ms=newest_plus(hours=4)
    )
    partitions.advance([TaskResult(ranges=(later,), files=(), cpu_seconds=0.0)])
    assert partitions.headroom_seconds(cluster, newest_plus(hours=5)) == 11 * 3600


def test_a_committed_message_that_kafka_has_deleted_says_nothing_of_those_after_it() -> None:
    partitions, cluster = subscribe(PartitionOffsets(start=60, stable_end=61, high_watermark=61))
    assert partitions.headroom_seconds(cluster, newest_plus(hours=24 * 30)) is None


def test_the_partition_with_the_least_headroom_counts() -> None:
    partitions, cluster = subscribe(ENDS)
    short = msgspec.structs.replace(topic("b", "id-b"), retention_ms=HOUR_MS)
    both = msgspec.structs.replace(
        cluster,
        topics=cluster.topics | {"b": short},
        ends=cluster.ends | {TopicIdPartition("id-b", 0): PartitionOffsets(start=5, stable_end=5, high_watermark=5)},
    )
    partitions.take_up(both, {})
    assert partitions.headroom_seconds(both, newest_plus(hours=5)) == 3600


def test_a_full_set_of_positions_keeps_the_time_of_the_newest_message_of_quiet_partitions() -> None:
    """Freshness and headroom survive quiet times, restarts and topics that are not read any more."""
    known = {
        TopicIdPartition("id-a", 1): make_ledger_row(STAMP, FACTS, ENDS),
        TopicIdPartition("id-x", 0): make_ledger_row(STAMP, FACTS, ENDS),
    }
    cluster = ClusterView(cluster_id="c", topics={"a": RETAINED_12_HOURS}, ends={TopicIdPartition("id-a", 1): ENDS})
    for _ in range(2):  # once more from its own rows
        rows = Subscription(known, cluster, frozenset({"a"})).ledger_rows(STAMP, (), {}, full=True)
        assert [row.newest_timestamp for row in rows] == [known[TopicIdPartition("id-a", 1)].newest_timestamp] * 2
        known = dict(zip(known, rows, strict=True))


def test_a_partition_that_never_had_a_message_has_no_time() -> None:
    known = {TopicIdPartition("id-a", 1): make_unchanged_row(STAMP, POSITION, ENDS)}
    cluster = ClusterView(cluster_id="c", topics={"a": RETAINED_12_HOURS}, ends={TopicIdPartition("id-a", 1): ENDS})
    (row,) = Subscription(known, cluster, frozenset({"a"})).ledger_rows(STAMP, (), {}, full=True)
    assert row.newest_timestamp is None


GONE_US = 1_700_000_100_000_000


AGAIN = view(
    topic("a", "id-b", 2), ends={TopicIdPartition("id-b", 0): (0, 0, 0), TopicIdPartition("id-b", 1): (0, 0, 0)}
)


@pytest.mark.parametrize("now", [NOTHING, AGAIN], ids=["deleted", "re-created"])
@pytest.mark.parametrize("loss", ["", "offsets 50 to 74 of partition 1 were not read"])
def test_the_end_of_a_topic_that_is_gone_stays_in_the_ledger(now: ClusterView, loss: str) -> None:
    """Every full set of positions has it, so status and history need not read the whole ledger."""
    end = TopicEnd(loss=loss, ends={0: 0, 1: 75}, age_seconds=4.5, noticed_us=GONE_US)
    known = {POSITION.key: make_unchanged_row(STAMP, POSITION, ENDS)}
    for _ in range(2):  # once more from its own rows, as a later run does
        subscription = Subscription(known, now, frozenset({"a"}))
        for finding in audit_positions(subscription.known, now):
            subscription.accept(finding, now, suspend=False, end=end)
        rows = subscription.ledger_rows(STAMP, (), {}, full=True)
        known = {POSITION.key: next(row for row in rows if row.topic_id == "id-a")}
        row = known[POSITION.key]
        assert (row.until, row.last_end, row.last_end_age_seconds, row.retired) == (50, 75, 4.5, True)
        assert row.ending == ("deleted" if now is NOTHING else "re-created")
        assert row.gone_since == datetime(2023, 11, 14, 22, 15, tzinfo=UTC)


def test_a_topic_that_comes_back_under_its_id_has_no_last_end() -> None:
    """Several answers of Kafka in a row were wrong."""
    seen = view(topic("a", "id-a", 2), ends={POSITION.key: (0, 75, 75)})
    subscription = Subscription({POSITION.key: make_unchanged_row(STAMP, POSITION, ENDS)}, NOTHING, frozenset({"a"}))
    (gone,) = audit_positions(subscription.known, NOTHING)
    end = TopicEnd(loss="", ends={1: 50}, age_seconds=4.5, noticed_us=GONE_US)
    subscription.accept(gone, NOTHING, suspend=False, end=end)
    subscription.read_again(seen)
    (row,) = subscription.ledger_rows(STAMP, (), {}, full=True)
    assert (row.ending, row.last_end, row.last_end_age_seconds) == (None, None, None)
    assert (row.gone_since, row.retired) == (None, False)
