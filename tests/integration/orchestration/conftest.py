"""A complete installation per test module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.broker import Broker
from tests.support.installation import Installation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.orchestration.test_comeback import Site


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of an installation."""
    with Broker.start(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory, kafka: Broker, request: pytest.FixtureRequest
) -> Iterator[Installation]:
    """A separate installation per module: the code location reads all topics `order_books.*`.

    A module sets a different code location by CODE_LOCATION.
    """
    code = getattr(request.module, "CODE_LOCATION", "")
    made = Installation(tmp_path_factory.mktemp("installation"), kafka.bootstrap_servers, code=code)
    yield made
    made.kill_runs()


@pytest.fixture
def site(installation: Installation) -> Iterator[Site]:
    """The installation with a separate Dagster home."""
    from tests.integration.orchestration.test_comeback import Site

    yield Site(installation, f"home-{len(list(installation.folder.glob('home-*')))}")
    installation.kill_runs()
