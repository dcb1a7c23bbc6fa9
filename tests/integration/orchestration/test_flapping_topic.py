"""A topic is repeatedly deleted and re-created under a real daemon: only a few runs are requested.

The stream is `Ordered` (tests/support/ordered_books.py): a strict one halts once a topic that it reads is deleted.
"""

from __future__ import annotations

import math
import time

import pytest

from lockstep.control.handover import StopRequest
from lockstep.model.position import TopicIdPartition
from lockstep.operations.lifecycle import check_startable, set_running, stop_stream
from lockstep.operations.stream_handle import StreamHandle
from lockstep.orchestration.names import AUTOMATIC_TAG
from lockstep.orchestration.restart_policy import PAUSE_SECONDS
from lockstep.settings import KafkaSettings, Settings
from lockstep.verify.verify import verify_stream
from tests.support.feed import Feed, ProducerRecord
from tests.support.installation import Installation, messages, wait_until
from tests.support.ordered_books import STREAM

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

CODE_LOCATION = "tests.support.ordered_books"
"""For the fixture `installation`."""
TOPIC = "order_books.flapping"
FLAPS = 40
FLAPS_ONCE_READ = 10
MESSAGES = 5
THERE_SECONDS, GONE_SECONDS = 1.2, 0.6
"""The test takes two minutes on an idle machine, plus one or two for the start of the runs."""


def send(feed: Feed, first: int, until: int) -> None:
    feed.append(TOPIC, [ProducerRecord(each.book, each.value) for each in messages()[first:until]])


def create_again(feed: Feed, times: int) -> None:
    """Create the topic with its first messages `times` times; each topic except the last is deleted soon."""
    for number in range(times):
        if number:
            time.sleep(THERE_SECONDS)
            feed.delete(TOPIC)
            time.sleep(GONE_SECONDS)
        feed.create_again("flapping")
        send(feed, 0, MESSAGES)


def open_handle(installation: Installation) -> StreamHandle:
    kafka = KafkaSettings(bootstrap_servers=installation.bootstrap_servers)
    return StreamHandle(STREAM, Settings(kafka=kafka, table_root=installation.folder / "tables"))


def wait_until_read(installation: Installation, until: int) -> None:
    """Wait for a position in Kafka's current topic of this name."""
    topic_id = open_handle(installation).cluster.topics([TOPIC])[TOPIC].topic_id

    def is_read() -> bool:
        row = open_handle(installation).positions.get(TopicIdPartition(topic_id, 0))
        return row is not None and row.until == until

    wait_until(is_read, f"the topic that stays is read until {until}", 900)


def compute_requests_max(seconds: float) -> int:
    """Return how many runs are requested for a topic within a time: after 0, 1, 3, 7, ... pauses."""
    return 1 + int(math.log2(1 + seconds / PAUSE_SECONDS))


def test_it_costs_a_few_runs_and_is_read_once_it_stays(installation: Installation) -> None:
    feed = Feed(installation.bootstrap_servers, "order_books")
    installation.produce("first", 0, 50)
    assert installation.materialize(available_now=True).wait() == 0, installation.runs[-1].said()
    set_running(installation.folders, check_startable(installation.folders), "a test")
    with installation.daemon(served=True):
        wait_until(lambda: installation.writes(installation.epoch()), "the supervisor starts a run")
        epoch = installation.epoch()
        began = time.monotonic()
        create_again(feed, FLAPS)
        wait_until_read(installation, MESSAGES)
        feed.delete(TOPIC)
        create_again(feed, FLAPS_ONCE_READ)
        wait_until_read(installation, MESSAGES)
        requests_max = compute_requests_max(time.monotonic() - began)
        send(feed, MESSAGES, 2 * MESSAGES)
        installation.produce("first", 50, 100)
        wait_until_read(installation, 2 * MESSAGES)
        wait_until(lambda: installation.position("first") == 100, "the other topic is read on")
        assert installation.writes(installation.epoch())
        assert installation.epoch() - epoch <= requests_max
        stop_stream(installation.folders, StopRequest("enough", "a test"), patience_seconds=60)
    requested = [run.tags.get(AUTOMATIC_TAG, "") for run in installation.stream_runs()]
    assert 1 <= requested.count("topics sensor") <= requests_max
    assert requested.count("supervisor") == 1
    proof = verify_stream(STREAM, installation.folders, open_handle(installation).settings.kafka)
    assert (proof.status.value, proof.violations) == ("proven", ())
