"""`lockstep start` and `lockstep stop` through a real Dagster daemon: the run is visible, works and ends cleanly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from lockstep.control.heartbeat import WriterState
from lockstep.control.start_request import read_start_request
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev.broker import Broker
from lockstep.operations.inspect.status import Status
from lockstep.operations.lifecycle import Stopped
from lockstep.orchestration.launch import Launched
from lockstep.orchestration.names import CAUSE_TAG, OUTCOME_TAG
from tests.support.installation import ROOT, Installation, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """An installation with a separate Kafka."""
    with Broker.start(tmp_path / "kafka") as kafka:
        yield Installation(tmp_path, kafka.bootstrap_servers)


def call(installation: Installation, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Call the command in a separate process, in the repository's folder."""
    command = [sys.executable, "-m", "lockstep.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, env=installation.environment("home"), capture_output=True, check=False)


def called(installation: Installation, *arguments: str) -> bytes:
    """Return a command's JSON; the command must succeed."""
    said = call(installation, *arguments, "--json")
    assert said.returncode == 0, said.stderr.decode()
    return said.stdout


def test_a_stream_is_started_seen_and_stopped_for_good(installation: Installation) -> None:
    with installation.daemon():
        start_see_and_stop(installation)


def test_a_start_that_no_daemon_takes_says_so_and_begins_with_the_daemon(installation: Installation) -> None:
    installation.produce("first", 0, 200)
    said = call(installation, "start", "order_books")
    assert said.returncode == 1, said.stdout.decode()
    assert "daemon did not report within 300 s" in said.stderr.decode()
    with installation.daemon():
        wait_until(lambda: installation.position("first") == 200, "the run begins by itself")


def test_a_start_whose_run_fails_ends_with_its_reason(installation: Installation) -> None:
    """With a wrong address of Kafka the first start fails, and the request to start remains."""
    nowhere = {"LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9", "LOCKSTEP_KAFKA__TIMEOUT_SECONDS": "2"}
    with installation.daemon(more=nowhere):
        said = call(installation, "start", "order_books")
    assert said.returncode == 1, said.stdout.decode()
    assert "ended: FAILURE" in said.stderr.decode()
    assert "Kafka did not answer" in said.stderr.decode()
    assert read_start_request(installation.folders, None) is not None


def start_see_and_stop(installation: Installation) -> None:
    installation.produce("first", 0, 200)
    launched = msgspec.json.decode(called(installation, "start", "order_books"), type=Launched)
    assert launched.job == "order_books_stream"
    wait_until(lambda: installation.position("first") == 200, "the run has read what there is")
    running = msgspec.json.decode(called(installation, "status", "order_books"), type=Status)
    assert (running.desired, running.writer, running.lag_messages) == ("running", WriterState.WRITING, 0)

    # A second start finds a writer and starts nothing.
    again = msgspec.json.decode(called(installation, "start", "order_books"), type=Launched)
    assert (launched.epoch, again.run_id, again.epoch) == (running.epoch, "", running.epoch)

    stopped = msgspec.json.decode(called(installation, "stop", "order_books", "--why", "enough"), type=Stopped)
    assert (stopped.desired, stopped.ended_by) == ("stopped", "the writer")
    with DagsterInstance.from_config(str(installation.folder / "home" / "dagster")) as instance:

        def status() -> DagsterRunStatus:
            run = instance.get_run_by_id(launched.run_id)
            assert run is not None
            return run.status

        wait_until(lambda: status() is DagsterRunStatus.SUCCESS, "Dagster shows the end of the run")
        run = instance.get_run_by_id(launched.run_id)
        assert run is not None
        assert run.tags[OUTCOME_TAG] == RunOutcome.STOPPED_FOR_GOOD.value
        assert run.tags[CAUSE_TAG].startswith("lockstep start")
    ended = msgspec.json.decode(called(installation, "status", "order_books"), type=Status)
    assert (ended.desired, ended.writer) == ("stopped", WriterState.ENDED)
    assert ended.reason.startswith("enough (")
