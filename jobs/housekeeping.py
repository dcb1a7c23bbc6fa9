"""One job per stream: deletes files that nothing can need any more, every hour."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import (
    MAINTENANCE,
    AnyStream,
    Settings,
    make_maintenance_schedule,
    make_part_key,
    name_part_job,
)


def housekeeping_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job: twenty past the hour, after compaction and apart from it."""
    job = define_asset_job(
        name_part_job(stream, "housekeeping"),
        selection=AssetSelection.assets(make_part_key(stream, "housekeeping")),
        description=f"Deletes old log entries, replaced files and unreachable state of {stream.name}.",
        tags=MAINTENANCE,
    )
    return [make_maintenance_schedule(job, settings.schedules.housekeeping)]
