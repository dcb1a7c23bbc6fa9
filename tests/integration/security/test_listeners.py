"""With users' default settings, no process of lockstep listens on an address that other machines reach.

A live platform, a game day and a load test: `features/localdev/test_live.py` and `features/rehearsal`; the ports
of the compose file: `house/deploy/test_compose.py`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from lockstep.features.localdev.processes import find_free_ports
from lockstep.spark.jars import fetch_ivy_jar
from lockstep.spark.java import require_java
from tests.support.descendants import list_descendants
from tests.support.installation import ROOT, is_listening, wait_until
from tests.support.listeners import Listener, find_reachable, list_listeners
from tests.support.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lockstep.features.localdev.broker import Broker


SUBMISSION_PORT = 6066
"""A standalone master runs programs that are sent there."""


@pytest.mark.parametrize(
    ("family", "address", "reachable"),
    [
        (socket.AF_INET, "127.0.0.1", False),
        (socket.AF_INET, "127.9.8.7", False),
        (socket.AF_INET, "0.0.0.0", True),  # noqa: S104  # the address to find
        (socket.AF_INET6, "::1", False),
        (socket.AF_INET6, "::ffff:127.0.0.1", False),
        (socket.AF_INET6, "::", True),
    ],
)
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_the_search_finds_each_kind_of_listener(
    family: socket.AddressFamily, kind: socket.SocketKind, address: str, *, reachable: bool
) -> None:
    before = list_listeners([os.getpid()])
    with socket.socket(family, kind) as opened:
        opened.bind((address, 0))
        if kind is socket.SOCK_STREAM:
            opened.listen()
        (listener,) = list_listeners([os.getpid()]) - before
        assert listener.port == opened.getsockname()[1]
        assert find_reachable([listener]) == ([listener] if reachable else [])


def list_family_listeners() -> set[Listener]:
    """Return the listeners of this process and of its descendants."""
    return list_listeners([os.getpid(), *list_descendants(os.getpid())])


def test_spark_and_the_local_kafka_listen_on_loopback_only(shared_spark: SparkSession, broker: Broker) -> None:
    shared_spark.sparkContext.parallelize(range(2), 2).map(str).collect()  # starts Python workers
    listeners = list_family_listeners()
    assert broker.ports.clients in {listener.port for listener in listeners}
    assert int(shared_spark.sparkContext.getConf().get("spark.driver.port", "0")) in {each.port for each in listeners}
    assert find_reachable(listeners) == []
    assert shared_spark.sparkContext.uiWebUrl is None


@pytest.mark.slow
def test_another_process_of_the_machine_is_no_client_of_sparks_ports(shared_spark: SparkSession) -> None:
    """Without authentication, Spark would read the process's objects and report a missing endpoint."""
    port = shared_spark.sparkContext.getConf().get("spark.driver.port")
    backend = ["-cp", f"{fetch_ivy_jar().parent}/*", "org.apache.spark.executor.CoarseGrainedExecutorBackend"]
    driver = ["--driver-url", f"spark://CoarseGrainedScheduler@127.0.0.1:{port}", "--app-id", "app"]
    executor = ["--executor-id", "9", "--hostname", "127.0.0.1", "--cores", "1", "--resourceProfileId", "0"]
    said = subprocess.run(
        [str(require_java()), *backend, *driver, *executor], capture_output=True, text=True, check=False
    )
    assert said.returncode != 0
    assert "RpcEndpointNotFoundException" not in said.stdout + said.stderr
    assert "Expected SaslMessage" in said.stdout + said.stderr


PROGRAM = """
import json, sys, time
from lockstep.settings import load_settings
from lockstep.spark.session import start_context

context = start_context(load_settings().spark, "listeners")
print(json.dumps({"port": int(context.uiWebUrl.rpartition(":")[2])}), flush=True)
print(context.parallelize([1], 1).map(lambda each: (time.sleep(8), each)[1]).collect(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_the_pages_of_spark_that_a_setting_asks_for_are_on_loopback_and_cancel_no_job(tmp_path: Path) -> None:
    environment = {**os.environ, "LOCKSTEP_SPARK__OPTIONS": json.dumps({"spark.ui.enabled": "true"})}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            port = json.loads(driver.stdout.readline())["port"]
            reachable = find_reachable(list_listeners([driver.pid, *list_descendants(driver.pid)]))
            for link in ("jobs/job/kill/?id=0", "stages/stage/kill/?id=0"):
                with urlopen(f"http://127.0.0.1:{port}/{link}", timeout=60) as answer:
                    assert answer.status == HTTPStatus.OK  # the list of jobs, to which a kill link redirects
            collected = driver.stdout.readline()
        finally:
            driver.kill()
    assert (reachable, collected) == ([], "[1]\n")


@pytest.mark.slow
def test_a_standalone_cluster_listens_on_loopback_only_and_takes_no_programs(tmp_path: Path) -> None:
    with SparkCluster.start(tmp_path, workers=1) as cluster:
        listeners = list_family_listeners()
        assert int(cluster.master.rpartition(":")[2]) in {listener.port for listener in listeners}
        assert SUBMISSION_PORT not in {listener.port for listener in listeners}
        assert find_reachable(listeners) == []


def test_the_exporter_listens_on_loopback_only(tmp_path: Path) -> None:
    (port,) = find_free_ports(1)
    environment = {**os.environ, "LOCKSTEP_TABLE_ROOT": str(tmp_path)}
    command = [sys.executable, "-m", "lockstep.cli", "metrics", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as exporter:
        try:
            wait_until(lambda: exporter.poll() is not None or is_listening(port), "the exporter answers")
            listeners = list_listeners([exporter.pid])
        finally:
            exporter.kill()
    assert port in {listener.port for listener in listeners}
    assert find_reachable(listeners) == []
