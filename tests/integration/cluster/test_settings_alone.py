"""Settings alone reach a cluster; its executors need lockstep and the stream's module, but not dagster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster.cluster_runs import wait_until
from tests.support.feed import folded, session, session_in

if TYPE_CHECKING:
    from tests.integration.cluster.cluster_runs import ClusterRuns
    from tests.support.feed import Feed
    from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.slow

PARTITIONS = 4


def test_a_stream_runs_on_two_machines_without_dagster_and_without_its_jars(runs: ClusterRuns, feed: Feed) -> None:
    topic = feed.create("values", partitions=PARTITIONS)
    driver = runs.start(jars="")
    held: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for turn in range(3):
        for partition in held:
            held[partition] += session(300, first=1 + 301 * turn)
            feed.send(topic, held[partition][-301:], partition=partition)
        runs.wait_for_batches(1)
    wait_until(lambda: set(runs.read_until().values()) == {903}, "the end of the topics")
    runs.wait_for_hot_state()
    secret = secret_of(runs.cluster)
    assert not any(secret in command for command in command_lines())
    driver.stop()
    for partition, values in held.items():
        expected = folded([(offset, session_in(partition), value) for offset, value in enumerate(values)])
        assert expected == runs.rows(topic, partition)
    assert len(list(runs.proofs.iterdir())) >= len(runs.cluster.workers)


def test_a_cluster_without_the_secret_is_not_entered(runs: ClusterRuns, feed: Feed) -> None:
    feed.create("values")
    (runs.cluster.configuration / "spark-defaults.conf").write_text(
        "spark.authenticate true\nspark.authenticate.secret not-the-one\n"
    )
    driver = runs.start("--patience", "10")
    driver.ended()
    assert driver.outcome is None
    assert any("SaslException: DIGEST-MD5" in line for line in driver.lines), driver.lines
    assert runs.batches == 0


def secret_of(cluster: SparkCluster) -> bytes:
    lines = (cluster.configuration / "spark-defaults.conf").read_text().splitlines()
    return lines[1].split()[1].encode()


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found
