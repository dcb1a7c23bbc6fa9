"""The code location: every stream, with its assets, checks, jobs, schedules and sensors. Add yours here."""

from collections.abc import Iterator

from dagster import Definitions, ScheduleDefinition, in_process_executor, mem_io_manager

from assets.betting_markets import betting_markets
from assets.checksummed_books import checksummed_books
from assets.order_books import order_books
from jobs.compaction import compaction_schedules
from jobs.current import current_schedules
from jobs.delivery import delivery_schedules
from jobs.derived import derived_schedule
from jobs.export import export_schedules
from jobs.hosts import host_jobs, host_schedules
from jobs.housekeeping import housekeeping_schedules
from jobs.pruning import pruning_schedule
from jobs.quality import checks_job, checks_schedules
from jobs.rotation import rotation_schedules
from jobs.streaming import streaming_job
from lockstep.dagster import AnyStream, SparkResource, load_settings, make_assets, make_stream_checks
from lockstep.derived import Derived
from sensors.health import health_sensor
from sensors.hosts import host_sensors
from sensors.supervisor import supervisor_sensor
from sensors.topics import topics_sensor

STREAMS: tuple[AnyStream, ...] = (order_books, checksummed_books, betting_markets)
DERIVED: tuple[Derived, ...] = ()
SCHEDULES = (
    checks_schedules,
    compaction_schedules,
    current_schedules,
    delivery_schedules,
    export_schedules,
    housekeeping_schedules,
    rotation_schedules,
)
"""Each makes the schedules of a stream, with their jobs."""
OWNERS = ("team:data-platform",)  # of all assets in Dagster: e-mail addresses, or team:NAME


def make_schedules() -> Iterator[ScheduleDefinition]:
    """The schedules of all streams."""
    for stream in STREAMS:
        for make in SCHEDULES:
            yield from make(stream, settings)


settings = load_settings()
streaming_jobs = [streaming_job(stream) for stream in STREAMS]

defs = Definitions(
    assets=make_assets(STREAMS, DERIVED, settings, owners=OWNERS),
    asset_checks=[check for stream in STREAMS for check in make_stream_checks(stream, settings)],
    jobs=[
        *streaming_jobs,
        *host_jobs(STREAMS, settings),
    ],
    schedules=[
        *make_schedules(),
        *(derived_schedule(derived) for derived in DERIVED),
        *host_schedules(settings),
        pruning_schedule(STREAMS, settings, DERIVED),
    ],
    sensors=[
        topics_sensor(STREAMS, streaming_jobs, settings),
        supervisor_sensor(STREAMS, streaming_jobs, settings),
        *host_sensors(STREAMS, settings),
        health_sensor(STREAMS, [checks_job(stream) for stream in STREAMS], settings),
    ],
    # Assets pass no values; Dagster's own manager would unpickle files of a folder that a run's configuration names.
    resources={"spark": SparkResource(), "io_manager": mem_io_manager},
    # One process a run: one JVM, and correct exit codes.
    executor=in_process_executor,
)
