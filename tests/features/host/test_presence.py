"""Heartbeats of the hosts of a group, and the reports of a host to Dagster."""

from __future__ import annotations

import sqlite3
import time
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from dagster import DagsterInstance, DagsterRunStatus, Failure, RunRequest, SkipReason, build_sensor_context
from sqlalchemy.exc import OperationalError

from jobs.hosts import host_jobs
from lockstep.control.heartbeat import RunHeartbeat, read_run_heartbeats, read_this_process, run_heartbeat
from lockstep.engine.driver.main_thread import StopSignal
from lockstep.features.host import dagster_job
from lockstep.features.host.dagster_job import DagsterReports, make_host_job, rotate_host
from lockstep.features.host.keeper import RunEnd
from lockstep.features.host.presence import HostPresence, find_heartbeat_folder, is_host_alive
from lockstep.settings import DagsterSettings, KafkaSettings, Settings
from lockstep.storage import find_storage
from sensors.hosts import host_sensors
from tests.features.host.hosted import make_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dagster import AssetMaterialization, AssetObservation, OpExecutionContext

GROUP = "default"
DEADLINE_SECONDS = 60.0
STREAM = make_stream("topics", 0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_successor_soon(presence: HostPresence) -> bool:
    """Return whether a poll of the next 3 s finds a successor: two polls are needed."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        if presence.has_successor():
            return True
        time.sleep(0.2)
    return False


def write_dead(root: Path, host_id: str, *, here: bool) -> None:
    """Write the file of a killed host, on this machine or on another."""
    process = read_this_process()
    assert process is not None
    gone = RunHeartbeat(7, type(process)(process.pid, process.started - 1, process.place if here else "elsewhere"))
    path = find_heartbeat_folder(root, GROUP) / f"{host_id}.run.json"
    find_storage(path).replace(path, msgspec.json.encode(gone))


def test_only_a_host_that_started_later_and_counts_is_a_successor(tmp_path: Path) -> None:
    write_dead(tmp_path, "killed-here", here=True)
    write_dead(tmp_path, "killed-elsewhere", here=False)
    with HostPresence(tmp_path, GROUP, "first") as first:
        assert set(read_run_heartbeats(find_heartbeat_folder(tmp_path, GROUP))) == {"first", "killed-elsewhere"}
        write_dead(tmp_path, "killed-later", here=False)
        assert not has_successor_soon(first)
        with HostPresence(tmp_path, GROUP, "second") as second:
            wait_until(first.has_successor)
            assert not has_successor_soon(second)
    assert not is_host_alive(tmp_path, "others")


def test_a_host_is_alive_while_one_of_its_group_counts(tmp_path: Path) -> None:
    write_dead(tmp_path, "killed-elsewhere", here=False)
    assert not is_host_alive(tmp_path, GROUP)
    with run_heartbeat(find_heartbeat_folder(tmp_path, GROUP), "lives"):
        assert is_host_alive(tmp_path, GROUP)


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


class LockedStorage:
    """The context of a run whose Dagster storage is locked at the start."""

    run_id = "run"

    def __init__(self, instance: DagsterInstance) -> None:
        self.instance = instance
        self.locked = True
        self.events: list[AssetMaterialization | AssetObservation] = []

    def log_event(self, event: AssetMaterialization | AssetObservation) -> None:
        if self.locked:
            raise OperationalError("INSERT INTO event_logs", {}, sqlite3.OperationalError("database is locked"))
        self.events.append(event)

    def consume_events(self) -> Iterator[object]:
        return iter(())


def test_the_ends_of_runs_are_logged_in_order_when_the_storage_of_dagster_takes_them(
    instance: DagsterInstance,
) -> None:
    context = LockedStorage(instance)
    reports = DagsterReports(cast("OpExecutionContext", context), [STREAM])
    reports.note_end(RunEnd(STREAM.name, "failed", "the disk is full"))
    reports.note_end(RunEnd(STREAM.name, "halted"))
    stopping = StopSignal()
    reports.tick(stopping)
    assert context.events == []
    context.locked = False
    reports.tick(stopping)
    shown = [(event.metadata["outcome"].value, "reason" in event.metadata) for event in context.events]
    assert shown == [("failed", True), ("halted", False)]
    assert {tuple(event.asset_key.path) for event in context.events} == {(STREAM.name, "table")}
    assert not stopping.wanted.is_set()


def test_only_an_old_run_of_a_host_is_rotated(
    instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:9"), table_root=tmp_path / "tables")
    job = make_host_job(GROUP, [STREAM], settings)
    assert isinstance(rotate_host(GROUP, instance), SkipReason)
    run = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)
    assert isinstance(rotate_host(GROUP, instance), SkipReason)
    monkeypatch.setattr(dagster_job, "ROTATION_AGE_MIN", timedelta())
    request = rotate_host(GROUP, instance)
    assert isinstance(request, RunRequest)
    assert request.run_key == f"host-{GROUP}-rotation-{run.run_id}"


def test_a_group_without_streams_is_loaded_and_named_by_its_sensor_and_its_run(
    instance: DagsterInstance, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = DagsterSettings(hosts=(GROUP, "markts"))
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9")
    settings = Settings(kafka=kafka, table_root=tmp_path / "tables", dagster=hosts)
    _, job = host_jobs([STREAM], settings)
    _, sensor = host_sensors([STREAM], settings)
    problem = "no continuous stream declares host_group='markts'"
    assert [problem in each.getMessage() for each in caplog.records] == [True]
    with build_sensor_context(instance=instance) as context:
        skipped = sensor.evaluate_tick(context).skip_message
    assert skipped is not None
    assert problem in skipped
    with pytest.raises(Failure, match=problem):
        job.execute_in_process(instance=instance)
