"""Lifecycle, lag, headroom and freshness, from figures alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from lockstep.kafka.admin import PartitionOffsets, Topic
from lockstep.kafka.progress import (
    IDLE_AFTER,
    TopicFacts,
    TopicLifecycle,
    compute_freshness_seconds,
    compute_headroom_seconds,
    compute_lag_messages,
    judge_lifecycle,
)

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
NOW = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT = timedelta(milliseconds=1)
INACTIVE_AFTER = timedelta(days=1)
READ = TopicFacts(
    read_ids=frozenset({"id-a"}),
    topic=Topic(name="a", topic_id="id-a", partitions=1, deletes_only=True),
    is_selected=True,
    lag_messages=0,
    newest_message=NOW,
    inactive_after=INACTIVE_AFTER,
)


@pytest.mark.parametrize(
    ("silence", "expected"),
    [
        (MOMENT, TopicLifecycle.ACTIVE),
        (IDLE_AFTER - MOMENT, TopicLifecycle.ACTIVE),
        (IDLE_AFTER, TopicLifecycle.IDLE),
        (INACTIVE_AFTER - MOMENT, TopicLifecycle.IDLE),
        (INACTIVE_AFTER, TopicLifecycle.DRAINED),
        (timedelta(days=10_000), TopicLifecycle.DRAINED),
    ],
)
def test_a_topic_that_is_read_to_its_end_is_active_then_idle_then_drained(
    silence: timedelta, expected: TopicLifecycle
) -> None:
    facts = msgspec.structs.replace(READ, newest_message=NOW - silence)
    assert judge_lifecycle(facts, NOW) is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (msgspec.structs.replace(READ, newest_message=None), TopicLifecycle.IDLE),
        (msgspec.structs.replace(READ, newest_message=None, lag_messages=1), TopicLifecycle.ACTIVE),
        (msgspec.structs.replace(READ, newest_message=NOW - INACTIVE_AFTER, lag_messages=1), TopicLifecycle.ACTIVE),
        (msgspec.structs.replace(READ, read_ids=frozenset()), TopicLifecycle.NEW),
        (msgspec.structs.replace(READ, topic=None), TopicLifecycle.DELETED),
        (msgspec.structs.replace(READ, read_ids=frozenset({"id-b"})), TopicLifecycle.RECREATED),
        (msgspec.structs.replace(READ, is_selected=False, lag_messages=1), TopicLifecycle.UNWANTED),
    ],
)
def test_the_state_of_a_topic_follows_from_ledger_and_cluster(facts: TopicFacts, expected: TopicLifecycle) -> None:
    assert judge_lifecycle(facts, NOW) is expected


def test_lag_counts_to_the_high_watermark_and_from_the_first_offset_before_the_first_read() -> None:
    ends = PartitionOffsets(start=10, stable_end=12, high_watermark=30)
    assert compute_lag_messages(None, ends) == 20
    assert compute_lag_messages(12, ends) == 18
    assert compute_lag_messages(4, ends) == 26  # offsets that expired unread are not accounted for yet
    assert compute_lag_messages(31, ends) == 0


def test_a_partition_without_lag_has_its_whole_retention_however_old_its_messages_are() -> None:
    assert compute_headroom_seconds(12 * HOUR_MS, 0, 0, NOW_MS) == 12 * 3600


def test_headroom_counts_from_the_oldest_unread_message_and_may_be_negative() -> None:
    assert compute_headroom_seconds(12 * HOUR_MS, 1, NOW_MS - 5 * HOUR_MS, NOW_MS) == 7 * 3600
    assert compute_headroom_seconds(12 * HOUR_MS, 1, NOW_MS - 20 * HOUR_MS, NOW_MS) == -8 * 3600


def test_there_is_no_headroom_without_a_limit_or_without_a_known_age() -> None:
    assert compute_headroom_seconds(None, 1, 0, NOW_MS) is None
    assert compute_headroom_seconds(HOUR_MS, 1, None, NOW_MS) is None


def test_freshness_is_the_age_of_the_newest_of_all_and_never_negative() -> None:
    assert compute_freshness_seconds([NOW_MS - 3_000, None, NOW_MS - 1_500], NOW_MS) == 1.5
    assert compute_freshness_seconds([NOW_MS + 1], NOW_MS) == 0
    assert compute_freshness_seconds([None], NOW_MS) is None
