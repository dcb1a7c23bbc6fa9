"""One job per stream: deletes files that nothing can need any more, every hour."""

from dagster import AssetSelection, DefaultScheduleStatus, ScheduleDefinition, define_asset_job

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.settings import Settings


def housekeeping_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job: twenty past the hour, after compaction and apart from it."""
    job = define_asset_job(
        names.name_housekeeping_job(stream),
        selection=AssetSelection.assets(names.make_housekeeping_key(stream)),
        description=f"Deletes old log entries, replaced files and unreachable state of {stream.name}.",
        tags=names.MAINTENANCE,
    )
    cron = settings.schedules.housekeeping
    running = DefaultScheduleStatus.RUNNING
    return [ScheduleDefinition(job=job, cron_schedule=cron, description=job.description, default_status=running)]
