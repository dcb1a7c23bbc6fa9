"""A stream runs on a real YARN with the settings of docs/cluster.md, also after an executor is killed."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import lockstep
from lockstep.errors import EnvironmentProblem
from lockstep.settings import KafkaSettings
from lockstep.spark.jars import fetch_ivy_jar, resolve_jars
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.integration.cluster.cluster_runs import NO_DAGSTER, REPOSITORY, DriverRuns, wait_until
from tests.integration.cluster.paced_feed import PacedFeed
from tests.integration.cluster.streams import catching
from tests.integration.cluster.test_document import SNIPPETS
from tests.support.feed import folded
from tests.support.listeners import find_reachable, list_listeners
from tests.support.plain_reader import first_difference, read_until
from tests.support.yarn_cluster import LOCK, YarnCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.feed import Feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

PARTITIONS = 3
INSTANCES = 2


@pytest.fixture
def yarn(tmp_path: Path) -> Iterator[YarnCluster]:
    try:
        resolve_jars("yarn", lock=LOCK)
    except EnvironmentProblem as problem:
        pytest.skip(f"not run: the jars of YARN cannot be had here: {problem}")
    with YarnCluster.start(tmp_path / "yarn") as running:
        yield running


@pytest.fixture
def yarn_runs(yarn: YarnCluster, feed: Feed, tmp_path: Path) -> Iterator[DriverRuns[YarnCluster]]:
    with DriverRuns(yarn, feed, tmp_path) as begun:
        yield begun


def test_a_stream_runs_on_yarn_as_documented_and_an_executor_is_killed(
    yarn: YarnCluster, yarn_runs: DriverRuns[YarnCluster], feed: Feed, tmp_path: Path
) -> None:
    topic = feed.create("values", PARTITIONS)
    with PacedFeed(feed, [(topic, partition) for partition in range(PARTITIONS)]) as paced:
        driver = yarn_runs.start("--seconds", "1", options=documented(tmp_path) | local_sizes(yarn, yarn_runs))
        yarn_runs.wait_for_batches(5)
        wait_until(lambda: len(yarn.executors()) == INSTANCES, "all executors")
        assert not find_reachable(list_listeners(yarn.processes()))
        killed = yarn.executors()[0]
        os.kill(killed, signal.SIGKILL)
        waited = wait_until(lambda: not psutil.pid_exists(killed), "end of the executor")
        waited += yarn_runs.wait_for_batches(2)
        replaced = wait_until(lambda: len(yarn.executors()) == INSTANCES, "an executor in its place")
        sys.stdout.write(f"executor killed: two batches after {waited:.1f} s, another one {replaced:.1f} s later\n")
        yarn_runs.wait_for_batches(5)
    sent = {partition: len(lane.values) for partition, lane in paced.lanes.items()}
    wait_until(lambda: yarn_runs.read_until() == sent, "the end of the topic")
    driver.stop()
    assert driver.outcome == "stopped"
    for (_, partition), lane in paced.lanes.items():
        assert first_difference(folded(lane.messages), yarn_runs.rows(topic, partition)) is None
        assert read_until(yarn_runs.folders.ledger, topic, partition) == len(lane.values)
    report = verify_stream(
        catching(feed.pattern, yarn_runs.trap, 300.0),
        yarn_runs.folders,
        KafkaSettings(bootstrap_servers=feed.bootstrap_servers),
    )
    assert report.status is InvariantStatus.PROVEN, report
    assert len(list(yarn_runs.proofs.iterdir())) >= INSTANCES
    sys.stdout.write(f"{yarn_runs.batches} batches, {sum(sent.values())} messages proven\n")


def test_a_run_whose_application_yarn_has_ended_says_so(
    yarn: YarnCluster, yarn_runs: DriverRuns[YarnCluster], feed: Feed, tmp_path: Path
) -> None:
    """YARN ends an application that has lost too many executors, mostly between two batches."""
    topic = feed.create("values", PARTITIONS)
    limit = {"spark.executor.maxNumFailures": "1", "spark.yarn.maxAppAttempts": "1"}
    with PacedFeed(feed, [(topic, partition) for partition in range(PARTITIONS)]):
        driver = yarn_runs.start("--seconds", "1", options=documented(tmp_path) | local_sizes(yarn, yarn_runs) | limit)
        yarn_runs.wait_for_batches(2)
        os.kill(yarn.executors()[0], signal.SIGKILL)
        assert driver.ended() is None
    said = "\n".join(driver.lines)
    assert "Max number of executor failures (1) reached" in said
    assert (
        "the Spark application of the run on yarn was stopped from outside; nothing of the batch is committed" in said
    )


def documented(folder: Path) -> dict[str, str]:
    """Return the page's options for YARN, with an archive that runs this Python."""
    (snippet,) = [snippet for snippet in SNIPPETS if 'master = "yarn"' in snippet]
    options: dict[str, str] = tomllib.loads(snippet)["spark"]["options"]
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    archive = folder / Path(options["spark.archives"]).name.partition("#")[0]
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(python, "bin/python")
    name = options["spark.archives"].partition("#")[2]
    return options | {"spark.archives": f"{archive}#{name}"}


def local_sizes(yarn: YarnCluster, runs: DriverRuns[YarnCluster]) -> dict[str, str]:
    """Return the differences to the page: folders and sizes of this machine, and the place of Spark's jars."""
    library = Path(lockstep.__file__).parents[1]
    return {
        "spark.executorEnv.PYTHONPATH": f"{NO_DAGSTER}:{library}:{REPOSITORY}",
        "spark.executorEnv.NO_DAGSTER_PROOFS": str(runs.proofs),
        "spark.executorEnv.LOCKSTEP_LOCAL_ROOT": str(yarn.folder / "stores"),
        "spark.executor.instances": str(INSTANCES),
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "512m",
        "spark.yarn.am.memory": "512m",
        "spark.yarn.stagingDir": str(yarn.folder / "staging"),
        "spark.yarn.jars": f"local:{fetch_ivy_jar().parent}/*",
    }
