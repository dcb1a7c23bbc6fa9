"""One sensor for all streams: raises alarms as evaluations of the checks `health`, and at a webhook."""

from collections.abc import Sequence

from dagster import DefaultSensorStatus, SensorDefinition, SensorEvaluationContext, SensorResult, sensor

from lockstep.dagster import STREAM_HEALTH, AnyStream, AssetJob, HealthWatcher, Settings

POLL_SECONDS = 29
"""Every 30 seconds, as the daemon polls every five. An alarm is announced by the second look in a row that sees it."""


def health_sensor(streams: Sequence[AnyStream], jobs: Sequence[AssetJob], settings: Settings) -> SensorDefinition:
    """Watches the health of the streams, and requests the jobs of checks that never ran; starts no stream."""
    watcher = HealthWatcher(streams, settings)

    @sensor(
        name=STREAM_HEALTH,
        jobs=jobs,
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description="Raises alarms of the streams before data is lost: docs/health.md; requests first checks.",
    )
    def poll_alarms(context: SensorEvaluationContext) -> SensorResult:
        return watcher.tick(context)

    return poll_alarms
