"""A stream on three brokers, each with every partition, while a broker is silent, killed or restarted."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from lockstep import Every
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev.broker import Broker
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import ClusterClient, make_reader_configuration
from lockstep.settings import KafkaSettings
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session, update
from tests.support.local_runs import QUICK, LocalRuns
from tests.support.plain_reader import named_files, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from confluent_kafka.admin._metadata import ClusterMetadata
    from confluent_kafka.admin._topic import TopicDescription

PARTITIONS = 6
WAIT_SECONDS_MAX = 90.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, ...]]:
    started = Broker.start_cluster(tmp_path_factory.mktemp("cluster"))
    yield started
    for broker in started:
        broker.kill()  # the last broker would wait for the others


def leaders(servers: str, topic: str) -> dict[int, int]:
    """Return the leading node of each partition, from 1; -1 without a leader."""
    metadata = AdminClient({"bootstrap.servers": servers, "log_level": 2}).list_topics(topic, timeout=90)
    return {number: partition.leader for number, partition in metadata.topics[topic].partitions.items()}


FETCHED = re.compile(r"/(?P<node>\d+): Fetch topic \S+ \[(?P<partition>\d+)\] at offset (?P<offset>\d+)")


class FetchLog:
    """The fetches in a client's log."""

    def __init__(self) -> None:
        self.fetches: list[re.Match[str]] = []

    def log(self, _level: int, form: str, *arguments: object) -> None:
        if found := FETCHED.search(form % arguments):
            self.fetches.append(found)


def find_nodes_read_from(going: Going) -> dict[int, int]:
    """Return the node from which a task fetches each partition, after its leader has named a replica."""
    log = FetchLog()
    settings = {**make_reader_configuration(going.runs.settings.kafka), "debug": "fetch", "log_level": 7}
    consumer = Consumer(settings, logger=log)
    consumer.assign([TopicPartition(going.topic, number, 0) for number in going.sent])
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while set(going.sent) - {int(each["partition"]) for each in log.fetches if int(each["offset"])}:
        assert time.monotonic() < deadline
        consumer.consume(100, 0.1)
    consumer.close()
    return {int(each["partition"]): int(each["node"]) for each in log.fetches}


class Going:
    """A continuous run over one topic with partitions on all brokers."""

    def __init__(
        self, brokers: tuple[Broker, ...], root: Path, family: str, through: str | None = None, rack: str = ""
    ) -> None:
        self.servers = ",".join(broker.bootstrap_servers for broker in brokers)
        self.feed = Feed(self.servers, family)
        self.topic = self.feed.create("spread", partitions=PARTITIONS)
        self.sent: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        options = {"client.rack": rack} if rack else {}
        kafka = KafkaSettings(bootstrap_servers=through or self.servers, options=options)
        self.runs = LocalRuns(adding(self.feed.pattern), self.servers, root, kafka=kafka, tuning=QUICK)
        self._stop, self._executor = threading.Event(), ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> Self:
        for number in self.sent:
            self.send(number, session(1))
        self._run = self._executor.submit(self.runs.run, trigger=Every(seconds=0.2), stop=self._stop)
        try:
            self.wait_until(lambda: all(self.is_read(number) for number in self.sent))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._executor.shutdown()

    def stop(self) -> RunOutcome:
        """End the run and return its outcome."""
        self._stop.set()
        return self._run.result(WAIT_SECONDS_MAX)

    def wait_until(self, condition: Callable[[], bool]) -> float:
        """Wait and return the seconds that it took; raise the run's error if it ends before."""
        began = time.monotonic()
        while not condition():
            assert not self._run.done(), self._run.result()
            assert time.monotonic() - began < WAIT_SECONDS_MAX
            time.sleep(0.1)
        return time.monotonic() - began

    def send(self, partition: int, values: list[bytes]) -> None:
        self.feed.send(self.topic, values, partition=partition)
        self.sent[partition] += values

    def send_next(self, partition: int) -> None:
        """Send the next update of the partition's session."""
        self.send(partition, [update(len(self.sent[partition]) + 1, a=1)])

    def is_read(self, partition: int) -> bool:
        """Return whether all messages sent to a partition are committed."""
        if not self.runs.reports or not named_files(self.runs.folders.ledger):
            return False
        rows = read_table(self.runs.folders.ledger).to_pylist()
        return max((row["until"] for row in rows if row["partition"] == partition), default=0) == len(
            self.sent[partition]
        )

    def assert_whole(self) -> None:
        """Assert after the run's end that every row exists once and in order, and that the proof confirms it."""
        assert self._run.result() is RunOutcome.STOPPED
        for number, values in self.sent.items():
            key = f"s{number}" if number else "s"
            assert self.runs.rows(self.topic, number) == folded([(at, key, value) for at, value in enumerate(values)])
        report = verify_stream(self.runs.stream, self.runs.folders, self.runs.settings.kafka)
        assert report.status is InvariantStatus.PROVEN


def test_a_silent_broker_holds_up_its_own_partitions_only(brokers: tuple[Broker, ...], tmp_path: Path) -> None:
    """A stopped broker keeps its connections open, so no client notices. The other partitions are still read."""
    with Going(brokers, tmp_path, "silent") as going:
        led = leaders(going.servers, going.topic)
        silent = brokers[led[0] - 1]
        others = [number for number, leader in led.items() if leader != led[0]]
        assert silent.pid is not None
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            for number in others:
                going.send_next(number)
            going.wait_until(lambda: all(going.is_read(number) for number in others))
            going.wait_until(lambda: led[0] not in leaders(_without(brokers, silent), going.topic).values())
            going.send_next(0)
            going.wait_until(lambda: going.is_read(0))
        finally:
            os.kill(silent.pid, signal.SIGCONT)
    going.assert_whole()


class CountingClient(ClusterClient):
    """A client that counts its requests for descriptions of topics, and keeps the controller that it asks."""

    described = 0
    controller = -1

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        metadata = super().list_topics(topic, timeout=timeout) if topic else super().list_topics(timeout=timeout)
        self.controller = metadata.controller_id
        return metadata

    def request_descriptions(
        self, names: Sequence[str], timeout_seconds: float
    ) -> Future[list[TopicDescription | KafkaError]]:
        self.described += 1
        return super().request_descriptions(names, timeout_seconds)


def test_a_silent_controller_is_asked_once(brokers: tuple[Broker, ...]) -> None:
    """Each request to it costs seconds, in which no batch is planned."""
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    topic = Feed(servers, "controller").create("values", partitions=PARTITIONS)
    client = CountingClient(KafkaSettings(bootstrap_servers=servers))
    admin = ClusterAdmin(client, timeout_seconds=15)
    admin.view([topic])  # as a run does: it connects to all leaders, and each answer names a controller to the client
    while client.controller != 1:
        client.list_topics(timeout=90)
    silent = brokers[0]
    assert silent.pid is not None
    client.described = 0
    os.kill(silent.pid, signal.SIGSTOP)
    try:
        assert set(admin.topics([topic])) == {topic}
    finally:
        os.kill(silent.pid, signal.SIGCONT)
    assert client.described <= 2


@pytest.mark.slow
def test_a_reader_of_followers_reads_on_when_its_broker_is_silent(brokers: tuple[Broker, ...], tmp_path: Path) -> None:
    """With `client.rack` all partitions are read from one broker, which is a follower for most of them."""
    with Going(brokers, tmp_path, "racked", rack="rack-1") as going:
        going.wait_until(lambda: find_nodes_read_from(going) == dict.fromkeys(going.sent, 1))  # once it is in sync
        silent = brokers[0]
        assert silent.pid is not None
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            going.wait_until(lambda: 1 not in leaders(_without(brokers, silent), going.topic).values())
            for number in going.sent:
                going.send_next(number)
            going.wait_until(lambda: all(going.is_read(number) for number in going.sent))
        finally:
            os.kill(silent.pid, signal.SIGCONT)
        for number in going.sent:
            going.send_next(number)
        going.wait_until(lambda: all(going.is_read(number) for number in going.sent))
    going.assert_whole()


@pytest.mark.slow
@pytest.mark.parametrize("rack", ["", "rack-2"])
def test_a_killed_broker_and_a_rolling_restart_lose_nothing(
    brokers: tuple[Broker, ...], tmp_path: Path, rack: str
) -> None:
    with Going(brokers, tmp_path, f"rolling{rack}", rack=rack) as going:
        for broker in brokers:
            broker.kill()
            for number in going.sent:
                going.send_next(number)
            going.wait_until(lambda: all(going.is_read(number) for number in going.sent))
            broker.restart()
            going.wait_until(lambda: -1 not in leaders(going.servers, going.topic).values())
    going.assert_whole()


@pytest.mark.slow
def test_a_run_that_starts_while_the_leader_of_all_is_silent_waits_for_the_next_one(
    brokers: tuple[Broker, ...], tmp_path: Path
) -> None:
    """Other brokers describe the topic without its offsets: an end of -1001 must not be used."""
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    feed = Feed(servers, "waiting")
    values = session(4)
    topic = feed.create("values")
    feed.send(topic, values[:2])
    silent = brokers[leaders(servers, topic)[0] - 1]
    runs = LocalRuns(adding(feed.pattern), servers, tmp_path)
    assert runs.run() is RunOutcome.ENDED
    feed.send(topic, values[2:])
    assert silent.pid is not None
    os.kill(silent.pid, signal.SIGSTOP)
    try:
        assert runs.run() is RunOutcome.ENDED
    finally:
        os.kill(silent.pid, signal.SIGCONT)
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(values)])


def _without(brokers: tuple[Broker, ...], broker: Broker) -> str:
    return ",".join(each.bootstrap_servers for each in brokers if each is not broker)
