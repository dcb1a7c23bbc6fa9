"""A group's coordinator that never answers: publications and the ends of runs wait for the set time at most."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lockstep import Every
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import KafkaError
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicNamePartition
from lockstep.settings import KafkaSettings
from tests.support.adding_stream import adding
from tests.support.feed import Feed, session
from tests.support.local_runs import LocalRuns
from tests.support.older_broker import open_older_broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from tests.support.older_broker import CappingProxy

pytestmark = pytest.mark.broker

OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
TIMEOUT_SECONDS = 2.0
SLACK_SECONDS = 30.0
"""For a loaded machine; without a limit a commit waits for minutes."""
REPEATED_SECONDS_MAX = 60.0
"""A waiting client repeats its request within this time."""
Older = tuple["Broker", "CappingProxy", str]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Older]:
    with open_older_broker(tmp_path_factory.mktemp("silent"), caps={}) as started:
        yield started


@pytest.fixture(autouse=True)
def answers(older: Older) -> Iterator[None]:
    """Answer all requests again after each test."""
    yield
    older[1].unanswered = frozenset()


def make_settings(address: str) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=address, timeout_seconds=TIMEOUT_SECONDS)


def publish_at_last(group: ConsumerGroup, place: TopicNamePartition, offset: int = 2) -> None:
    """Publish an offset; an earlier publication may still wait for an answer to its first request."""
    deadline = time.monotonic() + REPEATED_SECONDS_MAX
    while True:
        try:
            group.publish({place: offset})
        except KafkaError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


ASKS = {
    "publish": lambda group, place: group.publish({place: 1}),
    "published": lambda group, place: group.published([place]),
}


@pytest.mark.parametrize(
    ("asks", "unanswered"),
    [
        ("publish", OFFSET_COMMIT),
        ("publish", FIND_COORDINATOR),
        ("published", OFFSET_FETCH),
        ("published", FIND_COORDINATOR),
    ],
)
def test_a_request_without_an_answer_ends(older: Older, asks: str, unanswered: int) -> None:
    broker, proxy, address = older
    topic = Feed(broker.bootstrap_servers, f"{asks}{unanswered}").create("values")
    group = ConsumerGroup(make_settings(address), "g")
    place = TopicNamePartition(topic, 0)
    publish_at_last(group, place, 0)
    proxy.unanswered = frozenset({unanswered})
    began = time.monotonic()
    with pytest.raises(KafkaError, match="group g") as silent:
        ASKS[asks](group, place)
    assert time.monotonic() - began < TIMEOUT_SECONDS + SLACK_SECONDS
    with pytest.raises(KafkaError) as again:  # immediately, for a publication: the first request still waits
        ASKS[asks](group, place)
    assert again.value.problem == silent.value.problem  # a warning is repeated when its text changes
    proxy.unanswered = frozenset()
    publish_at_last(group, place)
    assert group.published([place]) == {place: 2}


def test_a_run_whose_positions_are_not_taken_stops(older: Older, tmp_path: Path) -> None:
    broker, proxy, address = older
    feed = Feed(broker.bootstrap_servers, "unpublished")
    runs = LocalRuns(adding(feed.pattern), address, tmp_path, kafka=make_settings(address))
    feed.send(feed.create("values"), session(3))
    proxy.unanswered = frozenset({OFFSET_COMMIT})
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as executor:
        run = executor.submit(runs.run, trigger=Every(seconds=0.2), stop=stop)
        deadline = time.monotonic() + 60
        while not runs.reports:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        began = time.monotonic()
        stop.set()
        assert run.result(60) is RunOutcome.STOPPED
    assert time.monotonic() - began < 2 * TIMEOUT_SECONDS + SLACK_SECONDS
