"""One job per stream that declares an export: writes its old hours as plain Parquet, every hour."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import (
    MAINTENANCE,
    AnyStream,
    Settings,
    make_maintenance_schedule,
    make_part_key,
    name_part_job,
)


def export_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job: forty past the hour, after compaction and housekeeping; none without an export."""
    if stream.export is None:
        return []
    job = define_asset_job(
        name_part_job(stream, "export"),
        selection=AssetSelection.assets(make_part_key(stream, "export")),
        description=f"Writes closed hours of {stream.name} as plain Parquet, each once.",
        tags=MAINTENANCE,
    )
    return [make_maintenance_schedule(job, settings.schedules.export)]
