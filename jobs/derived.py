"""One job per derived table: brings it up to its sources, by its own schedule."""

from collections.abc import Iterable, Iterator

from dagster import AssetSelection, DefaultScheduleStatus, ScheduleDefinition, define_asset_job

from lockstep import Derived
from lockstep.orchestration import names


def derived_schedules(tables: Iterable[Derived]) -> Iterator[ScheduleDefinition]:
    """The schedules and their jobs."""
    for derived in tables:
        job = define_asset_job(
            names.name_derived_job(derived),
            selection=AssetSelection.assets(names.make_derived_key(derived)),
            description=f"Brings {derived.name} up to the tables from which it is derived.",
            tags=names.MAINTENANCE,
        )
        yield ScheduleDefinition(job=job, cron_schedule=derived.schedule, default_status=DefaultScheduleStatus.RUNNING)
