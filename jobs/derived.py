"""One job per derived table: brings it up to its sources, by its own schedule."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import MAINTENANCE, make_derived_key, make_maintenance_schedule, name_derived_job
from lockstep.derived import Derived


def derived_schedule(derived: Derived) -> ScheduleDefinition:
    """The schedule and its job."""
    job = define_asset_job(
        name_derived_job(derived),
        selection=AssetSelection.assets(make_derived_key(derived)),
        description=f"Brings {derived.name} up to the tables from which it is derived.",
        tags=MAINTENANCE,
    )
    return make_maintenance_schedule(job, derived.schedule)
