"""One sensor for all streams: raises alarms as evaluations of the checks `health`, and at a webhook."""

from collections.abc import Sequence

from dagster import (
    DefaultSensorStatus,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from lockstep.declare.stream import AnyStream
from lockstep.features.health.policy import HealthCursor
from lockstep.features.health.sensor import OutageNotes, observe_health
from lockstep.features.health.webhook import Webhook
from lockstep.operations.tables import SharedCluster, StreamHandle
from lockstep.orchestration import names
from lockstep.orchestration.definitions import AssetJob
from lockstep.orchestration.shared_tick import KAFKA_SECONDS_MAX, TICK_SECONDS_MAX, look_at_streams
from lockstep.settings import Settings

POLL_SECONDS = 29
"""Every 30 seconds, as the daemon polls every five. An alarm is announced by the second look in a row that sees it."""
OUTAGE_SECONDS = 15.0
"""A tick to which Kafka does not answer asks again after this time, so that an outage is announced within a minute."""


def health_sensor(streams: Sequence[AnyStream], jobs: Sequence[AssetJob], settings: Settings) -> SensorDefinition:
    """Looks at the health of the streams, and requests the jobs of checks that never ran; starts no stream."""
    cluster, outages = SharedCluster(settings.kafka, KAFKA_SECONDS_MAX), OutageNotes()

    @sensor(
        name=names.STREAM_HEALTH,
        jobs=jobs,
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description="Raises alarms of the streams before data is lost: docs/health.md; requests first checks.",
    )
    def poll_alarms(context: SensorEvaluationContext) -> SensorResult:
        webhook = Webhook(settings.health.secrets.get("webhook", ""))

        def look(stream: AnyStream, cursor: HealthCursor) -> SensorResult:
            handle = StreamHandle(stream, settings, kafka_seconds_max=KAFKA_SECONDS_MAX, shared=cluster)
            return observe_health(handle, context.instance, cursor, webhook, outages, is_kafka_away=is_away)

        cluster.ask_again()
        is_away = cluster.stays_away(OUTAGE_SECONDS)
        # Dagster gives up a tick of 60 seconds: the question that was repeated has taken half of them.
        seconds_max = TICK_SECONDS_MAX / 2 if is_away else TICK_SECONDS_MAX
        # First checks wait in Dagster's queue, and hold up no alarm.
        starts_max = len(streams)
        result = look_at_streams(context, streams, HealthCursor, look, seconds_max=seconds_max, starts_max=starts_max)
        if webhook.problem:
            context.log.warning("the webhook did not take all, it is tried again: %s", webhook.problem)
        return result

    return poll_alarms
