"""Two streams in one run of a real Dagster with its daemon: a halt, a kill -9 of the host, and a Terminate."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, AssetRecordsFilter, AssetSelection, DagsterRunStatus, RunsFilter
from dagster import materialize as dagster_materialize

from lockstep.control.heartbeat import read_run_heartbeats
from lockstep.dagster import SparkResource, make_assets
from lockstep.features.host.presence import find_heartbeat_folder
from lockstep.features.host.start import start_in_host
from lockstep.orchestration.names import CAUSE_TAG, OUTCOME_TAG, name_host_job
from lockstep.settings import DagsterSettings
from lockstep.table.head import Desired
from tests.features.host.dagster_location import COUNT, FAMILY
from tests.features.host.hosted import WAIT_SECONDS, Hosted
from tests.support.feed import session, update
from tests.support.installation import Installation, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import psutil
    from dagster import DagsterInstance, DagsterRun

    from lockstep.operations.lifecycle import Started
    from tests.support.feed import Feed
    from tests.support.installation import Daemon


GROUP = "default"
HALTED = 0
OTHER = 1
TABLES = [AssetKey([f"adding_{number}", "table"]) for number in range(COUNT)]
HOSTS = {"LOCKSTEP_DAGSTER__HOSTS": f'["{GROUP}"]'}


def read_runs(instance: DagsterInstance) -> list[DagsterRun]:
    """Return the runs of the host, newest first, and check that Dagster has no other runs."""
    runs = list(instance.get_runs(RunsFilter(job_name=name_host_job(GROUP))))
    assert instance.get_runs_count() == len(runs)
    return runs


def read_outcomes(instance: DagsterInstance, key: AssetKey) -> list[object]:
    """Return the outcomes in the observations of an asset, newest first."""
    records = instance.fetch_observations(AssetRecordsFilter(asset_key=key), limit=100).records
    shown = [each.event_log_entry.asset_observation for each in records]
    return [each.metadata["outcome"].value for each in shown if each is not None and "outcome" in each.metadata]


def read_desired(hosted: Hosted, number: int) -> Desired | None:
    head = hosted.head(number)
    return None if head is None else head.desired


def start_host(hosted: Hosted) -> Started:
    """Start a stream: the sensor starts its host."""
    for number in hosted.numbers:
        hosted.send(number, *session(5))
    runs = hosted.runs(OTHER)
    settings = runs.settings.model_copy(update={"dagster": DagsterSettings(hosts=(GROUP,))})
    started = start_in_host(runs.stream, settings, "an operator")
    assert started is not None
    return started


def find_worker(hosted: Hosted, daemon: Daemon, run: DagsterRun) -> psutil.Process:
    """Return the process of a run of the host."""
    process = read_run_heartbeats(find_heartbeat_folder(hosted.folder / "tables", GROUP))[run.run_id].process
    assert process is not None
    return daemon.worker_of(process.pid)


@pytest.mark.slow
def test_a_later_run_takes_all_streams_and_a_signal_changes_no_desired_state(feed: Feed, tmp_path: Path) -> None:
    hosted = Hosted.make(feed, tmp_path, COUNT)
    installation = Installation(tmp_path, feed.bootstrap_servers, code="tests.features.host.dagster_location")
    more = {**HOSTS, FAMILY: feed.family}
    with installation.daemon(more=more, served=True) as daemon, installation.dagster() as instance:
        start_host(hosted)
        hosted.wait_until_whole(*hosted.numbers)
        (first,) = read_runs(instance)
        launch = ("job", "launch", "-w", str(installation.workspace), "-j", name_host_job(GROUP))
        installation.run_command("dagster", *launch)
        wait_until(lambda: read_runs(instance)[-1].is_finished, "the end of the first run", WAIT_SECONDS)
        second, ended = read_runs(instance)
        assert (ended.run_id, ended.status) == (first.run_id, DagsterRunStatus.SUCCESS)
        assert ended.tags[OUTCOME_TAG] == "handed over"
        for number in hosted.numbers:
            hosted.send_updates(number, 3)
        hosted.wait_until_whole(*hosted.numbers)
        assert [read_outcomes(instance, key) for key in TABLES] == [["handed over"]] * COUNT

        find_worker(hosted, daemon, second).terminate()
        for number in hosted.numbers:
            hosted.send_updates(number, 3)
        hosted.wait_until_whole(*hosted.numbers)  # the sensor has started a third run
        third, before, _ = read_runs(instance)
        assert (before.run_id, before.status) == (second.run_id, DagsterRunStatus.CANCELED)
        cause = third.tags[CAUSE_TAG].removesuffix(", start 2")  # the first run may have lived for less than a minute
        assert cause == "supervisor: no host lives, and adding_0, adding_1 are to run"
        assert [read_desired(hosted, number) for number in hosted.numbers] == [Desired.RUNNING] * COUNT
    for number in hosted.numbers:
        hosted.prove(number)


def test_dagster_runs_a_host_shows_a_halt_brings_it_back_after_a_kill_and_terminate_stops_each_stream(
    feed: Feed, tmp_path: Path
) -> None:
    hosted = Hosted.make(feed, tmp_path, COUNT)
    installation = Installation(tmp_path, feed.bootstrap_servers, code="tests.features.host.dagster_location")
    more = {**HOSTS, FAMILY: feed.family}
    with installation.daemon(more=more, served=True) as daemon, installation.dagster() as instance:
        started = start_host(hosted)
        assert (started.by, started.epoch, started.was_running) == ("host default", 1, False)
        hosted.wait_until_whole(*hosted.numbers)  # the host also starts the streams that never ran
        (first,) = read_runs(instance)
        assert first.tags[CAUSE_TAG] == "supervisor: no host lives, and adding_1 are to run"
        for key in TABLES:
            wait_until(lambda: instance.get_latest_materialization_event(key) is not None, "an event", WAIT_SECONDS)  # noqa: B023  # called here
        materialize(hosted, instance)
        halt(hosted, instance)

        find_worker(hosted, daemon, first).kill()
        hosted.send_updates(OTHER, 3)
        hosted.wait_until_whole(OTHER)
        head = hosted.head(OTHER)
        assert head is not None
        assert head.epoch == started.epoch + 1
        second, before = read_runs(instance)
        assert (before.run_id, before.status) == (first.run_id, DagsterRunStatus.FAILURE)
        terminate(hosted, instance, second)
    for number in hosted.numbers[OTHER:]:
        hosted.prove(number)


def materialize(hosted: Hosted, instance: DagsterInstance) -> None:
    """Materialize the asset: its run leaves the table to the host."""
    head = hosted.head(OTHER)
    assert head is not None
    runs = hosted.runs(OTHER)
    ran = dagster_materialize(
        make_assets([runs.stream], (), runs.settings, owners=()),
        selection=AssetSelection.assets(TABLES[OTHER]).without_checks(),
        instance=instance,
        resources={"spark": SparkResource()},
        run_config={"ops": {"__".join(TABLES[OTHER].path): {"config": {"available_now": True}}}},
    )
    (event,) = ran.get_asset_materialization_events()
    shown = event.step_materialization_data.materialization.metadata
    assert shown["skipped"].value == "a never-ending run keeps adding_1 up to date; this run left the table alone"
    assert (shown["epoch"].value, read_desired(hosted, OTHER)) == (head.epoch, Desired.RUNNING)
    instance.delete_run(ran.run_id)  # all other runs are of the host


def halt(hosted: Hosted, instance: DagsterInstance) -> None:
    """Halt a stream by a gap: its asset shows the halt, and the run stays green."""
    hosted.feed.send(f"{hosted.feed.family}.{HALTED}", [update(1_000, a=1)])
    wait_until(lambda: read_outcomes(instance, TABLES[HALTED]) == ["halted"], "the event of the halt", WAIT_SECONDS)
    assert read_desired(hosted, HALTED) is Desired.HALTED
    hosted.send_updates(OTHER, 3)
    hosted.wait_until_whole(OTHER)
    (run,) = read_runs(instance)
    assert (run.status, read_outcomes(instance, TABLES[OTHER])) == (DagsterRunStatus.STARTED, [])


def terminate(hosted: Hosted, instance: DagsterInstance, run: DagsterRun) -> None:
    """Terminate the run as a user does: its streams are stopped by name, except the halted stream."""
    with suppress(Exception):  # as the web server does; the process polls its status
        instance.run_coordinator.cancel_run(run.run_id)
    wait_until(lambda: read_runs(instance)[0].status is DagsterRunStatus.CANCELED, "the end", WAIT_SECONDS)
    wait_until(lambda: OUTCOME_TAG in read_runs(instance)[0].tags, "the stops", WAIT_SECONDS)
    head = hosted.head(OTHER)
    assert head is not None
    assert (head.desired, head.reason) == (Desired.STOPPED, "host default terminated in Dagster")
    assert read_desired(hosted, HALTED) is Desired.HALTED
    assert read_runs(instance)[0].run_id == run.run_id
    assert read_outcomes(instance, TABLES[OTHER])[0] == "stopped"
