"""The job of a host: one run of Dagster runs all streams of a group.

The run has no asset outputs: it logs materializations and observations of each stream's table. A stream that halts or
fails leaves the run green; its asset shows the outcome, and its check `health` the halt.

| end of the host                    | Dagster shows | desired state of the streams                  |
|------------------------------------|---------------|-----------------------------------------------|
| Terminate                          | CANCELED      | stopped, with the host and the user as reason |
| a signal, as `make down` sends it  | CANCELED      | as before: the sensor starts the host again   |
| a later host has taken all streams | SUCCESS       | as before                                     |
| Spark is gone                      | FAILURE       | as before                                     |
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

from dagster import (
    DagsterInstance,
    Failure,
    JobDefinition,
    OpExecutionContext,
    RunRequest,
    RunsFilter,
    SkipReason,
    in_process_executor,
    job,
    op,
)

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.main_thread import StopSignal
from lockstep.engine.driver.metrics import BatchReport
from lockstep.features.host.host import REPLACED, Host, HostLaunch, choose_streams, list_hosted
from lockstep.features.host.keeper import HostReports, RunEnd
from lockstep.features.host.termination import stop_streams
from lockstep.operations.durations import format_duration
from lockstep.orchestration.names import (
    AUTOMATIC_TAG,
    CAUSE_TAG,
    NEVER_TOO_LONG,
    OUTCOME_TAG,
    ROTATION,
    make_table_key,
    name_host_job,
)
from lockstep.orchestration.request_user import find_user
from lockstep.orchestration.rotation import ROTATION_AGE_MIN
from lockstep.orchestration.run_lifecycle import (
    LOG,
    RunProgress,
    RunStatusPoller,
    interrupt_run,
    report_failures,
    require_persistent_instance,
)
from lockstep.orchestration.run_statuses import UNFINISHED
from lockstep.settings import Settings

HANDED_OVER = "handed over"
STOPPED = "stopped"


def make_host_job(group: str, streams: Sequence[AnyStream], settings: Settings) -> JobDefinition:
    """The job `host_<group>`.

    Args:
        group: Name of the group.
        streams: All streams; those of the group run.
        settings: Addresses of Kafka and the tables, and Spark.
    """
    names = ", ".join(stream.name for stream in list_hosted(streams, group)) or "nothing: no stream is of this group"
    description = f"Runs {names} in one process, until it is stopped or handed over."

    @op(description=description)
    def run_streams(context: OpExecutionContext) -> None:
        with report_failures():
            chosen = choose_streams(streams, group)
        require_persistent_instance(f"host {group}", context.instance, context.run)
        _HostRun(context, group, chosen, settings).run()

    @job(
        name=name_host_job(group),
        description=description,
        tags=NEVER_TOO_LONG,
        executor_def=in_process_executor,
    )
    def host() -> None:
        run_streams()

    return host


def rotate_host(group: str, instance: DagsterInstance) -> RunRequest | SkipReason:
    """Request the successor of a host's run, or return the reason to skip.

    Args:
        group: Name of the group.
        instance: Dagster's instance.
    """
    runs = instance.get_run_records(RunsFilter(job_name=name_host_job(group), statuses=UNFINISHED))
    if not runs:
        return SkipReason(f"host {group} does not run in this Dagster")
    age = time.time() - max(run.start_time or run.create_timestamp.timestamp() for run in runs)
    if age < ROTATION_AGE_MIN.total_seconds():
        return SkipReason(f"the newest run of host {group} is {format_duration(age)} old")
    cause = f"{ROTATION} of a run of {format_duration(age)}"
    return RunRequest(
        run_key=f"host-{group}-rotation-{runs[0].dagster_run.run_id}",
        tags={CAUSE_TAG: cause, AUTOMATIC_TAG: ROTATION},
    )


class _HostRun:
    """One host inside one run of Dagster."""

    def __init__(
        self, context: OpExecutionContext, group: str, streams: Sequence[AnyStream], settings: Settings
    ) -> None:
        self._context = context
        self._group = group
        self._root = settings.table_root
        self._reports = DagsterReports(context, streams)
        run = context.run
        user = find_user(run)
        by = f", by {user}" if user else ""
        cause = run.tags.get(CAUSE_TAG, f"Dagster run {run.run_id}{by}")
        launch = HostLaunch(f"host {group} ({cause})", run.run_id, ends_replaced=True)
        self._host = Host(group, streams, settings, launch=launch, reports=self._reports)

    def run(self) -> None:
        """Run the host, and end the run accordingly.

        Raises:
            DagsterExecutionInterruptedError: Stopped.
            Failure: Spark is gone, or the table root does not exist.
        """
        context = self._context
        try:
            with report_failures():
                ended = self._host.run()
        except Failure:
            self._record_termination()
            raise
        finally:
            self._reports.flush()
        if ended.reason == REPLACED:
            context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: HANDED_OVER})
            return
        self._record_termination()
        context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: STOPPED})
        raise interrupt_run(context, f"stopped ({ended.reason}); each stream continues from its last commit")

    def _record_termination(self) -> None:
        """Stop each stream by name if a person terminated the run; a signal alone changes nothing."""
        if self._reports.own_run.was_terminated_by_user():
            launched = self._host.list_launched()
            stop_streams(self._root, self._group, launched, self._context.instance, self._context.run_id)


class DagsterReports(HostReports):
    """Logs the batches and ends of each stream as events of its table, on the main thread.

    Attributes:
        own_run: Polls the status of the run.
    """

    def __init__(self, context: OpExecutionContext, streams: Sequence[AnyStream]) -> None:
        """Nothing is logged yet."""
        self.own_run = RunStatusPoller(context.instance, context.run_id)
        self._context = context
        self._keys = {stream.name: make_table_key(stream) for stream in streams}
        self._lock = threading.Lock()
        self._progress = {name: RunProgress(context, key) for name, key in self._keys.items()}
        self._ended = deque[tuple[RunProgress, RunEnd]]()

    def note_batch(self, stream: str, report: BatchReport) -> None:
        """Take a committed batch."""
        with self._lock:
            self._progress[stream].add(report)

    def note_end(self, end: RunEnd) -> None:
        """Take the end of a run; the next run has its own figures."""
        with self._lock:
            self._ended.append((self._progress[end.stream], end))
            self._progress[end.stream] = RunProgress(self._context, self._keys[end.stream])

    def tick(self, stopping: StopSignal) -> None:
        """Log events that are due, and stop the host if its run is over in Dagster."""
        self.flush()
        for progress in self._progress.values():
            progress.tick()
        self.own_run.tick(stopping)

    def flush(self) -> None:
        """Log the ends of runs."""
        while self._ended:
            progress, end = self._ended[0]
            try:
                progress.log_final(end.outcome, end.reason)
            except Exception:  # noqa: BLE001  # an error of Dagster's storage does not end a stream
                LOG.warning("Dagster's storage takes no event: the end of a run is logged later", exc_info=True)
                return
            self._ended.popleft()
