"""One job per stream: compacts its closed hours every hour, and its open hour when that has many files."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import (
    MAINTENANCE,
    AnyStream,
    Settings,
    make_maintenance_schedule,
    make_part_key,
    name_part_job,
    name_part_schedule,
    request_minor_compaction,
)


def compaction_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The job and its two schedules: every hour, when the previous one is certainly closed; and by the open hour."""
    job = define_asset_job(
        name_part_job(stream, "compaction"),
        selection=AssetSelection.assets(make_part_key(stream, "compaction")),
        description=f"Rewrites small files of {stream.name} as large ones; order kept and proven.",
        tags=MAINTENANCE,
    )
    minor = make_maintenance_schedule(
        job,
        settings.schedules.minor_compaction,
        name=name_part_schedule(stream, "minor_schedule"),
        description=f"Compacts the open hour of {stream.name} when it has many files.",
        request=lambda: request_minor_compaction(stream, settings),
    )
    return [make_maintenance_schedule(job, settings.schedules.compaction), minor]
