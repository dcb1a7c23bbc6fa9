"""One job per group of `dagster.hosts` of the settings: runs all its streams in one process, replaced once a day."""

from collections.abc import Iterable

from dagster import (
    DefaultScheduleStatus,
    JobDefinition,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)

from lockstep.dagster import (
    AnyStream,
    Settings,
    make_host_job,
    make_rotation_cron,
    name_host_job,
    name_host_rotation,
    rotate_host,
)


def host_jobs(streams: Iterable[AnyStream], settings: Settings) -> list[JobDefinition]:
    """The jobs; none without such groups."""
    declared = tuple(streams)
    return [make_host_job(group, declared, settings) for group in settings.dagster.hosts]


def host_schedules(settings: Settings) -> list[ScheduleDefinition]:
    """The rotation of each of these jobs."""
    return [_rotation_schedule(group) for group in settings.dagster.hosts]


def _rotation_schedule(group: str) -> ScheduleDefinition:
    @schedule(
        name=name_host_rotation(group),
        job_name=name_host_job(group),
        cron_schedule=make_rotation_cron(group),
        default_status=DefaultScheduleStatus.RUNNING,
        description=f"Replaces the run of host {group} by a handover, if it is older than half a day.",
    )
    def rotate_run(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        return rotate_host(group, context.instance)

    return rotate_run
