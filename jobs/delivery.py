"""One job per stream that declares deliveries: delivers its new rows, every minute."""

from dagster import AssetSelection, ScheduleDefinition, define_asset_job

from lockstep.dagster import AnyStream, Settings, make_maintenance_schedule, make_part_key, name_part_job


def delivery_schedules(stream: AnyStream, settings: Settings) -> list[ScheduleDefinition]:
    """The schedule and its job; none without a delivery."""
    if not stream.deliveries:
        return []
    job = define_asset_job(
        name_part_job(stream, "delivery"),
        selection=AssetSelection.assets(make_part_key(stream, "delivery")),
        description=f"Delivers the new rows of {stream.name} to its targets, each with the guarantee of its kind.",
        tags={"dagster/max_runtime": "600"},  # a run ends within a minute; a killed one blocks the next until then
    )
    return [make_maintenance_schedule(job, settings.schedules.delivery, is_alone=True)]
