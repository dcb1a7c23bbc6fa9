"""One sensor for all streams: starts each when its desired state is running and it has no live writer."""

import time
from collections.abc import Sequence

from dagster import (
    DefaultSensorStatus,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from lockstep.boot import read_boot_id
from lockstep.declare.stream import AnyStream
from lockstep.operations.tables import StreamHandle
from lockstep.orchestration import names
from lockstep.orchestration.definitions import AssetJob
from lockstep.orchestration.shared_tick import look_at_streams
from lockstep.orchestration.starts import find_starting_runs
from lockstep.orchestration.supervisor_policy import SupervisorCursor, decide_supervision
from lockstep.orchestration.supervisor_sensor import carry_out, observe_runs, read_slots
from lockstep.settings import Settings

POLL_SECONDS = 4
"""The daemon polls every five seconds: a longer interval than this would skip every other poll."""


def supervisor_sensor(streams: Sequence[AnyStream], jobs: Sequence[AssetJob], settings: Settings) -> SensorDefinition:
    """Keeps streams running: closes dead runs and starts new ones, with growing delays after failed starts."""

    @sensor(
        name=names.STREAM_SUPERVISOR,
        jobs=jobs,
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description="Starts each stream whose desired state is running and of which no run lives.",
    )
    def supervise(context: SensorEvaluationContext) -> SensorResult:
        others = find_starting_runs(streams, settings.table_root, context.instance)
        boot = read_boot_id() or ""
        slots = read_slots(context.cursor, streams, boot, others)

        def look(stream: AnyStream, cursor: SupervisorCursor) -> SensorResult:
            handle = StreamHandle(stream, settings)
            seen = observe_runs(handle, context.instance, cursor)
            may_start = slots.may_start(stream.name, has_written=seen.has_written)
            decision = decide_supervision(seen, cursor, time.monotonic(), boot=boot, may_start=may_start)
            slots.note(stream.name, decision.cursor)
            return carry_out(handle, context.instance, decision)

        return look_at_streams(context, streams, SupervisorCursor, look)

    return supervise
