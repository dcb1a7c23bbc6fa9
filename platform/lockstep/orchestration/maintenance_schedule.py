"""The schedule of a maintenance job: it requests a run, unless one of the job still waits in Dagster's queue.

Few runs of maintenance are in progress at a time (`names.MAINTENANCE`). If an hour is too short for those of all
streams, or no slot becomes free, each hour would add its surplus to the queue, without end: the same work again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import (
    DagsterRunStatus,
    DefaultScheduleStatus,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster import JobDefinition

    from lockstep.orchestration.dagster_types import AssetJob


IN_PROGRESS = (
    *(DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED),
    DagsterRunStatus.CANCELING,
)


def make_maintenance_schedule(
    job: AssetJob | JobDefinition,
    cron_schedule: str,
    *,
    name: str | None = None,
    description: str | None = None,
    request: Callable[[], RunRequest | SkipReason] = RunRequest,
    is_alone: bool = False,
) -> ScheduleDefinition:
    """A schedule that is on by default, in UTC.

    Args:
        job: The job.
        cron_schedule: When it is evaluated.
        name: Its name; by default Dagster's, `<job>_schedule`.
        description: Its description; by default that of the job.
        request: The request if no run waits.
        is_alone: Request nothing while a run is in progress either: the new run would end it.
    """
    statuses = [DagsterRunStatus.QUEUED]
    if is_alone:
        statuses += IN_PROGRESS

    def evaluate(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        of_job = RunsFilter(job_name=job.name, statuses=statuses)
        # Runs that wait would pile up behind a daemon that was away.
        if waiting := context.instance.get_run_ids(of_job, limit=1):
            where = "waits or is in progress" if is_alone else "still waits in Dagster's queue"
            return SkipReason(f"run {waiting[0][:8]} of {job.name} {where}")
        return request()

    return ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron_schedule,
        execution_fn=evaluate,
        description=description or job.description,
        default_status=DefaultScheduleStatus.RUNNING,
    )
