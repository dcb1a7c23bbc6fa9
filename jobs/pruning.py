"""One job for all streams and derived tables: bounds their data in Dagster's database, every hour."""

from collections.abc import Iterable

from dagster import ScheduleDefinition

from lockstep.dagster import AnyStream, Settings, make_maintenance_schedule, make_pruning_job
from lockstep.derived import Derived


def pruning_schedule(
    streams: Iterable[AnyStream], settings: Settings, derived: Iterable[Derived] = ()
) -> ScheduleDefinition:
    """The schedule and its job: ten minutes to the hour, apart from compaction, housekeeping and checks."""
    job = make_pruning_job(streams, settings.dagster, derived)
    return make_maintenance_schedule(job, "50 * * * *")
