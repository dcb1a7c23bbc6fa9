"""One job per stream: compacts its closed hours every hour, and its open hour when that has many files."""

from dagster import AssetSelection, DefaultScheduleStatus, ScheduleDefinition, define_asset_job

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.orchestration.compaction_asset import request_minor_compaction
from lockstep.settings import Settings


def compaction_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The job and its two schedules: every hour, when the previous one is certainly closed; and by the open hour."""
    job = define_asset_job(
        names.name_compaction_job(stream),
        selection=AssetSelection.assets(names.make_compaction_key(stream)),
        description=f"Rewrites small files of {stream.name} as large ones; order kept and proven.",
        tags=names.MAINTENANCE,
    )
    hourly = ScheduleDefinition(
        job=job,
        cron_schedule=settings.schedules.compaction,
        description=job.description,
        default_status=DefaultScheduleStatus.RUNNING,
    )
    minor = ScheduleDefinition(
        name=names.name_minor_compaction_schedule(stream),
        job=job,
        cron_schedule=settings.schedules.minor_compaction,
        execution_fn=lambda _: request_minor_compaction(stream, settings),
        description=f"Compacts the open hour of {stream.name} when it has many files.",
        default_status=DefaultScheduleStatus.RUNNING,
    )
    return [hourly, minor]
