"""A Spark session for the checks, started as a run starts it, and Great Expectations without its warnings."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from lockstep.settings import SparkSettings
from lockstep.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def _great_expectations() -> None:
    """Import it once: it uses deprecated modules of Python's own, and warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations  # noqa: F401  # for what importing does


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this process."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:  # another folder's tests started it, and stop it
        yield running
        return
    options = {"spark.ui.enabled": "false", "spark.databricks.delta.snapshotPartitions": "2"}
    started = start_session(SparkSettings(master="local[2,3]", options=options), "quality tests")
    yield started
    started.stop()
