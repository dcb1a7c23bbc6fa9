"""One sensor per stream: restarts it when topics appear that its run does not read."""

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
from lockstep.orchestration.restart_policy import decide_restart, read_cursor
from lockstep.orchestration.topics_sensor import make_sensor_result, observe_assets, read_inputs
from lockstep.settings import Settings

POLL_SECONDS = 10
KAFKA_SECONDS_MAX = 10.0
"""Dagster kills a tick that waits longer; the next one comes soon."""


def topics_sensor(stream: AnyStream, settings: Settings) -> SensorDefinition:
    """Looks for new topics of a stream that its run does not adopt: it is handed over, or a bounded run reads them."""

    @sensor(
        name=names.name_topics_sensor(stream),
        job_name=names.name_stream_job(stream),
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Starts {stream.name} again for topics that match {stream.topics.pattern} and that no run reads.",
    )
    def poll_topics(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        cursor, warning = read_cursor(context.cursor)
        if warning:
            context.log.warning(warning)
        try:
            handle = StreamHandle(stream, settings, kafka_seconds_max=KAFKA_SECONDS_MAX)
            seen = read_inputs(handle, context.instance)
            observed = observe_assets(handle, context.instance, cursor)
        except LockstepError as error:  # the cursor stays as it was; the next look may succeed
            return SkipReason(str(error))
        return make_sensor_result(stream, decide_restart(seen, cursor, time.time()), observed)

    return poll_topics
