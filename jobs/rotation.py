"""One schedule per stream: replaces its never-ending run once a day. No logic."""

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
from lockstep.orchestration.rotation import make_rotation_cron, rotate_stream
from lockstep.settings import Settings


def rotation_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
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
        return rotate_stream(stream, settings, context.instance)

    return [rotate_run]
