"""A standalone Spark cluster of two workers for each test, and a stream that runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster.cluster_runs import ClusterRuns
from tests.support.feed import Feed
from tests.support.spark_cluster import SparkCluster, WorkerSize

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SparkCluster]:
    """Workers of one core; of as many as the test says (`indirect`)."""
    size = WorkerSize(cores=getattr(request, "param", 1))
    with SparkCluster.start(tmp_path / "cluster", workers=2, size=size) as running:
        yield running


@pytest.fixture
def runs(cluster: SparkCluster, feed: Feed, tmp_path: Path) -> Iterator[ClusterRuns]:
    with ClusterRuns(cluster, feed, tmp_path) as begun:
        yield begun
