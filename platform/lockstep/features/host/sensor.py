"""I/O of the sensor of a host: reads its inputs and carries out its decision on tables, heartbeats and Dagster."""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING

from dagster import RunRequest, RunsFilter, SensorResult, SkipReason

from lockstep.boot import read_boot_id
from lockstep.control.heartbeat import forget_run
from lockstep.control.start_request import read_start_request
from lockstep.errors import LockstepError
from lockstep.features.host.host import choose_streams
from lockstep.features.host.presence import find_heartbeat_folder
from lockstep.features.host.supervision import HostCursor, HostDemand, decide_hosting
from lockstep.features.host.termination import stop_streams
from lockstep.foreign_errors import describe_error
from lockstep.operations.stream_table import try_read_head
from lockstep.orchestration.names import AUTOMATIC_TAG, CAUSE_TAG, OUTCOME_TAG, SUPERVISOR, name_host_job
from lockstep.orchestration.run_lifecycle import was_terminated_by_user
from lockstep.orchestration.supervisor_sensor import LOST, close_lost_run, list_unfinished_runs
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import DagsterInstance, SensorEvaluationContext

    from lockstep.declare.stream import AnyStream
    from lockstep.features.host.supervision import HostDecision
    from lockstep.settings import Settings

LOG = logging.getLogger("lockstep")


class HostSupervisor:
    """Keeps the host of a group running while one of its streams is to run."""

    def __init__(self, group: str, streams: Sequence[AnyStream], settings: Settings) -> None:
        """Supervise the host of these streams' group.

        A group without streams, such as a mistyped name in the settings, must not keep all others from being loaded:
        the sensor shows the reason.
        """
        self._group = group
        self._root = settings.table_root
        self._missing = ""
        try:
            chosen = choose_streams(streams, group)
        except LockstepError as error:
            chosen = ()
            self._missing = f"dagster.hosts of the settings names {group}: {error}"
            LOG.warning("%s", self._missing)
        self._folders = [StreamFolders(each.name, settings.table_root) for each in chosen]
        self._heartbeats = find_heartbeat_folder(settings.table_root, group)

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Observe the hosts of the group, decide, and carry the decision out."""
        if self._missing:
            return SensorResult(skip_reason=SkipReason(self._missing), cursor=context.cursor)
        cursor, warning = HostCursor.read(context.cursor)
        if warning:
            context.log.warning(warning)
        instance = context.instance
        runs = list_unfinished_runs(name_host_job(self._group), self._heartbeats, instance)
        decision = decide_hosting(
            runs,
            cursor,
            time.monotonic(),
            boot=read_boot_id() or "",
            read_demand=lambda: self._read_demand(context),
        )
        return self._carry_out(instance, decision)

    def _read_demand(self, context: SensorEvaluationContext) -> HostDemand:
        terminated = _find_terminated(context.instance, self._group)
        if terminated:
            return HostDemand((), terminated)
        return HostDemand(tuple(each.stream for each in self._folders if self._is_wanted(each, context)))

    def _is_wanted(self, folders: StreamFolders, context: SensorEvaluationContext) -> bool:
        try:
            head = try_read_head(folders)
            if head is not None and head.desired is Desired.RUNNING:
                return True
            return read_start_request(folders, head) is not None
        except Exception as error:  # the other streams of the group are to run
            text, trace = describe_error(error, folders.stream)
            context.log.warning("stream %s: %s", folders.stream, text, exc_info=trace)
            return False

    def _carry_out(self, instance: DagsterInstance, decision: HostDecision) -> SensorResult:
        """Carry a decision out.

        1. Mark dead runs as failed in Dagster.
        2. Stop the streams of a run that a person terminated and whose process ended before it could.
        3. Request a run.
        """
        for run_id in decision.close:
            close_lost_run(instance, run_id)  # 1
        for run_id in decision.forget:
            forget_run(self._heartbeats, run_id)
        if decision.stop:
            launched = dict.fromkeys((each.stream for each in self._folders), "")
            stop_streams(self._root, self._group, launched, instance, decision.stop)  # 2
            instance.add_run_tags(decision.stop, {OUTCOME_TAG: LOST})
        cursor = decision.cursor.encode()
        if not decision.cause:
            return SensorResult(skip_reason=SkipReason(decision.explanation), cursor=cursor)
        request = RunRequest(  # 3
            run_key=f"host-{self._group}-{uuid.uuid4()}",
            job_name=name_host_job(self._group),
            tags={CAUSE_TAG: decision.cause, AUTOMATIC_TAG: SUPERVISOR},
        )
        return SensorResult(run_requests=[request], cursor=cursor)


def _find_terminated(instance: DagsterInstance, group: str) -> str:
    """The newest run of a host, if a person terminated it and nothing has recorded that; otherwise empty."""
    runs = instance.get_runs(RunsFilter(job_name=name_host_job(group)), limit=1)
    ended = [run.run_id for run in runs if OUTCOME_TAG not in run.tags and was_terminated_by_user(instance, run.run_id)]
    return ended[0] if ended else ""
