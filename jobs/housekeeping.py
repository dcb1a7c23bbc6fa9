"""One job per stream: deletes files that nothing can need any more, every hour."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.orchestration.maintenance_schedule import make_maintenance_schedule
from lockstep.settings import Settings


def housekeeping_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job: twenty past the hour, after compaction and apart from it."""
    job = define_asset_job(
        names.name_housekeeping_job(stream),
        selection=AssetSelection.assets(names.make_housekeeping_key(stream)),
        description=f"Deletes old log entries, replaced files and unreachable state of {stream.name}.",
        tags=names.MAINTENANCE,
    )
    return [make_maintenance_schedule(job, settings.schedules.housekeeping)]
