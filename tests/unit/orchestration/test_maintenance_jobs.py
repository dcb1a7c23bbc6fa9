"""Compaction, housekeeping and export through their schedules and jobs, on a real Dagster instance with files."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultScheduleStatus,
    Definitions,
    RunRequest,
    ScheduleDefinition,
    build_schedule_context,
)

from jobs.compaction import compaction_schedules
from jobs.export import export_schedules
from jobs.housekeeping import housekeeping_schedules
from jobs.quality import checks_schedules
from lockstep.derived import Export
from lockstep.features.compaction.compact import IDLE_SECONDS
from lockstep.features.compaction.plan import plan_open_hour
from lockstep.features.compaction.run import compact_in_process, compact_stream
from lockstep.features.export.dataset import list_exported_hours
from lockstep.orchestration.definitions import make_stream_assets
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import ScheduleSettings, Settings
from lockstep.table import delta_log
from lockstep.table.commit import raise_rewind_floor
from tests.features.export.declared import make_stream
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets
from tests.support.queued_run import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

STREAM = make_stream(Export(), retention=timedelta(hours=3))
DEFAULTS = Settings()
SCHEDULES = (
    compaction_schedules(STREAM, DEFAULTS)[0],
    *housekeeping_schedules(STREAM, DEFAULTS),
    *export_schedules(STREAM, DEFAULTS),
)
HOURS = [f"2026-01-01T0{number}" for number in range(8)]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    with DagsterInstance.local_temp(str(home)) as made:
        yield made


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """Return a run with eight hours of three batches, whose closed hours are compacted."""
    made = ProtocolRun(folders_in(tmp_path_factory.mktemp("hours")))
    made.claim()
    for _ in HOURS:
        for _ in range(3):
            made.batch(full=True)
        made.clock += timedelta(hours=1)
    compact_stream(made.folders)
    made.output.commit(raise_rewind_floor(1, 22))
    return made


@pytest.fixture
def run(written: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    """Return a copy of it, whose stream has been idle for long."""
    made = written.copied(tmp_path / "tables")
    entry = delta_log.make_entry_path(made.folders.table, made.head.batch_version)
    os.utime(entry, (time.time() - 2 * IDLE_SECONDS,) * 2)
    return made


def materialize(run: ProtocolRun, instance: DagsterInstance, schedule: ScheduleDefinition) -> Mapping[str, Any]:
    """Evaluate a schedule and run its request; return the metadata of the materialization."""
    settings = Settings(table_root=run.folders.root, local_root=run.folders.root.parent / "local")
    definitions = Definitions(
        assets=make_stream_assets(STREAM, settings, owners=("team:test",)),
        schedules=[schedule],
        resources={"spark": SparkResource()},
    )
    now = datetime(2026, 1, 2, tzinfo=UTC)
    context = build_schedule_context(instance=instance, scheduled_execution_time=now)
    (request,) = schedule.evaluate_tick(context).run_requests or ()
    assert isinstance(request, RunRequest)
    done = definitions.resolve_job_def(schedule.job_name).execute_in_process(instance=instance, tags=request.tags)
    assert done.success
    event = instance.get_latest_materialization_event(AssetKey([STREAM.name, schedule.job_name.split("_")[-1]]))
    assert event is not None
    assert event.asset_materialization is not None
    return event.asset_materialization.metadata


def test_every_schedule_is_on_by_default_and_few_of_its_runs_are_at_once() -> None:
    assert {(each.name, each.default_status) for each in SCHEDULES} == {
        (f"readings_{job}_schedule", DefaultScheduleStatus.RUNNING) for job in ("compaction", "housekeeping", "export")
    }
    assert len({each.cron_schedule for each in SCHEDULES}) == len(SCHEDULES)


def test_when_they_run_is_a_setting() -> None:
    nightly = Settings(schedules=ScheduleSettings(export="0 3 * * *"))
    assert [each.cron_schedule for each in export_schedules(STREAM, nightly)] == ["0 3 * * *"]


def test_compaction_closes_the_hour_of_an_idle_stream_and_keeps_its_plan(
    run: ProtocolRun, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkResource, "session", lambda *_: SimpleNamespace(sparkContext=None))
    monkeypatch.setattr("lockstep.features.compaction.run.compact_on_spark", lambda _: compact_in_process())
    found = materialize(run, instance, SCHEDULES[0])
    assert (found["closed_idle_hour"].value, found["planned_files"].value, found["bins"].value) == (HOURS[7], 3, 1)
    (planned,) = found["plan"].records
    assert (planned.data["commit hour"], planned.data["files"], planned.data["rows"]) == (HOURS[7], 3, 6)
    assert {record.data["reason"]: record.data["hours"] for record in found["left"].records} == {"compacted before": 7}
    assert run.output.base().head.closed_hour == HOURS[7]


def test_the_open_hour_is_compacted_by_the_same_job_only_while_it_has_many_files(
    run: ProtocolRun, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(table_root=run.folders.root)
    _, minor = compaction_schedules(STREAM, settings)
    context = build_schedule_context(instance=instance)
    assert minor.evaluate_tick(context).skip_message == "the open hour has few small files"
    monkeypatch.setattr("lockstep.features.compaction.compact.plan_open_hour", partial(plan_open_hour, files_max=2))
    (request,) = minor.evaluate_tick(context).run_requests or ()
    assert (minor.job_name, request.run_key) == (SCHEDULES[0].job_name, None)
    _, without_table = compaction_schedules(STREAM, Settings(table_root=run.folders.root / "none"))
    assert without_table.evaluate_tick(context).run_requests == []


@pytest.mark.parametrize("schedule", [*SCHEDULES, *checks_schedules(STREAM, DEFAULTS)], ids=lambda each: each.name)
def test_a_schedule_requests_no_second_run_while_one_waits_in_the_queue(
    instance: DagsterInstance, schedule: ScheduleDefinition
) -> None:
    """Two runs of maintenance are in progress at a time: with many streams the queue would grow with each hour."""
    context = build_schedule_context(instance=instance)
    for status in (DagsterRunStatus.STARTED, DagsterRunStatus.SUCCESS):
        instance.add_run(DagsterRun(schedule.job_name, status=status))
    enqueue(instance, "another")
    assert len(schedule.evaluate_tick(context).run_requests or ()) == 1
    waiting = enqueue(instance, schedule.job_name)
    skipped = schedule.evaluate_tick(context)
    assert (skipped.run_requests, skipped.skip_message) == (
        [],
        f"run {waiting.run_id[:8]} of {schedule.job_name} still waits in Dagster's queue",
    )


def test_export_then_housekeeping_write_old_hours_and_drop_those_past_the_retention(
    run: ProtocolRun, instance: DagsterInstance
) -> None:
    exported = materialize(run, instance, SCHEDULES[2])
    assert (exported["hours"].value, exported["rows"].value, exported["newest_hour"].value) == (7, 42, HOURS[6])
    assert list_exported_hours(run.folders.export) == frozenset(HOURS[:7])
    kept = materialize(run, instance, SCHEDULES[1])
    steps = {record.data["step"]: record.data["files"] for record in kept["steps"].records}
    assert steps["rows past retention"] == 4
    assert stored_offsets(run.folders) == list(range(24, 48))
    assert kept["bytes_on_disk"].value > kept["bytes_of_rows"].value > 0
    assert {record.data["kind"] for record in kept["growth"].records} >= {"rows", "replaced files", "ledger", "logs"}


def test_without_a_table_there_is_nothing_to_do(tmp_path: Path, instance: DagsterInstance) -> None:
    run = ProtocolRun(folders_in(tmp_path / "made"))
    run.folders = folders_in(tmp_path / "tables")
    run.folders.root.mkdir()
    for schedule in SCHEDULES:
        assert "nothing_to_do" in materialize(run, instance, schedule)
