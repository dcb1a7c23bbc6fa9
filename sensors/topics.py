"""One sensor for all streams: restarts each when topics appear that its run does not read."""

from collections.abc import Sequence

from dagster import DefaultSensorStatus, SensorDefinition, SensorEvaluationContext, SensorResult, sensor

from lockstep.dagster import STREAM_TOPICS, AnyStream, AssetJob, Settings, TopicsWatcher

POLL_SECONDS = 9
"""Every ten seconds: the daemon polls every five, and skips a poll that comes a moment too early."""


def topics_sensor(streams: Sequence[AnyStream], jobs: Sequence[AssetJob], settings: Settings) -> SensorDefinition:
    """Watches for new topics that no run adopts: a stream's run is handed over, or a bounded one reads them."""
    watcher = TopicsWatcher(streams, settings)

    @sensor(
        name=STREAM_TOPICS,
        jobs=jobs,
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts a stream again for topics that match its pattern and that no run reads.",
    )
    def poll_topics(context: SensorEvaluationContext) -> SensorResult:
        return watcher.tick(context)

    return poll_topics
