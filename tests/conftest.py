"""Shared parts of the tests: how properties are tried; a real Kafka, started once and only if asked for."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from lockstep.rehearsal.broker import Broker


# No deadline: a busy machine is no error. The same examples each time, so that a failure is due to a
# change; `pytest --hypothesis-profile search` tries others, and more of them.
settings.register_profile("same", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Say what the markers mean that are not the project's own."""
    config.addinivalue_line("markers", "fault(*ids): proves faults of the matrix by their ids (tests/faults/matrix.py)")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden texts are compared; written only when somebody says so."""
    parser.addoption("--write-golden", action="store_true", help="write the golden texts of tests/errors anew")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real single-node Kafka, shared: keep to topics below `topic_family`, and do not stop it."""
    from lockstep.rehearsal.broker import Broker

    with Broker.start(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SparkSession]:
    """The one Spark of this process, started as a run starts it: there can be no second one."""
    from lockstep.settings import SparkSettings
    from lockstep.spark.session import start_session

    settings = SparkSettings(master="local[2,3]", options={"spark.ui.enabled": "false"})
    session = start_session(settings, "tests", import_roots=(Path(__file__).parents[1],))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark(shared_spark: SparkSession) -> SparkSession:
    """A session; folders whose tests want other settings have a `spark` of their own."""
    return shared_spark


@pytest.fixture
def topic_family(request: pytest.FixtureRequest) -> str:
    """A prefix for topic names that no other test uses, for example `a_late_update_3f2a9c1b`."""
    name = re.sub(r"[^a-z0-9_]", "_", request.node.name.lower())[:60]
    return f"{name}_{uuid.uuid4().hex[:8]}"
