"""One job per stream: the checks of its table, every hour. The check `health` is evaluated by its sensor."""

from dagster import AssetCheckKey, AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.orchestration.maintenance_schedule import make_maintenance_schedule
from lockstep.settings import Settings


def checks_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job: half past the hour, apart from compaction."""
    job = define_asset_job(
        names.name_checks_job(stream),
        selection=AssetSelection.checks(
            *(AssetCheckKey(names.make_table_key(stream), check) for check in names.list_checks(stream))
        ),
        description=f"Checks that {stream.name} is complete, without duplicates and in order, and its own rules.",
        tags=names.MAINTENANCE,
    )
    return [make_maintenance_schedule(job, settings.schedules.checks)]
