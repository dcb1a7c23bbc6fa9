"""The first read of a topic waits for Kafka's answers, and for no timer of the client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lockstep.kafka.client import NEW_TOPICS_MAX, make_consumer, make_reader_configuration
from lockstep.kafka.reader import MessageRun, Range, read_ranges
from lockstep.settings import KafkaSettings
from tests.support.feed import session

if TYPE_CHECKING:
    from tests.support.feed import Feed

TICK_SECONDS = 1.0
"""A client that is kept asks for new topics at this interval."""


def test_a_client_that_is_kept_reads_a_new_topic_before_its_next_tick(feed: Feed) -> None:
    consumer = make_consumer(make_reader_configuration(KafkaSettings(bootstrap_servers=feed.bootstrap_servers)))
    took = list[float]()
    for number in range(4):
        topic = feed.create(f"values{number}")
        feed.send(topic, session(5))
        began = time.monotonic()
        (run,) = read_ranges(consumer, [Range(topic, 0, 0, 6)])
        took.append(time.monotonic() - began)
        assert isinstance(run, MessageRun)
        assert run.reached == 6
    consumer.close()
    assert min(took[1:]) < TICK_SECONDS / 2  # each waited for a tick, right after the one before


def test_many_new_topics_are_asked_for_by_one_request_of_the_client(feed: Feed) -> None:
    topics = [feed.create(f"values{number}") for number in range(NEW_TOPICS_MAX + 1)]
    for topic in topics:
        feed.send(topic, session(1))
    consumer = make_consumer(make_reader_configuration(KafkaSettings(bootstrap_servers=feed.bootstrap_servers)))
    runs = list(read_ranges(consumer, [Range(topic, 0, 0, 2) for topic in topics]))
    consumer.close()
    assert sorted(run.index for run in runs) == list(range(len(topics)))
