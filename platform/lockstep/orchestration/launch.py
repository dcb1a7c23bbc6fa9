"""Starts a stream's job as `dagster job launch` does, and waits until it writes, for `lockstep start`."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import uuid
from typing import TYPE_CHECKING

import msgspec
from dagster import AssetCheckKey, AssetKey, DagsterEventType, DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES

from lockstep.control.heartbeat import find_epoch_written_by, is_run_counting, run_heartbeat
from lockstep.control.start_request import record_start_request
from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.operations.lifecycle import check_startable, set_running
from lockstep.orchestration.names import (
    AUTOMATIC_TAG,
    LOCKSTEP_START,
    NEVER_TOO_LONG,
    OUTCOME_TAG,
    START_REQUEST_TAG,
    SUPERVISOR,
    make_automatic_tags,
    make_start_request_tags,
    name_stream_job,
)
from lockstep.orchestration.supervisor_policy import RunStage
from lockstep.orchestration.supervisor_sensor import list_unfinished_runs
from lockstep.table.layout import StreamFolders
from lockstep.time_limit import SLOW, describe_silence, run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dagster import DagsterEvent

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings


WORKSPACE = "workspace.yaml"
LAUNCH_SECONDS_MAX = 600
"""A code location loads in seconds; an overloaded machine took four minutes (measured)."""
CLI_ERROR = "\nError: "
CAUSED_BY = "The above exception was caused by the following exception:\n"
FRAMES = "\nStack Trace:"
"""What Dagster's command line writes before an error, between it and its cause, and after each of them."""
QUEUE_DAEMON = "QUEUED_RUN_COORDINATOR"
"""Dagster's name of the daemon that takes runs from the queue."""
ENDS = (DagsterEventType.STEP_FAILURE, DagsterEventType.ENGINE_EVENT, DagsterEventType.RUN_FAILURE)
"""Events with the reason for the end of a run: its step failed, it could not be launched, its process died."""
EVENTS_MAX = 20
DAEMON_SECONDS_MAX = 300.0
"""Dagster's daemons beat every 30 seconds, and every two minutes on a machine full of other work."""
QUEUE_SECONDS_MAX = 30.0
WRITE_SECONDS_MAX = 600.0
POLL_SECONDS = 0.5
"""A daemon polls the queue every five seconds; a start takes half a minute, ten times as long on a busy machine."""


class Launched(msgspec.Struct, frozen=True):
    """Result of a start.

    Attributes:
        stream: Name of the stream.
        job: Dagster job of the stream.
        run_id: Dagster's id of the run; empty when there is a live writer and nothing was started.
        home: The DAGSTER_HOME of the run.
        epoch: The epoch under which the run writes.
    """

    stream: str
    job: str
    run_id: str
    home: str
    epoch: int


class StartFailed(LockstepError):
    """A requested run does not write.

    Attributes:
        stream: Name of the stream.
        run_id: Dagster's id of the run.
        reason: The outcome of the run.
    """

    def __init__(self, stream: str, run_id: str, reason: str, step: str = "") -> None:
        step = step or f"see /runs/{run_id} of the web UI; lockstep stop {stream}, if nothing is to start it again"
        super().__init__(f"stream {stream} was not started: {reason}", next_step=step)
        self.stream = stream
        self.run_id = run_id
        self.reason = reason


def start_stream(
    stream: AnyStream, settings: Settings, folder: Path, *, who: str, say: Callable[[str], None] = lambda _: None
) -> Launched:
    """Start a stream so that it runs until it is stopped, and wait until it writes.

    1. Refuse a halted stream; leave one that a never-ending run writes unchanged.
    2. Commit the desired state `running`. Without a table, and while a bounded run writes, the claim of the new run
       does that: record the request for the supervisor, in case that the run fails before it.
    3. Wait for a start in progress; otherwise launch the job.
    4. Wait until the run writes. It has a heartbeat file from 3 on, so that the supervisor starts no second run.

    Args:
        stream: The stream.
        settings: Paths of its tables.
        folder: The folder that holds the workspace.
        who: The user who starts it.
        say: Receives progress lines.

    Raises:
        StreamHalted: It waits for an operator.
        StartFailed: Its run ended, or does not start.
        EnvironmentProblem: No Dagster instance can store the run, or Dagster refused it.
    """
    home = _home(stream.name, folder)
    job = name_stream_job(stream)
    folders = StreamFolders(stream.name, settings.table_root)
    check = check_startable(folders)  # 1
    if check.never_ending:
        return Launched(stream.name, job, "", home, check.epoch)
    cause = f"lockstep start ({who})"
    if check.epoch and not check.lives:  # 2
        tags = make_automatic_tags(LOCKSTEP_START, cause, set_running(folders, check, cause))
    else:
        tags = make_start_request_tags(record_start_request(folders, cause, check.desired_version))
    with DagsterInstance.get() as instance:
        run_id = find_start_on_its_way(stream, folders, instance) or str(uuid.uuid4())
        # Heartbeats before the launch, so that the supervisor starts no second run.
        with run_heartbeat(folders.control, run_id):
            # Else a start by the supervisor or by another command is awaited.
            if instance.get_run_by_id(run_id) is None:
                start_job(stream, job, run_id, tags, folder)  # 3
            say(f"{stream.name}: run {run_id} is launched; waiting until it writes")
            epoch = await_writer(stream.name, folders, instance, run_id, say=say)  # 4
    return Launched(stream.name, job, run_id, home, epoch)


def create_dagster_storage(home: Path) -> None:
    """Create the databases of a Dagster home before web server and daemon first start.

    Two processes that create one SQLite database at the same time race, and the loser exits (seen in 3 of 15 pairs).

    Args:
        home: The folder that holds `dagster.yaml`.
    """
    with DagsterInstance.from_config(str(home)):
        pass


def find_unhealthy_daemons(home: Path) -> list[str]:
    """Daemons that the instance of a Dagster home needs and that had no recent heartbeat without an error."""
    with DagsterInstance.from_config(str(home)) as instance:
        statuses = instance.get_daemon_statuses()
    return [name for name, status in statuses.items() if status.required and not status.healthy]


class CheckRecord(msgspec.Struct, frozen=True):
    """The newest evaluation of an asset check, as Dagster shows it.

    Attributes:
        passed: Whether it passed.
        severity: "ERROR" or "WARN": how bad it would be not to pass.
        run_id: The run that evaluated it.
    """

    passed: bool
    severity: str
    run_id: str


def read_check_record(home: Path, stream: str, rule: str) -> CheckRecord | None:
    """The newest evaluation of a rule of a stream's table; None where Dagster has none.

    Args:
        home: The folder of Dagster's instance.
        stream: Name of the stream.
        rule: Id of the rule.
    """
    with DagsterInstance.from_config(str(home)) as instance:
        key = AssetCheckKey(AssetKey([stream, "table"]), rule)
        execution = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    if execution is None or execution.evaluation is None:
        return None
    return CheckRecord(execution.evaluation.passed, execution.evaluation.severity.value, execution.run_id)


def find_start_on_its_way(stream: AnyStream, folders: StreamFolders, instance: DagsterInstance) -> str | None:
    """A live run that the supervisor or another `lockstep start` requested; None without one."""
    for run in list_unfinished_runs(name_stream_job(stream), folders.control, instance):
        stored = instance.get_run_by_id(run.run_id)
        if stored is None:
            continue
        is_automatic = stored.tags.get(AUTOMATIC_TAG) in {SUPERVISOR, LOCKSTEP_START}
        if START_REQUEST_TAG not in stored.tags and not is_automatic:
            continue
        if run.stage is RunStage.QUEUED or is_run_counting(folders.control, run.run_id):
            return run.run_id
    return None


def await_writer(
    stream: str,
    folders: StreamFolders,
    instance: DagsterInstance,
    run_id: str,
    *,
    seconds_max: float = WRITE_SECONDS_MAX,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Wait until a run writes; returns its epoch.

    Args:
        stream: Name of the stream.
        folders: Its folders.
        instance: Dagster's instance.
        run_id: Dagster's id of the run.
        seconds_max: The time limit.
        say: Receives progress lines.

    Raises:
        StreamHalted: It halted instead.
        StartFailed: It ended, is not taken from the queue, has no slot there, or takes too long.
    """
    began = time.monotonic()
    note = ""
    while True:
        run = instance.get_run_by_id(run_id)
        if (epoch := find_epoch_written_by(folders.control, run_id)) is not None:
            return epoch
        waited = time.monotonic() - began
        if run is None or run.is_finished:
            return _instead_of(stream, folders, instance, run_id)
        if run.status is DagsterRunStatus.QUEUED and waited > QUEUE_SECONDS_MAX:
            last_note = note
            note = _check_queue(stream, instance, run_id, waited)
            if note and not last_note:  # once, not at every poll
                say(note)
        if waited > seconds_max:
            silence = describe_silence(f"run {run_id}, which is {run.status.value},", seconds_max, verb="write")
            raise StartFailed(stream, run_id, silence, f"{SLOW}, and goes on: lockstep status {stream} shows it")
        time.sleep(POLL_SECONDS)


def _check_queue(stream: str, instance: DagsterInstance, run_id: str, waited: float) -> str:
    """Refuse to wait for a run that is not taken from the queue before an operator does something.

    Returns:
        A note on a daemon that is late; empty without one.

    Raises:
        StartFailed: No daemon sends heartbeats, or runs of streams hold all slots, which do not end by themselves.
    """
    note = judge_daemon_silence(stream, run_id, min(waited, find_daemon_silence(instance)))
    queue = instance.get_concurrency_config().run_queue_config
    slots = -1 if queue is None else queue.max_concurrent_runs
    of_streams = RunsFilter(statuses=IN_PROGRESS_RUN_STATUSES, tags=NEVER_TOO_LONG)
    # Streams do not end, so that a slot never becomes free.
    if 0 <= slots <= instance.get_runs_count(of_streams):
        reason = (
            f"run {run_id} waits in Dagster's queue: streams hold each of the {slots} slots of max_concurrent_runs, "
            "and do not end by themselves"
        )
        step = "set concurrency.runs.max_concurrent_runs of dagster.yaml to -1, then restart the daemon: the run starts"
        raise StartFailed(stream, run_id, reason, step)
    return note


def judge_daemon_silence(stream: str, run_id: str, seconds: float) -> str:
    """A note on a daemon that has not reported for a while, seen from here; empty without one. Pure.

    Raises:
        StartFailed: It was given the time that it takes on a busy machine.
    """
    waits = f"run {run_id} waits in Dagster's queue"
    step = "dagster-daemon run (or dagster dev), if none runs: the run then starts by itself"
    if seconds > DAEMON_SECONDS_MAX:
        silence = describe_silence("Dagster's daemon", DAEMON_SECONDS_MAX, verb="report")
        raise StartFailed(stream, run_id, f"{waits}, and {silence}", step)
    if seconds < QUEUE_SECONDS_MAX:
        return ""
    return f"{waits}; Dagster's daemon has not reported for {seconds:.0f} s: {step}"


def _instead_of(stream: str, folders: StreamFolders, instance: DagsterInstance, run_id: str) -> int:
    """The epoch of the run that writes instead of an ended one.

    Raises:
        StreamHalted: The stream is halted.
        StartFailed: No run writes.
    """
    check = check_startable(folders)
    if check.never_ending:
        return check.epoch
    raise StartFailed(stream, run_id, f"run {run_id} ended: {find_end_of_run(instance, run_id)}")


def find_last_failure(home: Path, stream: str) -> str:
    """Why the newest run of a stream failed; empty if it did not.

    Args:
        home: The folder of Dagster's instance.
        stream: Name of the stream.
    """
    with DagsterInstance.from_config(str(home)) as instance:
        runs = instance.get_runs(RunsFilter(job_name=f"{stream}_stream"), limit=1)
        failed = runs and runs[0].status is DagsterRunStatus.FAILURE
        if failed:
            return f"run {runs[0].run_id[:8]}: {find_end_of_run(instance, runs[0].run_id)}"
        return ""


def find_end_of_run(instance: DagsterInstance, run_id: str) -> str:
    """Outcome of an ended run, with Dagster's reason."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return "Dagster does not know it any more"
    parts = (run.status.value, run.tags.get(OUTCOME_TAG, ""), _find_reason_of_end(instance, run_id))
    return "; ".join(part for part in parts if part)


def _find_reason_of_end(instance: DagsterInstance, run_id: str) -> str:
    for kind in ENDS:
        for event in _read_events(instance, run_id, kind):
            reason = _describe_end(event)
            if reason:
                return reason
    return ""


def _read_events(instance: DagsterInstance, run_id: str, kind: DagsterEventType) -> Iterator[DagsterEvent]:
    """The newest events of a kind, the last event first."""
    for record in instance.get_records_for_run(run_id, of_type=kind, limit=EVENTS_MAX, ascending=False).records:
        event = record.event_log_entry.dagster_event
        if event is not None:
            yield event


def _describe_end(event: DagsterEvent) -> str:
    """The reason in an event for the end of a run; empty without one."""
    data = event.event_specific_data
    by_user = getattr(data, "user_failure_data", None)
    error = getattr(data, "error", None)
    if by_user is not None and by_user.description:
        return str(by_user.description)
    if error is not None:
        return str(error.message).strip()
    if event.event_type is DagsterEventType.RUN_FAILURE:
        return event.message or ""
    return ""


def find_daemon_silence(instance: DagsterInstance) -> float:
    """Seconds since the daemon that takes runs from the queue has reported; without end if it never has."""
    status = instance.get_daemon_statuses().get(QUEUE_DAEMON)
    beat = None if status is None else status.last_heartbeat
    if beat is None:
        return math.inf
    return max(0.0, time.time() - beat.timestamp)


def _home(stream: str, folder: Path) -> str:
    here = f"or run it in this process: lockstep run {stream}"
    home = os.environ.get("DAGSTER_HOME", "")
    if not home:
        step = f"export DAGSTER_HOME=<the folder that the web UI uses>, {here}"
        raise EnvironmentProblem("DAGSTER_HOME is not set: there is no Dagster that could hold a run", next_step=step)
    if not (folder / WORKSPACE).is_file():
        step = f"go to the folder that holds {WORKSPACE}, {here}"
        raise EnvironmentProblem(f"no {WORKSPACE} in {folder}", next_step=step)
    return home


def explain_refusal(stream: AnyStream, said: str) -> EnvironmentProblem:
    """Why Dagster launched no run: the cause, without the frames that Dagster writes after it.

    Args:
        stream: The stream.
        said: The error stream of `dagster job launch`.
    """
    job = name_stream_job(stream)
    here = f"or run it in this process: lockstep run {stream.name}"
    cause = said.rpartition(CLI_ERROR)[2].split(CAUSED_BY)[-1].partition(FRAMES)[0].strip()
    if f'Job "{job}" not found' in cause:
        return EnvironmentProblem(
            f"Dagster has no job {job}: definitions.py does not name {stream.name}",
            next_step=f"add {stream.name} to STREAMS of definitions.py, reload the code location, and start it, {here}",
        )
    return EnvironmentProblem(
        f"Dagster did not launch the run: {cause}",
        next_step=f"dagster definitions validate -w {WORKSPACE} shows where; {here}",
    )


def start_job(stream: AnyStream, job: str, run_id: str, tags: Mapping[str, str], folder: Path) -> None:
    """Launch a job of Dagster.

    Args:
        stream: The stream that it runs, or one of them.
        job: Name of the job.
        run_id: Id of the new run.
        tags: Its tags.
        folder: The folder that holds the workspace.

    Raises:
        EnvironmentProblem: No Dagster instance can store the run, or Dagster refused it.
    """
    _home(stream.name, folder)
    command = [sys.executable, "-m", "dagster", "job", "launch", "-w", WORKSPACE, "-j", job]
    command += ["--run-id", run_id, "--tags", json.dumps(tags)]
    try:
        ended = run_command(command, "dagster job launch", LAUNCH_SECONDS_MAX, folder=folder)
    except TimeoutError as late:
        step = f"{SLOW}: look at the runs of the web UI, whether it begins; if not: lockstep run {stream.name}"
        raise EnvironmentProblem(str(late), next_step=step) from late
    if ended.returncode != 0:
        raise explain_refusal(stream, ended.stderr)
