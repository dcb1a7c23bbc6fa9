"""Shared parts of the tests: a real Kafka, started once and only if a test asks for it."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstep.rehearsal.broker import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real single-node Kafka, shared: keep to topics below `topic_family`, and do not stop it."""
    from lockstep.rehearsal.broker import Broker

    with Broker.start(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def topic_family(request: pytest.FixtureRequest) -> str:
    """A prefix for topic names that no other test uses, for example `a_late_update_3f2a9c1b`."""
    name = re.sub(r"[^a-z0-9_]", "_", request.node.name.lower())[:60]
    return f"{name}_{uuid.uuid4().hex[:8]}"
