"""One schedule per stream: replaces its never-ending run once a day. No logic."""

from dagster import (
    DefaultScheduleStatus,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)

from lockstep.dagster import (
    AnyStream,
    Settings,
    make_rotation_cron,
    name_rotation_schedule,
    name_stream_job,
    rotate_stream,
)


def rotation_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """A handover a day, in the night."""

    @schedule(
        name=name_rotation_schedule(stream),
        job_name=name_stream_job(stream),
        cron_schedule=make_rotation_cron(stream.name),
        default_status=DefaultScheduleStatus.RUNNING,
        description=(
            f"Replaces the never-ending run of {stream.name} by a handover, if it is older than half a day. The old "
            "run ends with success, and Dagster's storage can be pruned of it."
        ),
    )
    def rotate_run(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        return rotate_stream(stream, settings, context.instance)

    return [rotate_run]
