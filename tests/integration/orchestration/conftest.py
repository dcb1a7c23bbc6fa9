"""A whole installation for each module of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.localdev.broker import Broker
from tests.support.installation import Installation

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation of its own for a module: the code location reads all topics `order_books.*`."""
    folder = tmp_path_factory.mktemp("installation")
    with Broker.start(folder / "kafka") as kafka:
        made = Installation(folder, kafka.bootstrap_servers)
        yield made
        for run in made.runs:
            run.process.kill()
            run.process.wait()
