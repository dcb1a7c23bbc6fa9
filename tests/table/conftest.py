"""A Spark session for many tiny queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(shared_spark: SparkSession) -> SparkSession:
    """The session of all tests with settings of its own: compiling each tiny query would take most of the time."""
    session = shared_spark.newSession()
    for name, value in (
        ("spark.sql.shuffle.partitions", "1"),
        ("spark.sql.codegen.wholeStage", "false"),
        ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
        ("spark.sql.adaptive.enabled", "false"),
    ):
        session.conf.set(name, value)
    return session
