"""Refuses, watches, stops and ends runs in Dagster.

| outcome of the engine  | Dagster shows | because                                                      |
|------------------------|---------------|--------------------------------------------------------------|
| ended, handed over     | SUCCESS       | planned                                                      |
| fenced                 | SUCCESS, tag  | another run writes; nothing to repair or restart             |
| not wanted any more    | SUCCESS, tag  | the desired state changed before the run of a sensor began   |
| stopped                | CANCELED      | a person asked; or a signal, and the stream starts again     |
| integrity lost, halted | FAILURE, tags | no retry: an operator must look and resume                   |
| any other error        | FAILURE       | may be started again                                         |

Terminate reaches a process by a signal from the code server that launched it. A run of the command line has none,
and the code server of a run may be gone: Dagster then only marks the run. So the process also polls its own status.

Batches are not materializations, or every minute the table's check would show as outdated. The table is
materialized by a run that ends, and by its check (docs/decisions/0013). An event costs 25 to 80 ms and some kB of
Dagster's storage, so a batch gets no event. Batches report on the run's thread; only the main thread calls
Dagster.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from dagster import (
    AssetMaterialization,
    AssetObservation,
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterRunStatus,
    Failure,
    MaterializeResult,
    MetadataValue,
)

from lockstep.control.heartbeat import Phase, is_writer_alive, read_heartbeat
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.metrics import BatchReport, ReportWindow
from lockstep.errors import Fenced, LockstepError
from lockstep.foreign_errors import explain_errors
from lockstep.operations.lifecycle import read_desired_state, set_by_claim
from lockstep.orchestration.names import INTERRUPTED_TAG, OUTCOME_TAG, TERMINATED_BY_TAG, name_stream_job
from lockstep.orchestration.request_user import find_user
from lockstep.orchestration.run_statuses import OVER
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from dagster import (
        AssetCheckExecutionContext,
        AssetExecutionContext,
        AssetKey,
        DagsterInstance,
        DagsterRun,
        OpExecutionContext,
    )

    from lockstep.declare.stream import AnyStream
    from lockstep.engine.driver.main_thread import StopSignal
    from lockstep.integrity.resume_options import StreamHalted
    from lockstep.orchestration.dagster_types import RawMetadataValue

LOG = logging.getLogger("lockstep")


NO_RETRY = {"dagster/max_retries": "0"}
"""The tag by which Dagster's own run retries ignore a run."""
SKIPPED = "skipped"
"""Metadata of a materialization that needed no run, and the outcome of such a run."""
REPORT_SECONDS = 60.0
"""Fresh enough for live monitoring; 1,440 events a day."""
REPORTS_MAX = 10_000
"""Batches kept for an event that Dagster's storage does not take, the newest: some hours of them, some 10 MB."""


def end_run(
    context: AssetExecutionContext, progress: RunProgress, outcome: RunOutcome, reason: str, *, never_ending: bool
) -> MaterializeResult[None] | None:
    """End a run that ended without an error.

    A bounded run materializes the table. A never-ending one leaves that to the check: only the writer changes,
    and a passed check stays visible.

    Raises:
        DagsterExecutionInterruptedError: It was stopped; Dagster shows it as canceled.
    """
    context.instance.add_run_tags(context.run.run_id, {OUTCOME_TAG: outcome.value})
    if outcome is not RunOutcome.STOPPED and not never_ending:
        return MaterializeResult(metadata=progress.final(outcome.value))
    progress.log_final(outcome.value)
    if outcome is not RunOutcome.STOPPED:
        return None
    raise interrupt_run(context, f"stopped ({reason}); the next start goes on from the last commit")


def interrupt_run(
    context: AssetExecutionContext | AssetCheckExecutionContext | OpExecutionContext, message: str
) -> DagsterExecutionInterruptedError:
    """The end of a stopped run, which Dagster shows as canceled.

    A stop by a signal alone would be a failure in Dagster.
    """
    instance = context.instance
    run = context.run
    if not was_terminated_by_user(instance, run.run_id):
        instance.add_run_tags(run.run_id, {INTERRUPTED_TAG: run.run_id})
        instance.report_run_canceling(run, "A signal stops the run; no person has terminated it.")
    return DagsterExecutionInterruptedError(message)


def report_halt(context: AssetExecutionContext, error: StreamHalted) -> Failure:
    """The failure of a run that may not be restarted before an operator has read the findings; it names no session."""
    error = error.without_sessions()
    context.instance.add_run_tags(context.run.run_id, {OUTCOME_TAG: "halted", **NO_RETRY})
    findings = [msgspec.to_builtins(finding) for finding in error.findings]
    metadata: dict[str, RawMetadataValue] = {"findings": MetadataValue.json(findings), "next": error.next_step}
    return Failure(description=str(error), metadata=metadata, allow_retries=False)


def report_wrong_config(context: AssetExecutionContext, error: LockstepError) -> Failure:
    """The failure of a run that fails again as long as its configuration is the same."""
    context.instance.add_run_tags(context.run.run_id, NO_RETRY)
    return Failure(description=str(error), metadata={"next": error.next_step}, allow_retries=False)


@contextmanager
def report_failures(stream: str = "") -> Generator[None]:
    """End a run that may be restarted by an error of the block; a defect stays as it is, with its traceback.

    Args:
        stream: Its name, for the next step; empty for a run of several streams.

    Raises:
        Failure: With problem and next step.
    """
    try:
        with explain_errors(stream):
            yield
    except LockstepError as error:
        raise Failure(description=str(error), metadata={"next": error.next_step}) from error


def report_up_to_date(stream: AnyStream, root: Path, context: AssetExecutionContext) -> MaterializeResult[None] | None:
    """Result of a bounded run while a never-ending run writes; None without such a run.

    It may not replace that run and then end, and it has nothing to add: so it leaves the table unchanged and
    succeeds, and downstream assets continue.
    """
    folders = StreamFolders(stream.name, root)
    if not is_never_ending_run_alive(folders):
        return None
    # It would replace that run and then end, and has nothing to add: downstream assets continue.
    note = f"a never-ending run keeps {stream.name} up to date; this run left the table alone"
    context.log.info("%s (to hand over to a new one, launch the job %s)", note, name_stream_job(stream))
    context.instance.add_run_tags(context.run.run_id, {OUTCOME_TAG: SKIPPED})
    head = OutputLog(folders.table).base().head
    last = read_heartbeat(folders.control, head.epoch)
    live: RawMetadataValue = "of a host, of a command line or of another Dagster instance"
    if last is not None and last.run_id and context.instance.get_run_by_id(last.run_id) is not None:
        live = MetadataValue.dagster_run(last.run_id)
    return MaterializeResult(metadata={SKIPPED: note, "live_run": live, "epoch": head.epoch, "batch": head.batch})


def require_persistent_instance(name: str, instance: DagsterInstance, run: DagsterRun) -> None:
    """Refuse a never-ending run on an ephemeral instance: it would be invisible and could not be stopped.

    Args:
        name: Name of the stream or host.
        instance: Dagster's instance.
        run: The run.

    Raises:
        Failure: With the reason and the alternative.
    """
    alone = run.remote_job_origin is None and not os.environ.get("DAGSTER_HOME")
    if instance.is_ephemeral or alone:
        raise Failure(
            f"{name} would run without end on a Dagster instance that ends with this command\n"
            "  next: export DAGSTER_HOME=<an existing folder> and run it again, or give the run "
            "configuration available_now: true",
            allow_retries=False,
        )


def is_never_ending_run_alive(folders: StreamFolders) -> bool:
    """Whether a live never-ending run holds the table; takes a second when one does."""
    if not delta_log.has_log(folders.table):
        return False
    epoch = OutputLog(folders.table).base().head.epoch
    last = read_heartbeat(folders.control, epoch)
    if last is None or not last.never_ending or last.phase is not Phase.WRITING:
        return False
    return is_writer_alive(folders.control, epoch)


class RunStatusPoller:
    """Polls the run's status in Dagster. Never decides who may write: the epoch does."""

    def __init__(self, instance: DagsterInstance, run_id: str, *, interval_seconds: float = 5.0) -> None:
        self._instance = instance
        self._run_id = run_id
        self._interval_seconds = interval_seconds
        self._asked = time.monotonic()

    def tick(self, stopping: StopSignal) -> None:
        """Request a stop when the run is terminated, or has ended for Dagster (a time-out; deleted)."""
        if time.monotonic() - self._asked < self._interval_seconds:
            return
        self._asked = time.monotonic()
        try:
            run = self._instance.get_run_by_id(self._run_id)
        except Exception:  # an error of Dagster's storage does not end a stream
            LOG.warning("Dagster's storage does not answer", exc_info=True)
            return
        if run is None or run.status in OVER:
            stopping.ask("Dagster holds this run for over")
        elif run.status is DagsterRunStatus.CANCELING:
            stopping.ask("terminated in Dagster")

    def was_terminated_by_user(self) -> bool:
        """Whether a person asked Dagster to terminate the run; a signal alone does not count."""
        return was_terminated_by_user(self._instance, self._run_id)


def was_terminated_by_user(instance: DagsterInstance, run_id: str) -> bool:
    """Whether a person asked Dagster to terminate a run, even if its process died before it could act."""
    run = instance.get_run_by_id(run_id)
    if run is None or run.tags.get(INTERRUPTED_TAG) == run_id:
        return False
    if run.status in {DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED}:
        return True
    return bool(instance.get_records_for_run(run_id, of_type=DagsterEventType.RUN_CANCELING, limit=1).records)


def describe_termination(instance: DagsterInstance, run_id: str) -> str:
    """The place in which the run was terminated, and the user if that is known."""
    run = instance.get_run_by_id(run_id)
    user = "" if run is None else find_user(run, TERMINATED_BY_TAG)
    if user:
        return f"terminated in Dagster by {user}"
    return "terminated in Dagster"


def record_stop(folders: StreamFolders, run_id: str, reason: str) -> bool:
    """Commit the desired state `stopped` after a person terminated a run; returns whether it was committed.

    The commit is a claim: it needs no live writer, and fences the run's last batch if that was
    abandoned and may end late. It is omitted when another run writes: a run terminated before its
    handover, or after it, was not the one that keeps the stream running.

    Args:
        folders: Folders of the stream.
        run_id: The terminated run.
        reason: Who terminated it, and where.

    Raises:
        TableError: The table does not match its head.
    """
    if not delta_log.has_log(folders.table):
        return False
    output = OutputLog(folders.table)
    head = output.base().head
    if read_desired_state(head) in {Desired.STOPPED, Desired.HELD}:
        return False
    last = read_heartbeat(folders.control, head.epoch)
    if last is not None and last.run_id != run_id and is_writer_alive(folders.control, head.epoch):
        return False
    return stop_if_current(output, head.epoch, reason)


def stop_if_current(output: OutputLog, epoch: int, reason: str) -> bool:
    """Commit the desired state `stopped` if this epoch still holds the table; returns whether it was committed.

    Raises:
        TableError: The table does not match its head.
    """
    try:
        set_by_claim(output, epoch, Desired.STOPPED, reason)
    except Fenced:
        LOG.info("another run has taken over: the stream goes on")
        return False
    return True


class RunProgress:
    """Collects the batches of a run and reports them in windows."""

    def __init__(
        self,
        context: AssetExecutionContext | OpExecutionContext,
        key: AssetKey,
        every_seconds: float = REPORT_SECONDS,
    ) -> None:
        self._context = context
        self._key = key
        self._every = every_seconds
        self._lock = threading.Lock()
        self._window = ReportWindow()  # the first batch is reported at once
        self._reported = -math.inf
        self._began = time.monotonic()
        self._batches = self._messages = self._rows = 0

    def add(self, report: BatchReport) -> None:
        """Add a committed batch; called on the run's thread."""
        with self._lock:
            self._window.reports.append(report)
            self._batches += 1
            self._messages += report.counts.messages
            self._rows += report.rows

    def tick(self) -> None:
        """Report when due; called on the main thread."""
        if time.monotonic() - self._reported < self._every:
            return
        window = self._take()
        if not window.reports:
            return
        self._reported = time.monotonic()
        try:
            self._log(window.summary())
        except Exception:  # an error of Dagster's storage does not end a stream
            LOG.warning("Dagster's storage takes no event: these figures come with the next ones", exc_info=True)
            self._put_back(window)

    def final(self, outcome: str) -> dict[str, float | int | str]:
        """Metrics of the last window and of the whole run, for the run's last event."""
        window = self._take()
        last = window.summary() if window.reports else {}
        return {
            **last,
            "outcome": outcome,
            "run_batches": self._batches,
            "run_messages": self._messages,
            "run_rows": self._rows,
            "run_seconds": round(time.monotonic() - self._began, 3),
        }

    def log_final(self, outcome: str, reason: str = "") -> None:
        """Report the end of a run that does not materialize the table.

        Args:
            outcome: Its outcome.
            reason: The error that ended it.
        """
        metrics = self.final(outcome)
        if reason:
            metrics["reason"] = reason
        self._log(metrics)

    def _take(self) -> ReportWindow:
        with self._lock:
            window = self._window
            self._window = ReportWindow()
        return window

    def _put_back(self, window: ReportWindow) -> None:
        with self._lock:
            self._window.reports[:0] = window.reports
            del self._window.reports[:-REPORTS_MAX]

    def _log(self, numbers: Mapping[str, float | int | str]) -> None:
        # For readability: three decimal places are enough.
        shown = {name: round(value, 3) if isinstance(value, float) else value for name, value in numbers.items()}
        is_first = self._context.instance.get_latest_materialization_event(self._key) is None
        # A table without a materialization would look as if it had never existed.
        make_event = AssetMaterialization if is_first else AssetObservation
        self._context.log_event(make_event(self._key, metadata=shown))
        # The context keeps every event until the step ends, which may never happen.
        deque(self._context.consume_events(), maxlen=0)
