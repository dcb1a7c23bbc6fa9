"""Messages at the limits of Kafka: without a time, and larger than the client's default for answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

from lockstep import Ordered
from lockstep.engine.driver.loop import RunOutcome
from lockstep.kafka.admin import find_oldest_unread
from lockstep.kafka.client import make_reader_configuration
from lockstep.model.position import TopicNamePartition
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import ANSWER_SECONDS, ProducerRecord, folded, session, update
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

ANSWER_BYTES = 100_000_000
"""The client refuses larger answers by default; brokers take messages of up to 104,857,600 bytes."""


def test_a_message_without_a_time_says_nothing_of_freshness(feed: Feed, runs: LocalRuns) -> None:
    """A time of -1 would otherwise count as a freshness of 56 years."""
    topic = feed.create("values", config={"message.timestamp.before.max.ms": str(2**63 - 1)})
    feed.append(topic, [ProducerRecord("s", value, -1) for value in session(2)])
    assert runs.run() is RunOutcome.ENDED
    assert [report.freshness_seconds for report in runs.reports] == [None]
    assert [row["newest_timestamp"] for row in read_table(runs.folders.ledger).to_pylist()] == [None]
    assert (
        find_oldest_unread(
            make_reader_configuration(runs.settings.kafka), {TopicNamePartition(topic, 0): 0}, ANSWER_SECONDS
        )
        == {}
    )
    feed.send(topic, [update(4, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert (runs.reports[-1].freshness_seconds or -1) > 0
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_a_message_larger_than_the_answers_that_the_client_takes_by_default_is_read(
    feed: Feed, runs: LocalRuns
) -> None:
    """The message also exceeds the stream's limit: it is quarantined, and the next messages are read."""
    runs = runs.of(adding(feed.pattern, Ordered()))
    values = session(2)
    topic = feed.create("values", config={"max.message.bytes": str(ANSWER_BYTES + 4_000_000)})
    producer = Producer({"bootstrap.servers": feed.bootstrap_servers, "message.max.bytes": ANSWER_BYTES + 2_000_000})
    producer.produce(topic, bytes(ANSWER_BYTES + 1), "s", partition=0)
    assert producer.flush(ANSWER_SECONDS) == 0
    feed.send(topic, values)
    assert runs.tuned(patience_seconds=10.0, silence_seconds_max=3.0).run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(values, 1)])
    assert [row["offset"] for row in read_table(runs.folders.quarantine).to_pylist()] == [0]
