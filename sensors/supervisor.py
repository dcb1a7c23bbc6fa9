"""One sensor for all streams: starts each when its desired state is running and it has no live writer."""

from collections.abc import Sequence

from dagster import DefaultSensorStatus, SensorDefinition, SensorEvaluationContext, SensorResult, sensor

from lockstep.dagster import STREAM_SUPERVISOR, AnyStream, AssetJob, Settings, StreamSupervisor

POLL_SECONDS = 4
"""The daemon polls every five seconds: a longer interval than this would skip every other poll."""


def supervisor_sensor(streams: Sequence[AnyStream], jobs: Sequence[AssetJob], settings: Settings) -> SensorDefinition:
    """Keeps streams running: closes dead runs and starts new ones, with growing delays after failed starts."""
    supervisor = StreamSupervisor(streams, settings)

    @sensor(
        name=STREAM_SUPERVISOR,
        jobs=jobs,
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts each stream whose desired state is running and of which no run lives.",
    )
    def supervise(context: SensorEvaluationContext) -> SensorResult:
        return supervisor.tick(context)

    return supervise
