"""One schedule per stream: replaces its never-ending run once a day. No logic."""

from datetime import timedelta

from dagster import (
    DefaultScheduleStatus,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.orchestration.rotation import ROTATION_AGE_MIN, make_rotation_cron, rotate_stream
from lockstep.settings import Settings


def rotation_schedules(
    stream: AnyStream, settings: Settings, age_min: timedelta = ROTATION_AGE_MIN
) -> list[ScheduleDefinition]:
    """A handover a day, in the night."""

    @schedule(
        name=names.name_rotation_schedule(stream),
        job_name=names.name_stream_job(stream),
        cron_schedule=make_rotation_cron(stream),
        default_status=DefaultScheduleStatus.RUNNING,
        description=(
            f"Replaces the never-ending run of {stream.name} by a handover, if it is older than half a day. The old "
            "run ends with success, and Dagster's storage can be pruned of it."
        ),
    )
    def rotate_run(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        return rotate_stream(stream, settings, context.instance, age_min=age_min)

    return [rotate_run]
