"""One job per derived table: brings it up to its sources, by its own schedule."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep import Derived
from lockstep.orchestration import names
from lockstep.orchestration.maintenance_schedule import make_maintenance_schedule


def derived_schedule(derived: Derived) -> ScheduleDefinition:
    """The schedule and its job."""
    job = define_asset_job(
        names.name_derived_job(derived),
        selection=AssetSelection.assets(names.make_derived_key(derived)),
        description=f"Brings {derived.name} up to the tables from which it is derived.",
        tags=names.MAINTENANCE,
    )
    return make_maintenance_schedule(job, derived.schedule)
