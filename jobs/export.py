"""One job per stream that declares an export: writes its old hours as plain Parquet, every hour."""

from collections.abc import Iterable, Iterator

from dagster import AssetSelection, DefaultScheduleStatus, ScheduleDefinition, define_asset_job

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.settings import Settings


def export_schedules(streams: Iterable[AnyStream], settings: Settings) -> Iterator[ScheduleDefinition]:
    """The schedules and their jobs: forty past the hour, after compaction and housekeeping."""
    for stream in streams:
        if stream.export is not None:
            job = define_asset_job(
                names.name_export_job(stream),
                selection=AssetSelection.assets(names.make_export_key(stream)),
                description=f"Writes hours of {stream.name} that no rewind can go back to as plain Parquet, each once.",
                tags=names.MAINTENANCE,
            )
            cron = settings.schedules.export
            yield ScheduleDefinition(job=job, cron_schedule=cron, default_status=DefaultScheduleStatus.RUNNING)
