"""One sensor per stream: starts it when its desired state is running and it has no live writer."""

import time

from dagster import (
    DefaultSensorStatus,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.operations.tables import StreamHandle
from lockstep.orchestration import names
from lockstep.orchestration.supervisor_policy import decide_supervision, read_supervisor_cursor
from lockstep.orchestration.supervisor_sensor import carry_out, observe_runs
from lockstep.settings import Settings

POLL_SECONDS = 4
"""The daemon polls every five seconds: a longer interval than this would skip every other poll."""


def supervisor_sensor(stream: AnyStream, settings: Settings) -> SensorDefinition:
    """Keeps a stream running: closes dead runs and starts a new one, with growing delays after failed starts."""

    @sensor(
        name=names.name_supervisor_sensor(stream),
        job_name=names.name_stream_job(stream),
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Starts {stream.name} when its desired state is running and no run of it lives.",
    )
    def supervise(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        cursor, warning = read_supervisor_cursor(context.cursor)
        if warning:
            context.log.warning(warning)
        try:
            handle = StreamHandle(stream, settings)
            seen = observe_runs(handle, context.instance, cursor)
            decision = decide_supervision(seen, cursor, time.monotonic())
            return carry_out(handle, context.instance, decision)
        except LockstepError as error:  # the cursor stays as it was; the next look may succeed
            return SkipReason(str(error))

    return supervise
