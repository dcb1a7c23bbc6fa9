"""The leaders of a few new topics are requested before the first read: the client itself waits for a timer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from typing_extensions import override

from lockstep.kafka.client import METADATA_SECONDS, NEW_TOPICS_MAX, RangeConsumer, make_reader_configuration
from lockstep.kafka.reader import MessageRun, Range, read_ranges
from lockstep.model.tuning import Tuning
from lockstep.settings import KafkaSettings
from tests.support.feed import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.feed import Feed


PATIENT = Tuning(straggler_seconds_max=60)


class Requesting(RangeConsumer):
    """Records the topics whose leaders it requests."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(make_reader_configuration(KafkaSettings(bootstrap_servers=feed.bootstrap_servers)))
        self.requested: list[str] = []

    @override
    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        assert topic is not None
        assert 0 < timeout <= METADATA_SECONDS
        self.requested.append(topic)
        return super().list_topics(topic, timeout=timeout)


@pytest.fixture
def consumer(feed: Feed) -> Iterator[Requesting]:
    made = Requesting(feed)
    yield made
    made.close()


def read(consumer: RangeConsumer, ranges: list[Range]) -> dict[int, int]:
    """Read ranges and return the first unread offset of each."""
    reached = dict[int, int]()
    for run in read_ranges(consumer, ranges, PATIENT):
        assert isinstance(run, MessageRun), run
        reached[run.index] = run.reached
    return reached


def test_the_leader_of_a_topic_is_requested_before_its_first_read_only(feed: Feed, consumer: Requesting) -> None:
    topics = [feed.create(f"values{number}") for number in range(3)]
    for topic in topics:
        feed.send(topic, session(5))
    for known in (0, 1, 2, 2):
        ranges = [Range(topic, 0, 0, 6) for topic in topics[: known + 1]]
        assert read(consumer, ranges) == dict.fromkeys(range(known + 1), 6)
    assert consumer.requested == topics


def test_the_leader_of_a_topic_with_a_leader_epoch_is_left_to_the_client(feed: Feed, consumer: Requesting) -> None:
    """The client compares the epoch with the log only if it learns the leader afterwards; the log may have regrown."""
    topic = feed.create("values")
    feed.send(topic, session(5))
    assert read(consumer, [Range(topic, 0, 0, 6, leader_epoch=0)]) == {0: 6}
    assert consumer.requested == []


def test_many_new_topics_are_left_to_the_one_request_of_the_client(feed: Feed, consumer: Requesting) -> None:
    topics = [feed.create(f"values{number}") for number in range(NEW_TOPICS_MAX + 1)]
    for topic in topics:
        feed.send(topic, session(5))
    assert read(consumer, [Range(topic, 0, 0, 6) for topic in topics]) == dict.fromkeys(range(len(topics)), 6)
    assert consumer.requested == []


def test_a_request_without_an_answer_leaves_the_read_to_the_client(
    feed: Feed, consumer: Requesting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: RangeConsumer, topic: str | None = None, timeout: float = -1) -> None:
        del topic, timeout
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001  # the name of the client

    monkeypatch.setattr(RangeConsumer, "list_topics", refuse)
    topics = [feed.create(f"values{number}") for number in range(2)]
    for topic in topics:
        feed.send(topic, session(5))
    assert read(consumer, [Range(topic, 0, 0, 6) for topic in topics]) == {0: 6, 1: 6}
    assert len(consumer.requested) == 1  # the other topic would wait as long


def test_requests_past_their_time_leave_the_read_to_the_client(
    feed: Feed, consumer: Requesting, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [feed.create(f"values{number}") for number in range(2)]
    for topic in topics:
        feed.send(topic, session(5))
    monkeypatch.setattr("lockstep.kafka.client.METADATA_SECONDS", 1e-6)
    assert read(consumer, [Range(topic, 0, 0, 6) for topic in topics]) == {0: 6, 1: 6}
    assert len(consumer.requested) <= 1
