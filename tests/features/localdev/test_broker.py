"""The broker of the rehearsal is a real Kafka: it keeps its messages and ends with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lockstep.errors import EnvironmentProblem
from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.processes import find_free_ports, is_free, start_child
from tests.support.feed import await_partitions

if TYPE_CHECKING:
    from pathlib import Path

ANSWER_SECONDS_MAX = 30


def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create_topic(broker: Broker, name: str) -> None:
    client = admin(broker)  # kept: a collected client cancels its requests
    client.create_topics([NewTopic(name, 1, 1)])[name].result(ANSWER_SECONDS_MAX)
    await_partitions(client, name, 1)


def topic_id(broker: Broker, name: str) -> str:
    client = admin(broker)
    described = client.describe_topics(TopicCollection([name]))[name].result(ANSWER_SECONDS_MAX)
    return str(described.topic_id)


def produce(broker: Broker, topic: str, value: bytes, **settings: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    if settings:
        producer.init_transactions(ANSWER_SECONDS_MAX)
        producer.begin_transaction()
    producer.produce(topic, value)
    if settings:
        producer.commit_transaction(ANSWER_SECONDS_MAX)
    assert producer.flush(ANSWER_SECONDS_MAX) == 0


def read(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, ANSWER_SECONDS_MAX)]
    finally:
        consumer.close()


def wait_until_gone(pid: int) -> None:
    """Wait until a process that is not a child has ended."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there")


def test_messages_come_back_also_through_a_group_and_a_transaction(broker: Broker, topic_family: str) -> None:
    create_topic(broker, topic_family)
    produce(broker, topic_family, b"plain")
    produce(broker, topic_family, b"committed", **{"transactional.id": topic_family})
    assert read(broker, topic_family, 2) == [b"plain", b"committed"]


def test_a_topic_that_nobody_created_is_not_created_by_reading(broker: Broker, topic_family: str) -> None:
    metadata = admin(broker).list_topics(topic_family, timeout=ANSWER_SECONDS_MAX)
    assert metadata.topics[topic_family].error is not None
    assert topic_family not in admin(broker).list_topics(timeout=ANSWER_SECONDS_MAX).topics


def test_the_address_is_written_for_other_processes(broker: Broker, tmp_path: Path) -> None:
    broker.write_address(tmp_path / "address")
    assert (tmp_path / "address").read_text() == f"{broker.bootstrap_servers}\n"
    assert [found.name for found in tmp_path.iterdir()] == ["address"]


def test_topics_keep_their_ids_and_messages_over_kill_and_restart(harmed_broker: Broker, topic_family: str) -> None:
    create_topic(harmed_broker, topic_family)
    produce(harmed_broker, topic_family, b"before")
    before = (harmed_broker.bootstrap_servers, topic_id(harmed_broker, topic_family))
    harmed_broker.kill()
    assert harmed_broker.pid is None
    harmed_broker.restart()
    assert (harmed_broker.bootstrap_servers, topic_id(harmed_broker, topic_family)) == before
    assert read(harmed_broker, topic_family, 1) == [b"before"]


@pytest.mark.slow
def test_a_broker_in_the_folder_of_an_earlier_one_has_its_topics_and_leaves_its_ports_free(tmp_path: Path) -> None:
    with Broker.start(tmp_path) as broker:
        create_topic(broker, "kept")
        produce(broker, "kept", b"before")
        before = topic_id(broker, "kept")
    assert broker.ports.are_free
    with Broker.start(tmp_path) as again:
        assert topic_id(again, "kept") == before
        assert read(again, "kept", 1) == [b"before"]


def test_a_broker_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"(?s)did not start.*log\.retention\.ms") as raised:
        Broker.start(tmp_path, settings={"log.retention.ms": "for ever"})
    assert raised.value.next_step == f"read {tmp_path / 'broker.log'}"


def test_a_tied_process_dies_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner_code = f"""
import pathlib, time
from lockstep.features.localdev.processes import start_child
folder = pathlib.Path({str(tmp_path)!r})
child = start_child(["sleep", "600"], folder=folder, log=folder / "log")
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    wait_until_gone(child)


def test_a_tied_process_writes_to_its_log(tmp_path: Path) -> None:
    process = start_child(["echo", "hello"], folder=tmp_path, log=tmp_path / "log")
    assert process.wait(ANSWER_SECONDS_MAX) == 0
    assert (tmp_path / "log").read_text() == "hello\n"


def test_free_ports_are_different_and_free() -> None:
    ports = find_free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)
