"""The live feed on a real Kafka that is killed: the messages of each session are a prefix of the recording."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.feed import RETENTION_HOURS, feed
from lockstep.features.localdev.producer import count_produced
from lockstep.features.localdev.recordings import Recorded, RecordedKind
from lockstep.kafka.admin import read_topic_settings
from lockstep.kafka.client import make_admin_client
from lockstep.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

TOPIC = "s.a"
RECORDED = [
    Recorded(
        book="a",
        kind=RecordedKind.DIFFERENCE if number else RecordedKind.SNAPSHOT,
        value=b"%d" % number,
        received_ns=number,
    )
    for number in range(50)
]
DEADLINE_SECONDS = 120


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Broker]:
    with Broker.start(tmp_path / "kafka") as broker:
        yield broker


def wait_until_produced(broker: Broker, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while count_produced(broker.bootstrap_servers, TOPIC) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def read(broker: Broker) -> dict[bytes, list[tuple[bytes, int]]]:
    """Return values and timestamps of each session, ordered by offset."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "test"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    left = count_produced(broker.bootstrap_servers, TOPIC)
    while left:
        for message in consumer.consume(left, 5.0):
            key = message.key()
            value = message.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            found[key].append((value, message.timestamp()[1]))
            left -= 1
    consumer.close()
    return found


@pytest.mark.parametrize("away_seconds", [0.0, 59.0])
def test_sessions_stay_whole_when_kafka_dies_under_the_feed(kafka: Broker, away_seconds: float) -> None:
    """After 59 s, a client with a message timeout of a minute would drop its first messages and send the others."""
    began_ms = time.time() * 1000
    stop = threading.Event()
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    feeding = threading.Thread(target=feed, args=({TOPIC: RECORDED}, settings, 200.0, stop))
    feeding.start()
    try:
        wait_until_produced(kafka, 120)
        before = count_produced(kafka.bootstrap_servers, TOPIC)
        kafka.kill()
        stop.wait(away_seconds)
        kafka.restart()
        wait_until_produced(kafka, before + 200)
    finally:
        stop.set()
        feeding.join(DEADLINE_SECONDS)
    assert not feeding.is_alive()

    sessions = read(kafka)

    assert len(sessions) > 5
    for key, messages in sessions.items():
        assert [value for value, _ in messages] == [each.value for each in RECORDED[: len(messages)]], key
        assert all(began_ms - 1 <= when <= time.time() * 1000 for _, when in messages)
    (kept,) = read_topic_settings(make_admin_client(settings), [TOPIC], 15.0)
    assert kept.settings["retention.ms"] == str(int(RETENTION_HOURS * 3_600_000))
