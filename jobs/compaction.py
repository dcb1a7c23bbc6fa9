"""One job a stream: compacts its closed hours, every hour."""

from dagster import AssetSelection, DefaultScheduleStatus, ScheduleDefinition, define_asset_job

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.settings import Settings


def compaction_schedule(stream: AnyStream, settings: Settings) -> ScheduleDefinition:
    """The schedule and its job: ten minutes past the hour, when the previous hour is certainly closed."""
    job = define_asset_job(
        names.name_compaction_job(stream),
        selection=AssetSelection.assets(names.make_compaction_key(stream)),
        description=f"Rewrites the small files of {stream.name}'s closed hours; order kept and proven.",
        tags=names.MAINTENANCE,
    )
    cron = settings.schedules.compaction
    return ScheduleDefinition(job=job, cron_schedule=cron, default_status=DefaultScheduleStatus.RUNNING)
