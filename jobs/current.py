"""One job per stream that declares a current table: refreshes it, every minute."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import AnyStream, Settings, make_maintenance_schedule, make_part_key, name_part_job


def current_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job; none without a current table."""
    if not stream.current:
        return []
    job = define_asset_job(
        name_part_job(stream, "current"),
        selection=AssetSelection.assets(make_part_key(stream, "current")),
        description=f"Refreshes the current table of {stream.name}: one row a session and key.",
        tags={"dagster/max_runtime": "3600"},  # to make a large table from the states takes minutes
    )
    return [make_maintenance_schedule(job, settings.schedules.current, is_alone=True)]
