"""A feed and local runs of the adding stream for each test, and one stream that many tests only read."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.engine.feed import Feed, session, update
from tests.engine.local_runs import LocalRuns
from tests.engine.streams import adding

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.localdev.broker import Broker


@pytest.fixture
def feed(broker: Broker, topic_family: str) -> Feed:
    return Feed(broker.bootstrap_servers, topic_family)


@pytest.fixture
def runs(feed: Feed, tmp_path: Path) -> LocalRuns:
    return LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path)


@pytest.fixture(scope="module")
def read(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Feed, LocalRuns]:
    """A stream that has read six messages of two partitions, and has two more to read. For tests that only look."""
    feed = Feed(broker.bootstrap_servers, f"read_{uuid.uuid4().hex[:8]}")
    runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path_factory.mktemp("read"))
    topic = feed.create("values", partitions=2)
    feed.send(topic, session(3), key="a", partition=0)
    feed.send(topic, session(1), key="b", partition=1)
    runs.run()
    feed.send(topic, [update(5, c=1), update(6, c=2)], key="a", partition=0)
    return feed, runs
