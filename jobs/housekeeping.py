"""One job per stream: deletes files that nothing can need any more, every hour."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import (
    MAINTENANCE,
    AnyStream,
    Settings,
    make_housekeeping_key,
    make_maintenance_schedule,
    name_housekeeping_job,
)


def housekeeping_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job: twenty past the hour, after compaction and apart from it."""
    job = define_asset_job(
        name_housekeeping_job(stream),
        selection=AssetSelection.assets(make_housekeeping_key(stream)),
        description=f"Deletes old log entries, replaced files and unreachable state of {stream.name}.",
        tags=MAINTENANCE,
    )
    return [make_maintenance_schedule(job, settings.schedules.housekeeping)]
