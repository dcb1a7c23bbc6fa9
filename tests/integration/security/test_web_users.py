"""Dagster's web server behind a proxy's header: a run's tags name the users who launched and terminated it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from dagster import DagsterInstance

from lockstep.features.localdev.processes import find_free_ports
from lockstep.orchestration.launch import create_dagster_storage
from lockstep.orchestration.names import TERMINATED_BY_TAG
from lockstep.orchestration.request_user import find_user
from tests.support.installation import ROOT, is_listening, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


HEADER = "X-Lockstep-User"
LOCATION = """
from dagster import Definitions, job, op

@op
def wait():
    pass

@job
def waiting():
    wait()

defs = Definitions(jobs=[waiting])
"""
LAUNCH = """mutation($job: JobOrPipelineSelector!) {
  launchRun(executionParams: {selector: $job}) { __typename ... on LaunchRunSuccess { run { runId } } }
}"""
TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"
JOB = {"jobName": "waiting", "repositoryLocationName": "jobs", "repositoryName": "__repository__"}
ANSWER_SECONDS = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of a web server and its Dagster home; without a daemon, runs wait in the queue."""
    folder = tmp_path_factory.mktemp("users")
    home, (port,) = folder / "dagster", find_free_ports(1)
    home.mkdir()
    (home / "dagster.yaml").write_text((ROOT / "deploy" / "dagster.yaml").read_text())
    create_dagster_storage(home)
    (folder / "jobs.py").write_text(LOCATION)
    (folder / "workspace.yaml").write_text(
        "load_from: [{python_file: {relative_path: jobs.py, location_name: jobs}}]\n"
    )
    command = [sys.executable, "-m", "lockstep.orchestration.web_server", "-p", str(port), "-w", "workspace.yaml"]
    environment = {**os.environ, "DAGSTER_HOME": str(home), "LOCKSTEP_WEB__USER_HEADER": HEADER}
    with (folder / "web.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or is_listening(port), "the web server answers")
        yield port, home
    finally:
        process.terminate()
        process.wait(ANSWER_SECONDS)


def ask(port: int, query: str, variables: dict[str, object], user: str | None) -> Any:
    """Send a request of a user, or without a proxy's header for None; return the answer's data."""
    headers = {"Content-Type": "application/json", **({} if user is None else {HEADER: user})}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", "/graphql", json.dumps({"query": query, "variables": variables}), headers)
        return json.loads(connection.getresponse().read())["data"]
    finally:
        connection.close()


@pytest.mark.parametrize(("launches", "terminates"), [("ann", "bob lee"), (None, "ann"), ("ann", None)])
def test_a_run_is_of_the_user_who_launched_it_and_its_end_of_the_one_who_terminated_it(
    server: tuple[int, Path], launches: str | None, terminates: str | None
) -> None:
    port, home = server
    launched = ask(port, LAUNCH, {"job": JOB}, launches)["launchRun"]
    assert "run" in launched, launched
    run = launched["run"]["runId"]
    assert ask(port, TERMINATE, {"run": run}, terminates)["terminateRun"]["__typename"] == "TerminateRunSuccess"
    with DagsterInstance.from_config(str(home)) as instance:
        found = instance.get_run_by_id(run)
        assert found is not None
        assert (find_user(found), find_user(found, TERMINATED_BY_TAG)) == (launches or "", terminates or "")
