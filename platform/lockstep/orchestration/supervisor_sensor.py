"""I/O of the supervisor: reads its inputs and carries out its decision on table, heartbeat files and Dagster's runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from dagster import DagsterRunStatus, RunRequest, RunsFilter, SensorResult, SkipReason

from lockstep.boot import read_boot_id
from lockstep.control.handover import reserve_start
from lockstep.control.heartbeat import (
    Phase,
    RunHeartbeat,
    forget_run,
    is_process_alive,
    read_heartbeat,
    read_run_heartbeats,
)
from lockstep.control.start_request import forget_start_request, read_start_request
from lockstep.operations.stream_handle import StreamHandle
from lockstep.orchestration.names import (
    AUTOMATIC_TAG,
    CAUSE_TAG,
    EPOCH_TAG,
    LOCKSTEP_START,
    OUTCOME_TAG,
    PARENT_RUN_TAG,
    RETRY_NUMBER_TAG,
    START_REQUEST_TAG,
    SUPERVISOR,
    TERMINATED_BY_TAG,
    find_host,
    make_automatic_tags,
    make_run_configuration,
    make_start_request_tags,
    name_stream_job,
)
from lockstep.orchestration.request_user import find_user
from lockstep.orchestration.run_lifecycle import stop_if_current, was_terminated_by_user
from lockstep.orchestration.run_statuses import OVER
from lockstep.orchestration.shared_tick import STARTS_MAX, SharedCursor, poll_streams
from lockstep.orchestration.starts import find_starting_runs
from lockstep.orchestration.supervisor_policy import (
    RunStage,
    SeenRun,
    StartSlots,
    SupervisorCursor,
    SupervisorObservation,
    decide_supervision,
)
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired, Head

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dagster import DagsterInstance, SensorEvaluationContext

    from lockstep.control.heartbeat import HeartbeatRecord
    from lockstep.control.start_request import StartRequest
    from lockstep.declare.stream import AnyStream
    from lockstep.orchestration.supervisor_policy import Start, SupervisorDecision
    from lockstep.settings import Settings


LOST = "lost"
"""Outcome of a run whose process is gone."""
STAGES = {
    DagsterRunStatus.QUEUED: RunStage.QUEUED,
    DagsterRunStatus.NOT_STARTED: RunStage.LAUNCHED,
    DagsterRunStatus.STARTING: RunStage.LAUNCHED,
    DagsterRunStatus.STARTED: RunStage.LAUNCHED,
    DagsterRunStatus.CANCELING: RunStage.CANCELING,
    **dict.fromkeys(OVER, RunStage.OVER),
}


class StreamSupervisor:
    """Keeps streams running: closes dead runs and starts new runs, with growing delays after failed starts."""

    def __init__(self, streams: Sequence[AnyStream], settings: Settings) -> None:
        """Supervise these streams."""
        self._streams = streams
        self._settings = settings

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Observe the runs of each stream, decide, and carry the decision out."""
        starting = find_starting_runs(self._streams, self._settings.table_root, context.instance)
        boot = read_boot_id() or ""
        slots = read_slots(context.cursor, self._streams, boot, starting)

        def supervise(stream: AnyStream, cursor: SupervisorCursor) -> SensorResult:
            handle = StreamHandle(stream, self._settings)
            observation = observe_runs(handle, context.instance, cursor)
            observation = msgspec.structs.replace(observation, host=find_host(stream, self._settings))
            may_start = slots.may_start(stream.name, has_written=observation.has_written)
            decision = decide_supervision(observation, cursor, time.monotonic(), boot=boot, may_start=may_start)
            slots.note(stream.name, decision.cursor)
            return carry_out(handle, context.instance, decision)

        return poll_streams(context, self._streams, SupervisorCursor, supervise)


def observe_runs(handle: StreamHandle, instance: DagsterInstance, cursor: SupervisorCursor) -> SupervisorObservation:
    """Read the table, the heartbeat files and Dagster's runs.

    Raises:
        TableError: The table does not match its head.
    """
    stream = handle.stream
    head = handle.head
    control = handle.folders.control
    runs = list_unfinished_runs(name_stream_job(stream), control, instance)
    request = read_start_request(handle.folders, head)
    if head is None:
        return SupervisorObservation(
            head=None, runs=runs, request=request, terminated=_find_terminated_request(instance, stream, request)
        )
    last = read_heartbeat(control, head.epoch)
    observation = SupervisorObservation(head=head, pulse=last, runs=runs, request=request)
    if last is not None and last.phase is not Phase.ENDED and last.counter != cursor.last_counter(head.epoch):
        return observation  # its writer sends heartbeats: the outcome of earlier runs does not matter
    run = None
    if last is not None and last.run_id:
        run = instance.get_run_by_id(last.run_id)
    terminated = _terminated(instance, stream, head, last) or _find_terminated_request(instance, stream, request)
    terminated_by = ""
    if terminated:
        ended = instance.get_run_by_id(terminated)
        terminated_by = "" if ended is None else find_user(ended, TERMINATED_BY_TAG)
    return msgspec.structs.replace(
        observation,
        last_status=run.status.value if run is not None else "",
        terminated=terminated,
        terminated_by=terminated_by,
    )


def read_slots(cursor: str | None, streams: Iterable[AnyStream], boot: str, others: Iterable[str]) -> StartSlots:
    """The slots for starts, by the sensor's cursor.

    Args:
        cursor: The cursor.
        streams: All streams.
        boot: Id of the boot.
        others: Streams that start for other reasons.
    """
    texts = SharedCursor.read(cursor)[0].streams
    cursors = {stream.name: SupervisorCursor.read(texts.get(stream.name))[0] for stream in streams}
    return StartSlots(STARTS_MAX, cursors, boot, others)


def list_unfinished_runs(job: str, control: Path, instance: DagsterInstance) -> tuple[SeenRun, ...]:
    """Runs of a job that are alive in Dagster, and all runs with a heartbeat file.

    Args:
        job: Name of the job.
        control: Folder of the heartbeats of its runs.
        instance: Dagster's instance.
    """
    pulses = read_run_heartbeats(control)
    alive = [status for status, stage in STAGES.items() if stage is not RunStage.OVER]
    runs = {run.run_id: run for run in instance.get_runs(RunsFilter(job_name=job, statuses=alive))}
    for run_id in pulses.keys() - runs.keys():
        if (run := instance.get_run_by_id(run_id)) is not None:
            runs[run_id] = run
    stages = {run_id: STAGES.get(run.status, RunStage.LAUNCHED) for run_id, run in runs.items()}
    return tuple(_seen(run_id, stages, pulses.get(run_id)) for run_id in sorted({*runs, *pulses}))


def carry_out(handle: StreamHandle, instance: DagsterInstance, decision: SupervisorDecision) -> SensorResult:
    """Carry a decision out.

    1. Mark dead runs as failed in Dagster.
    2. Commit a stop that a person requested by terminating a run.
    3. Reserve a start, so that of two ticks only one requests it; then request the run.

    Raises:
        TableError: The table does not match its head.
    """
    stream = handle.stream
    folders = handle.folders
    for run_id in decision.close:
        close_lost_run(instance, run_id)  # 1
    for run_id in decision.forget:
        forget_run(folders.control, run_id)
    if decision.withdraws:
        forget_start_request(folders)
    if decision.stop is not None:
        stop_if_current(OutputLog(folders.table), decision.stop.epoch, decision.stop.reason)  # 2
    start = decision.start
    cursor = decision.cursor
    if start is None:
        return SensorResult(skip_reason=SkipReason(_with_closed(decision)), cursor=cursor.encode())
    attempt = reserve_start(folders.control, start.epoch, start.attempt)  # 3
    if attempt is None:
        refused = SkipReason("another evaluation has asked for this start")
        return SensorResult(skip_reason=refused, cursor=cursor.encode())
    start = msgspec.structs.replace(start, attempt=attempt)
    request = RunRequest(
        run_key=start.run_key,
        job_name=name_stream_job(stream),
        run_config=make_run_configuration(stream, available_now=False),
        tags=_make_tags(start),
    )
    return SensorResult(run_requests=[request], cursor=msgspec.structs.replace(cursor, attempt=attempt + 1).encode())


def _make_tags(start: Start) -> dict[str, str]:
    if start.request is None:
        return make_automatic_tags(SUPERVISOR, start.cause, start.epoch)
    return {**make_start_request_tags(start.request), CAUSE_TAG: start.cause}


def _find_terminated_request(instance: DagsterInstance, stream: AnyStream, request: StartRequest | None) -> str:
    """A run for a request that a person terminated; empty without one."""
    if request is None:
        return ""
    asked_for = RunsFilter(job_name=name_stream_job(stream), tags={START_REQUEST_TAG: request.request_id})
    runs = (run.run_id for run in instance.get_runs(asked_for))
    return next((run_id for run_id in runs if was_terminated_by_user(instance, run_id)), "")


def _seen(run_id: str, stages: dict[str, RunStage], found: RunHeartbeat | None) -> SeenRun:
    stage = stages.get(run_id, RunStage.UNKNOWN)
    if found is None:
        return SeenRun(run_id=run_id, stage=stage)
    exists = is_process_alive(found.process)
    return SeenRun(run_id=run_id, stage=stage, counter=found.counter, process_exists=exists)


def _terminated(instance: DagsterInstance, stream: AnyStream, head: Head, last: HeartbeatRecord | None) -> str:
    """The run that a person terminated; see `SupervisorObservation`."""
    if head.desired not in {Desired.RUNNING, Desired.BOUNDED}:
        return ""
    epoch = {EPOCH_TAG: str(head.epoch)}
    job = name_stream_job(stream)
    candidates = list[str]()
    if last is not None and last.run_id:
        candidates.append(last.run_id)
    for asked_by in (SUPERVISOR, LOCKSTEP_START):
        asked_for = RunsFilter(job_name=job, tags={**epoch, AUTOMATIC_TAG: asked_by})
        candidates += [run.run_id for run in instance.get_runs(asked_for)]
    if last is not None and last.run_id:
        retries = RunsFilter(job_name=job, tags={PARENT_RUN_TAG: last.run_id})
        candidates += [run.run_id for run in instance.get_runs(retries) if RETRY_NUMBER_TAG in run.tags]
    return next((run_id for run_id in candidates if was_terminated_by_user(instance, run_id)), "")


def close_lost_run(instance: DagsterInstance, run_id: str) -> None:
    """Mark a run without a live process as failed in Dagster, or as canceled if it was terminated."""
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return
    instance.add_run_tags(run_id, {OUTCOME_TAG: LOST})
    why = "it sends no heartbeats (any more); a process that only was slow ends by itself (supervisor of the stream)"
    if run.status is DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)


def _with_closed(decision: SupervisorDecision) -> str:
    if not decision.close:
        return decision.says
    closed = ", ".join(run_id[:8] for run_id in decision.close)
    return f"{decision.says}; closed dead runs {closed}"
