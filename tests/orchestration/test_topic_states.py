"""What is shown of a topic, and when it is looked at again: from figures alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep.kafka.discovery import ClusterView, Ends, Topic
from lockstep.orchestration.topic_states import (
    AGAIN_SECONDS,
    IDLE_SECONDS,
    SWEEP_SECONDS,
    TOPICS_A_LOOK,
    Life,
    Sweep,
    TopicState,
    due,
    topic_state,
)

NOW = 1_000_000_000.0
WEEK = timedelta(days=7)
TOPIC = Topic(name="books.a", topic_id="id-a", partitions=2, deletes_only=True)
ENDS = {("id-a", 0): Ends(start=0, stable_end=10, high_watermark=10), ("id-a", 1): Ends(5, 7, 7)}
VIEW = ClusterView(cluster_id="c", topics={"books.a": TOPIC}, ends=ENDS)
MANY = [f"books.{number:03}" for number in range(25)]


def state(read: dict[tuple[str, int], int], silent_seconds: float | None) -> TopicState:
    newest = {} if silent_seconds is None else {("books.a", 0): int((NOW - silent_seconds) * 1000)}
    return topic_state(TOPIC, VIEW, read, newest, WEEK, NOW)


def test_a_topic_that_is_not_read_yet_is_new_and_all_that_it_keeps_is_lag() -> None:
    seen = state({}, 1.0)
    assert (seen.life, seen.partitions, seen.messages, seen.lag_messages) == (Life.NEW, 2, 17, 12)


def test_messages_that_wait_make_a_topic_active_however_old_they_are() -> None:
    seen = state({("id-a", 0): 8, ("id-a", 1): 7}, WEEK.total_seconds() * 2)
    assert (seen.life, seen.lag_messages) == (Life.ACTIVE, 2)


@pytest.mark.parametrize(
    ("silent_seconds", "life"),
    [
        (IDLE_SECONDS - 1, Life.ACTIVE),
        (IDLE_SECONDS, Life.IDLE),
        (WEEK.total_seconds() - 1, Life.IDLE),
        (WEEK.total_seconds(), Life.DRAINED),
        (None, Life.IDLE),
    ],
)
def test_a_topic_that_is_all_read_shows_how_long_it_was_silent(silent_seconds: float | None, life: Life) -> None:
    assert state({("id-a", 0): 10, ("id-a", 1): 7}, silent_seconds).life is life


def test_new_topics_are_looked_at_at_once_and_a_round_goes_on_where_it_was() -> None:
    sweep = Sweep(ended_at=NOW, after="books.003")
    assert due(MANY, MANY[1:], sweep, NOW) == (["books.000"], sweep)


def test_a_new_topic_is_looked_at_again_after_a_minute() -> None:
    topics, sweep = due(["a", "b"], ["a"], Sweep(ended_at=NOW), NOW)
    assert topics == ["b"]
    assert due(["a", "b"], ["a", "b"], sweep, NOW + AGAIN_SECONDS - 1)[0] == []
    assert due(["a", "b"], ["a", "b"], sweep, NOW + AGAIN_SECONDS)[0] == ["a", "b"]


def test_a_round_takes_a_few_topics_a_look_and_then_rests() -> None:
    looked, sweep = [], Sweep()
    for tick in range(3):
        topics, sweep = due(MANY, MANY, sweep, NOW + tick)
        assert len(topics) <= TOPICS_A_LOOK
        looked += topics
    assert looked == MANY
    assert due(MANY, MANY, sweep, NOW + 2 + SWEEP_SECONDS - 1) == ([], sweep)
    assert due(MANY, MANY, sweep, NOW + 2 + SWEEP_SECONDS)[0] == MANY[:TOPICS_A_LOOK]


def test_a_clock_that_was_set_back_does_not_stop_the_rounds() -> None:
    assert due(["a"], ["a"], Sweep(ended_at=NOW), NOW - 3600) == (["a"], Sweep(ended_at=NOW - 3600))
