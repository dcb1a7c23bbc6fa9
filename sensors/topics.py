"""One sensor for all streams: restarts each when topics appear that its run does not read."""

import time
from collections.abc import Sequence

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
from lockstep.orchestration.definitions import AssetJob
from lockstep.orchestration.restart_policy import RestartCursor, decide_restart
from lockstep.orchestration.shared_tick import KAFKA_SECONDS_MAX, STARTS_MAX, look_at_streams
from lockstep.orchestration.starts import find_starting_runs
from lockstep.orchestration.topics_sensor import make_sensor_result, observe_assets, read_inputs
from lockstep.settings import Settings

POLL_SECONDS = 9
"""Every ten seconds: the daemon polls every five, and skips a poll that comes a moment too early."""


def topics_sensor(streams: Sequence[AnyStream], jobs: Sequence[AssetJob], settings: Settings) -> SensorDefinition:
    """Looks for new topics that no run adopts: a stream's run is handed over, or a bounded one reads them."""
    cluster = SharedCluster(settings.kafka, KAFKA_SECONDS_MAX)

    @sensor(
        name=names.STREAM_TOPICS,
        jobs=jobs,
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts a stream again for topics that match its pattern and that no run reads.",
    )
    def poll_topics(context: SensorEvaluationContext) -> SensorResult:
        def look(stream: AnyStream, cursor: RestartCursor) -> SensorResult:
            handle = StreamHandle(stream, settings, kafka_seconds_max=KAFKA_SECONDS_MAX, shared=cluster)
            seen = read_inputs(handle, context.instance, starting, STARTS_MAX)
            observed = observe_assets(handle, context.instance, cursor)
            decision = decide_restart(seen, cursor, time.time())
            if decision.restart is not None:
                starting[stream.name] = decision.restart.run_key
            return make_sensor_result(stream, decision, observed)

        starting = find_starting_runs(streams, settings.table_root, context.instance)
        cluster.ask_again()
        return look_at_streams(context, streams, RestartCursor, look)

    return poll_topics
