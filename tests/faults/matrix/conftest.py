"""The sent messages and the drivers of each test, over separate topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.matrix.drivers import Drivers
from tests.faults.matrix.oracle import Sent
from tests.support.feed import Feed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker


@pytest.fixture
def sent(broker: Broker, topic_family: str) -> Sent:
    return Sent(Feed(broker.bootstrap_servers, topic_family))


@pytest.fixture
def drivers(sent: Sent, tmp_path: Path) -> Iterator[Drivers]:
    with Drivers(sent.feed.pattern, sent.feed.bootstrap_servers, tmp_path) as started:
        yield started
