"""A feed and local runs of the adding stream for each test, over topics of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engine.feed import Feed
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
