"""A day of a stream through a real daemon: first run, new topic, scheduled jobs, Terminate, halt.

The tests are steps: they share one table, one home and one Kafka, in this order. The job of the checks runs in
test_visible.py; what each job may meet besides is in the other modules, most of them slow.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DagsterRunStatus
from deltalake import DeltaTable

from lockstep.engine.driver.handover import Phase, read_heartbeat
from lockstep.operations.lifecycle import close_hour
from lockstep.orchestration.names import OUTCOME_TAG
from lockstep.table.delta_log import Desired
from tests.support.installation import ROOT, Installation, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import DagsterRun

pytestmark = pytest.mark.timeout(900)

ENDED = {DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED}


def launched(installation: Installation, job: str) -> str:
    """Launch a job as `dagster job launch` does; the id of its run, which the daemon starts."""
    run_id = str(uuid.uuid4())
    workspace = str(installation.workspace)
    command(installation, "dagster", "job", "launch", "-w", workspace, "-j", job, "--run-id", run_id)
    return run_id


def command(installation: Installation, module: str, *arguments: str) -> None:
    """Run a command to its end, which is to be a good one."""
    said = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=installation.environment("home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr


def ended(installation: Installation, run_id: str) -> DagsterRun:
    """A run once it is over; one that does not end in time fails with what Dagster knows of it."""
    with installation.dagster() as instance:  # once: to open it costs as much as many looks

        def run() -> DagsterRun:
            found = instance.get_run_by_id(run_id)
            assert found is not None
            return found

        try:
            wait_until(lambda: run().status in ENDED, "the run ends")
        except AssertionError as late:
            events = "\n".join(entry.message for entry in instance.all_logs(run_id)[-20:])
            late.add_note(f"{run()}\n{events}\n{installation.daemon_said()}")
            raise
        return run()


def newest_metadata(installation: Installation, asset: str) -> Mapping[str, object]:
    """What the newest materialization of an asset says."""
    with installation.dagster() as instance:
        event = instance.get_latest_materialization_event(AssetKey(["order_books", asset]))
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def writing_run(installation: Installation) -> str:
    """Dagster's id of the run that writes."""
    wait_until(lambda: installation.writes(installation.epoch()), "a run writes")
    last = read_heartbeat(installation.folders.control, installation.epoch())
    assert last is not None
    return last.run_id


@pytest.fixture(scope="module", autouse=True)
def _daemon(installation: Installation) -> Iterator[None]:
    with installation.daemon(served=True):
        yield


def test_a_bounded_run_of_the_command_line_commits_all_and_ends(installation: Installation) -> None:
    installation.produce("first", 0, 500)
    run = installation.materialize(available_now=True)
    assert run.wait() == 0, run.said()
    assert installation.position("first") == 500
    assert (installation.head().desired, installation.epoch()) == (Desired.BOUNDED, 1)
    assert newest_metadata(installation, "table")["run_messages"] == 500


def test_the_jobs_of_compaction_and_housekeeping_run_through_the_daemon(installation: Installation) -> None:
    before = DeltaTable(installation.folders.table).to_pyarrow_table().num_rows
    close_hour(installation.folders)
    for job, asset, figure in (("compaction", "compaction", "rows"), ("housekeeping", "housekeeping", "rewind_floor")):
        run = ended(installation, launched(installation, f"order_books_{job}"))
        assert run.status is DagsterRunStatus.SUCCESS
        assert figure in newest_metadata(installation, asset)
    assert newest_metadata(installation, "housekeeping")["rewind_floor"] == 0
    assert DeltaTable(installation.folders.table).to_pyarrow_table().num_rows == before


def test_a_new_topic_is_read_by_a_handover_that_the_sensor_asked_for(installation: Installation) -> None:
    command(installation, "lockstep.cli", "start", "order_books")
    first, epoch = writing_run(installation), installation.epoch()
    assert installation.head().desired is Desired.RUNNING
    installation.produce("second", 0, 300)
    wait_until(lambda: installation.position("second") == 300, "the new topic is read")
    handed_over = ended(installation, first)
    assert (handed_over.status, handed_over.tags[OUTCOME_TAG]) == (DagsterRunStatus.SUCCESS, "handed over")
    last = read_heartbeat(installation.folders.control, installation.epoch())
    assert last is not None
    assert (installation.epoch(), last.never_ending) == (epoch + 1, True)
    assert installation.head().desired is Desired.RUNNING


def test_terminate_stops_the_stream_and_verify_proves_what_it_wrote(installation: Installation) -> None:
    run_id, epoch = writing_run(installation), installation.epoch()
    with installation.dagster() as instance:
        assert instance.run_coordinator.cancel_run(run_id)
    assert ended(installation, run_id).status is DagsterRunStatus.CANCELED
    wait_until(lambda: installation.head().desired is Desired.STOPPED, "the stop is committed")
    last = read_heartbeat(installation.folders.control, epoch)
    assert last is not None
    assert last.phase is Phase.ENDED
    command(installation, "lockstep.cli", "verify", "order_books")


def test_a_stream_that_lost_its_integrity_fails_and_nobody_starts_it_again(installation: Installation) -> None:
    installation.produce("cut", 1, 50)  # without the snapshot that opens the session
    run = ended(installation, launched(installation, "order_books_stream"))
    assert (run.status, run.tags[OUTCOME_TAG]) == (DagsterRunStatus.FAILURE, "halted")
    head, (finding,) = installation.head(), installation.head().findings
    assert (head.desired, finding.topic, finding.offset) == (Desired.HALTED, "order_books.cut", 0)
    count = len(installation.stream_runs())
    refused = installation.materialize(available_now=True)
    assert refused.wait() != 0
    assert installation.epoch() == head.epoch  # it did not even claim
    assert len(installation.stream_runs()) == count + 1
