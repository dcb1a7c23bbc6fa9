"""One sensor per stream: raises alarms as evaluations of the check `health`, and at a webhook."""

from dagster import (
    DefaultSensorStatus,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from lockstep.declare.stream import AnyStream
from lockstep.operations.tables import SharedCluster, StreamHandle
from lockstep.orchestration import names
from lockstep.orchestration.health_policy import read_health_cursor
from lockstep.orchestration.health_sensor import observe_health
from lockstep.settings import Settings

POLL_SECONDS = 30
"""An alarm is announced by the second look in a row that sees it: within a minute."""
KAFKA_SECONDS_MAX = 5.0
"""Other sensors wait for a look at a Kafka that does not answer."""


def health_sensor(stream: AnyStream, settings: Settings) -> SensorDefinition:
    """Looks at the health of a stream; starts nothing."""
    cluster = SharedCluster(settings.kafka, KAFKA_SECONDS_MAX)

    @sensor(
        name=names.name_health_sensor(stream),
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Raises alarms of {stream.name} before data is lost: docs/health.md.",
    )
    def poll_alarms(context: SensorEvaluationContext) -> SensorResult:
        cursor, warning = read_health_cursor(context.cursor)
        if warning:
            context.log.warning(warning)
        handle = StreamHandle(stream, settings, kafka_seconds_max=KAFKA_SECONDS_MAX, shared=cluster)
        result, problem = observe_health(handle, context.instance, cursor)
        if problem:
            context.log.warning("the webhook of %s took nothing, it is tried again: %s", stream.name, problem)
        return result

    return poll_alarms
