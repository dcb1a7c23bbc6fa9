"""One secured Kafka for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.security.secured import Secured, secured_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with a listener for each way to secure a connection."""
    with secured_kafka(tmp_path_factory.mktemp("secured")) as kafka:
        yield kafka
