"""A link to Kafka that is cut for a minute, or slow: the stream continues and loses nothing."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from lockstep import AvailableNow, Limits
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import KafkaError
from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.processes import find_free_ports
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import ClusterClient, OffsetAnswers, make_admin_client, make_reader_configuration
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.kafka.reader import explain_missing_offsets
from lockstep.model.position import TopicNamePartition
from lockstep.model.tuning import Tuning
from lockstep.settings import KafkaSettings
from tests.integration.engine.test_brokers import Going
from tests.integration.engine.test_missing_offsets import CLEANABLE, causes, compact, transactions
from tests.support.adding_stream import adding
from tests.support.feed import Feed, ProducerRecord, folded, send_within, session, snapshot, update
from tests.support.link import Link, open_link
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

CUT_SECONDS = 60.0
SESSIONS, UPDATES = 30, 500
"""About 600 KB of messages."""
LARGE_BYTES = 200_000


ABORTED = 200
ABORTED_BYTES = 100_000
MARKERS = 25


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Link]]:
    """A broker whose listener FAR is reached through a link only."""
    plain, port = find_free_ports(2)
    advertised = f"PLAINTEXT://127.0.0.1:{plain},FAR://127.0.0.1:{port}"
    with open_link(port) as link:
        folder = tmp_path_factory.mktemp("far")
        settings = {"advertised.listeners": advertised, "log.cleaner.backoff.ms": "200"}
        with Broker.start(folder, port=plain, listeners={"FAR": "PLAINTEXT"}, settings=settings) as broker:
            assert broker.bootstrap_servers == f"127.0.0.1:{plain}"
            link.target = int(broker.address("FAR").rpartition(":")[2])
            yield broker, link


def test_a_slow_link_makes_a_stream_slow_and_nothing_else(far: tuple[Broker, Link], tmp_path: Path) -> None:
    """The link has a delay of 0.1 s each way and 3 Mbit/s."""
    broker, link = far
    feed = Feed(broker.bootstrap_servers, "slow")
    values = session(UPDATES)
    sent = [(f"s{number}", value) for number in range(SESSIONS) for value in values]
    topic = feed.create("values")
    servers = f"127.0.0.1:{link.port}"
    feed.append(topic, [ProducerRecord(*each) for each in sent])
    runs = LocalRuns(adding(feed.pattern), servers, tmp_path, kafka=KafkaSettings(bootstrap_servers=servers))
    link.delay_seconds = 0.1
    link.bytes_per_second = 3e6 / 8
    began = time.monotonic()
    try:
        assert runs.run(trigger=AvailableNow()) is RunOutcome.ENDED
    finally:
        link.delay_seconds = 0.0
        link.bytes_per_second = None
    assert time.monotonic() - began > sum(len(value) for _, value in sent) / 3e6 * 8
    assert runs.rows(topic) == folded([(at, *each) for at, each in enumerate(sent)])


def test_a_link_that_takes_long_for_a_message_explains_holes_all_the_same(
    far: tuple[Broker, Link], tmp_path: Path
) -> None:
    """Each message takes a second; a reader with less patience would never pass the first marker."""
    broker, link = far
    feed = Feed(broker.bootstrap_servers, "large")
    large = {"x" * LARGE_BYTES: 1}
    topic = feed.create("values")
    servers = f"127.0.0.1:{link.port}"
    values = [snapshot(1, a=1), update(2, **large), update(3, **large)]
    producer = feed.transactional()
    for value in values:
        producer.begin_transaction()
        send_within(producer, topic, [value])
        feed.end_transaction(producer, topic)
    runs = LocalRuns(adding(feed.pattern), servers, tmp_path, kafka=KafkaSettings(bootstrap_servers=servers))
    link.bytes_per_second = LARGE_BYTES
    try:
        tuned = runs.tuned(straggler_seconds_max=0.5, patience_seconds=20.0, retry_seconds=0.1)
        assert tuned.run(trigger=AvailableNow()) is RunOutcome.ENDED
    finally:
        link.bytes_per_second = None
    assert runs.rows(topic) == folded([(2 * at, "s", value) for at, value in enumerate(values)])


def test_offsets_that_no_broker_gives_are_asked_for_again(
    far: tuple[Broker, Link], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reports a result whose offsets are -1001; the stream must not start there."""
    broker, link = far
    feed = Feed(broker.bootstrap_servers, "unanswered")
    values = session(4)
    silences = list[threading.Timer]()
    topic = feed.create("values")
    servers = f"127.0.0.1:{link.port}"
    ask = ClusterClient.request_offsets
    feed.send(topic, values)

    def ask_into_silence(client: ClusterClient, *question: Any) -> Future[OffsetAnswers]:
        if not silences:
            link.carries.clear()
            silences.append(threading.Timer(2.5, link.carries.set))
            silences[0].start()
        return ask(client, *question)

    monkeypatch.setattr(ClusterClient, "request_offsets", ask_into_silence)
    kafka = KafkaSettings(bootstrap_servers=servers, timeout_seconds=2.0)
    runs = LocalRuns(adding(feed.pattern), servers, tmp_path, kafka=kafka).tuned(retry_seconds=0.1)
    assert runs.run() is RunOutcome.ENDED
    assert silences
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(values)])


def test_offsets_by_time_that_no_broker_gives_are_no_end_of_a_log(far: tuple[Broker, Link]) -> None:
    """A stream that starts from a time would start at the log's end and skip all messages since that time."""
    broker, link = far
    feed = Feed(broker.bootstrap_servers, "untimed")
    topic = feed.create("values")
    feed.send(topic, session(1))
    admin = ClusterAdmin(make_admin_client(KafkaSettings(bootstrap_servers=f"127.0.0.1:{link.port}")), 60.0)
    assert admin.find_offsets_at([TopicNamePartition(topic, 0)], 0) == {TopicNamePartition(topic, 0): 0}
    link.carries.clear()
    try:
        with pytest.raises(KafkaError, match=rf"did not answer about the offsets by time of topic {topic}"):
            admin.within(0.5).find_offsets_at([TopicNamePartition(topic, 0)], 0)
    finally:
        link.carries.set()


def test_offsets_of_a_group_whose_coordinator_is_away_are_given_up_in_time(far: tuple[Broker, Link]) -> None:
    """Otherwise a commit waits for 45 s, and the end of a run waits for the commit."""
    broker, link = far
    topic = Feed(broker.bootstrap_servers, "uncoordinated").create("values")
    group = ConsumerGroup(KafkaSettings(bootstrap_servers=f"127.0.0.1:{link.port}", timeout_seconds=1.0), "far")
    link.carries.clear()
    began = time.monotonic()
    try:
        with pytest.raises(KafkaError, match="did not take offsets of group far"):
            group.publish({TopicNamePartition(topic, 0): 1})
    finally:
        link.carries.set()
    assert time.monotonic() - began < 40


@pytest.mark.slow
def test_a_link_that_carries_nothing_for_a_minute_is_waited_for(far: tuple[Broker, Link], tmp_path: Path) -> None:
    broker, link = far
    with Going((broker,), tmp_path, "cut", through=f"127.0.0.1:{link.port}") as going:
        link.carries.clear()
        try:
            for number in going.sent:
                going.send_next(number)
            time.sleep(CUT_SECONDS)
            assert not any(going.is_read(number) for number in going.sent)
        finally:
            link.carries.set()
        going.wait_until(lambda: all(going.is_read(number) for number in going.sent))
    going.assert_whole()


def test_an_aborted_transaction_that_takes_longer_than_the_patience_is_passed_over(
    far: tuple[Broker, Link], tmp_path: Path
) -> None:
    """The client reports nothing meanwhile; batches must not restart forever before the transaction."""
    broker, link = far
    feed = Feed(broker.bootstrap_servers, "aborted")
    servers = f"127.0.0.1:{link.port}"
    topic = feed.create("values")
    producer = feed.transactional()
    first = session(2)
    last = update(4, a=1)
    feed.send(topic, first)
    producer.begin_transaction()
    send_within(producer, topic, [bytes(ABORTED_BYTES)] * ABORTED)
    feed.end_transaction(producer, topic, commits=False)
    feed.send(topic, [last])
    runs = LocalRuns(adding(feed.pattern), servers, tmp_path, kafka=KafkaSettings(bootstrap_servers=servers))
    runs = runs.with_limits(Limits(batch_messages=ABORTED // 2))
    link.bytes_per_second = 2e6
    try:
        runs.tuned(straggler_seconds_max=0.5, silence_seconds_max=4.0, retry_seconds=0.1, patience_seconds=120.0).run()
    finally:
        link.bytes_per_second = None
    end = len(first) + ABORTED
    assert runs.rows(topic) == folded([*((at, "s", value) for at, value in enumerate(first)), (end + 1, "s", last)])
    offsets = [report.offsets for report in runs.reports if report.offsets]
    assert sum(offsets) == end + 2
    assert max(offsets) <= ABORTED // 2


def test_markers_that_take_longer_than_the_patience_are_explained(far: tuple[Broker, Link]) -> None:
    """Between compacted offsets each marker needs a fetch, 0.2 s here, and none has a message."""
    broker, link = far
    feed = Feed(broker.bootstrap_servers, "markers")
    servers = f"127.0.0.1:{link.port}"
    topic = feed.create("values", config=CLEANABLE)
    transactions(feed, topic, *([update(number, a=1)] for number in range(MARKERS)))
    for number in range(2):
        time.sleep(0.2)  # older than segment.ms: the next message starts a new segment
        feed.send(topic, [update(MARKERS + number, a=1)])
    compact(feed, topic, gone=2 * MARKERS - 2)
    configuration = make_reader_configuration(KafkaSettings(bootstrap_servers=servers))
    link.delay_seconds = 0.1
    try:
        tuning = Tuning(straggler_seconds_max=3.0, explain_attempts=1)
        found = explain_missing_offsets(configuration, topic, 0, [(0, 2 * MARKERS)], tuning)
    finally:
        link.delay_seconds = 0.0
    assert causes(found) == {at: "marker" if at % 2 else "unproven" for at in range(2 * MARKERS)}
