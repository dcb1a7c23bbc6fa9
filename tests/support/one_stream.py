"""The repository's code location, in which sensors and schedules look at one of its streams, not at all of them."""

from __future__ import annotations

from dagster import Definitions

import definitions

WATCHED = "order_books"


def make_definitions() -> Definitions:
    """All assets, checks and jobs; Dagster takes one object of this kind a module."""
    whole = definitions.defs
    repository = whole.get_repository_def()
    return Definitions(
        assets=whole.assets,
        asset_checks=whole.asset_checks,
        jobs=whole.jobs,
        schedules=[each for each in repository.schedule_defs if each.name.startswith(WATCHED)],
        sensors=[each for each in repository.sensor_defs if each.name.startswith(WATCHED)],
        resources=whole.resources,
        executor=whole.executor,
    )


defs = make_definitions()
