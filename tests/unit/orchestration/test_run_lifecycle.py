"""A person who terminates a run stops the stream, for any end of the run; on a real table and a real instance."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, cast

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus, OpExecutionContext, job, op
from sqlalchemy.exc import OperationalError

from lockstep.control.heartbeat import Heartbeat
from lockstep.engine.driver.main_thread import StopSignal
from lockstep.errors import Fenced
from lockstep.model.finding import Finding
from lockstep.orchestration.run_lifecycle import (
    REPORTS_MAX,
    RunProgress,
    RunStatusPoller,
    interrupt_run,
    record_stop,
    was_terminated_by_user,
)
from lockstep.table.commit import commit_claim
from lockstep.table.head import Desired, Head
from tests.support.protocol_run import ProtocolRun, anything, folders_in, stored_offsets
from tests.unit.engine.test_metrics import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster import AssetExecutionContext, AssetMaterialization, AssetObservation, DagsterRun

    from lockstep.table.layout import StreamFolders

FINDING = Finding(cause="gap", topic="t", topic_id="id", partition=0, offset=4, until=5, session="s")
REASON = "terminated in Dagster"


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    return folders_in(tmp_path)


def running(folders: StreamFolders, desired: Desired = Desired.RUNNING) -> ProtocolRun:
    """Return a run that has claimed the table."""
    run = ProtocolRun(folders)
    epoch = run.head.epoch
    run.head = run.output.commit(commit_claim(epoch, run.output.table_id, anything, desired=desired)).head
    return run


def head(folders: StreamFolders) -> Head:
    return ProtocolRun(folders).head


def test_a_run_whose_last_batch_was_abandoned_is_stopped_and_its_late_batch_is_fenced(folders: StreamFolders) -> None:
    """Its process still counts as a writer: the batch did not end in time."""
    run = running(folders)
    late = run.prepared()
    with Heartbeat(folders.control, 1, never_ending=True, run_id="mine"):
        assert record_stop(folders, "mine", REASON)
        with pytest.raises(Fenced):
            run.commit(late)
    assert (head(folders).desired, head(folders).reason) == (Desired.STOPPED, REASON)
    assert stored_offsets(folders) == []


def test_a_run_that_ended_in_order_is_stopped(folders: StreamFolders) -> None:
    running(folders)
    with Heartbeat(folders.control, 1, run_id="mine"):
        pass
    assert record_stop(folders, "mine", REASON)
    assert head(folders).desired is Desired.STOPPED


@pytest.mark.parametrize("counted_once", [False, True])
def test_a_run_that_never_claimed_stops_a_stream_that_nobody_writes(
    folders: StreamFolders,
    counted_once: bool,  # noqa: FBT001
) -> None:
    running(folders)
    if counted_once:
        dead = Heartbeat(folders.control, 1, run_id="dead")
        dead._write(7)  # noqa: SLF001  # as a killed writer left it
    assert record_stop(folders, "mine", REASON)
    assert head(folders).desired is Desired.STOPPED


def test_a_run_that_is_terminated_on_its_way_to_a_handover_leaves_the_writer_alone(folders: StreamFolders) -> None:
    running(folders)
    with Heartbeat(folders.control, 1, run_id="another"):
        assert not record_stop(folders, "mine", REASON)
    assert (head(folders).desired, head(folders).epoch) == (Desired.RUNNING, 1)


@pytest.mark.parametrize("desired", [Desired.STOPPED, Desired.HELD])
def test_a_stream_that_is_stopped_or_held_already_keeps_its_reason(folders: StreamFolders, desired: Desired) -> None:
    running(folders, desired)
    assert not record_stop(folders, "mine", REASON)
    assert head(folders).epoch == 1


def test_a_halted_stream_stays_halted_and_is_stopped_once_it_is_resumed(folders: StreamFolders) -> None:
    run = running(folders)
    run.commit(run.prepared(findings=(FINDING,)))
    assert record_stop(folders, "mine", REASON)
    assert (head(folders).desired, head(folders).resumes_as) == (Desired.HALTED, Desired.STOPPED)


def test_a_stream_without_a_table_has_nothing_to_stop(folders: StreamFolders) -> None:
    assert not record_stop(folders, "mine", REASON)


@job
def nothing() -> None:
    """Run nothing."""


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterInstance]:
    tmp_path = tmp_path_factory.mktemp("instance")
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as made:
        yield made


def started(instance: DagsterInstance) -> DagsterRun:
    return instance.create_run_for_job(nothing, status=DagsterRunStatus.STARTED)


@pytest.mark.parametrize("end", ["none", "canceled", "failed"])
def test_whoever_asks_dagster_to_terminate_is_remembered_whatever_becomes_of_the_run(
    instance: DagsterInstance, end: str
) -> None:
    run = started(instance)
    assert not was_terminated_by_user(instance, run.run_id)
    instance.report_run_canceling(run)
    if end == "canceled":
        instance.report_run_canceled(run)
    elif end == "failed":  # as the code server reports a process that was killed while it stopped
        instance.report_run_failed(run)
    assert was_terminated_by_user(instance, run.run_id)


def test_a_run_that_dagster_marked_as_canceled_at_once_was_terminated_too(instance: DagsterInstance) -> None:
    run = started(instance)
    instance.report_run_canceled(run)
    assert was_terminated_by_user(instance, run.run_id)


def test_a_run_that_failed_or_was_deleted_was_not_terminated(instance: DagsterInstance) -> None:
    run = started(instance)
    deleted = started(instance)
    instance.report_run_failed(run)
    instance.delete_run(deleted.run_id)
    assert not was_terminated_by_user(instance, run.run_id)
    assert not was_terminated_by_user(instance, deleted.run_id)


@op
def stopped_by_a_signal() -> None:
    """Stop as an asset does, whose context has the same instance and run."""
    raise interrupt_run(cast("AssetExecutionContext", OpExecutionContext.get()), "stopped (SIGTERM)")


@job
def stopping() -> None:
    stopped_by_a_signal()


def test_a_run_that_a_signal_stops_is_canceled_and_nobody_has_terminated_it(instance: DagsterInstance) -> None:
    run = stopping.execute_in_process(instance=instance, raise_on_error=False).dagster_run
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is DagsterRunStatus.CANCELED
    assert not was_terminated_by_user(instance, run.run_id)

    again = instance.create_run_for_job(stopping, tags=found.tags, status=DagsterRunStatus.STARTED)  # a re-execution
    instance.report_run_canceling(again)
    assert was_terminated_by_user(instance, again.run_id)


def test_a_run_of_the_command_line_sees_by_itself_that_it_is_terminated(instance: DagsterInstance) -> None:
    """Dagster has no process to send a signal to, and only marks the run."""
    run = started(instance)
    stopping = StopSignal()
    own = RunStatusPoller(instance, run.run_id, interval_seconds=0.0)
    own.tick(stopping)
    assert not stopping.wanted.is_set()
    assert not instance.run_coordinator.cancel_run(run.run_id)  # as the web server does
    own.tick(stopping)
    assert stopping.reason == "terminated in Dagster"
    assert own.was_terminated_by_user()


class LockedStorage:
    """The context of an asset whose instance accepts no event while its database is locked, with SQLite's error."""

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


def test_a_locked_storage_of_dagster_ends_no_stream_and_its_figures_come_later(
    instance: DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    context = LockedStorage(instance)
    progress = RunProgress(cast("AssetExecutionContext", context), AssetKey("table"), every_seconds=0.0)
    progress.add(BATCH)
    progress.tick()
    assert "these figures come with the next ones" in caplog.text
    context.locked = False
    progress.add(BATCH)
    progress.tick()
    (event,) = context.events
    assert (event.metadata["batches"].value, event.metadata["messages"].value) == (2.0, 2.0 * BATCH.counts.messages)
    assert progress.final("ended")["run_messages"] == 2 * BATCH.counts.messages


def test_figures_that_the_storage_of_dagster_does_not_take_for_days_are_bounded(instance: DagsterInstance) -> None:
    context = LockedStorage(instance)
    progress = RunProgress(cast("AssetExecutionContext", context), AssetKey("table"), every_seconds=0.0)
    for _ in range(3):
        for _ in range(REPORTS_MAX // 2):
            progress.add(BATCH)
        progress.tick()
    context.locked = False
    progress.tick()
    (event,) = context.events
    assert event.metadata["batches"].value == float(REPORTS_MAX)
