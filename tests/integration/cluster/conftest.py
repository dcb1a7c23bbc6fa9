"""A standalone Spark cluster of two workers for each test, and a stream that runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster.cluster_runs import ClusterRuns
from tests.support.feed import Feed
from tests.support.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster.start(tmp_path / "cluster", workers=2) as running:
        yield running


@pytest.fixture
def runs(cluster: SparkCluster, feed: Feed, tmp_path: Path) -> Iterator[ClusterRuns]:
    with ClusterRuns(cluster, feed, tmp_path) as begun:
        yield begun
