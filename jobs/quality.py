"""One job per stream: the checks of its table, every hour. The check `health` is evaluated by its sensor.

That sensor requests the job of a new table as well.
"""

from functools import cache

from dagster import AssetCheckKey, AssetKey, AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import (
    MAINTENANCE,
    AnyStream,
    AssetJob,
    Settings,
    list_checks,
    make_maintenance_schedule,
    make_table_key,
    name_part_job,
)


def checks_job(stream: AnyStream) -> AssetJob:
    """The job, the same object whoever requests it: Dagster refuses two of a name, equal or not."""
    return _make_job(name_part_job(stream, "checks"), make_table_key(stream), list_checks(stream))


@cache
def _make_job(name: str, table: AssetKey, checks: tuple[str, ...]) -> AssetJob:
    return define_asset_job(
        name,
        selection=AssetSelection.checks(*(AssetCheckKey(table, check) for check in checks)),
        description=f"Checks that {table.path[0]} is complete, without duplicates and in order, and its own rules.",
        tags=MAINTENANCE,
    )


def checks_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule of the job: half past the hour, apart from compaction."""
    return [make_maintenance_schedule(checks_job(stream), settings.schedules.checks)]
