"""One job per stream: compacts its closed hours every hour, and its open hour when that has many files."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import (
    MAINTENANCE,
    AnyStream,
    Settings,
    make_compaction_key,
    make_maintenance_schedule,
    name_compaction_job,
    name_minor_compaction_schedule,
    request_minor_compaction,
)


def compaction_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The job and its two schedules: every hour, when the previous one is certainly closed; and by the open hour."""
    job = define_asset_job(
        name_compaction_job(stream),
        selection=AssetSelection.assets(make_compaction_key(stream)),
        description=f"Rewrites small files of {stream.name} as large ones; order kept and proven.",
        tags=MAINTENANCE,
    )
    minor = make_maintenance_schedule(
        job,
        settings.schedules.minor_compaction,
        name=name_minor_compaction_schedule(stream),
        description=f"Compacts the open hour of {stream.name} when it has many files.",
        request=lambda: request_minor_compaction(stream, settings),
    )
    return [make_maintenance_schedule(job, settings.schedules.compaction), minor]
