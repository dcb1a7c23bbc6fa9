"""A stream for read-only tests."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.adding_stream import adding
from tests.support.feed import Feed, session, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker


@pytest.fixture(scope="module")
def read(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Feed, LocalRuns]:
    """A stream that has read six messages of two partitions and has two unread messages. For read-only tests."""
    feed = Feed(broker.bootstrap_servers, f"read_{uuid.uuid4().hex[:8]}")
    runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path_factory.mktemp("read"))
    topic = feed.create("values", partitions=2)
    feed.send(topic, session(3), key="a", partition=0)
    feed.send(topic, session(1), key="b", partition=1)
    runs.run()
    feed.send(topic, [update(5, c=1), update(6, c=2)], key="a", partition=0)
    return feed, runs
