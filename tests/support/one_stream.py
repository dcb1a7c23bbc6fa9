"""The repository's code location with the schedules of one stream; the other streams have no table."""

from __future__ import annotations

from dagster import Definitions

import definitions

WATCHED = "order_books"


def make_definitions() -> Definitions:
    """Make definitions of all assets, checks and jobs; Dagster requires one object of this class for each module."""
    whole = definitions.defs
    repository = whole.get_repository_def()
    return Definitions(
        assets=whole.assets,
        asset_checks=whole.asset_checks,
        jobs=whole.jobs,
        schedules=[each for each in repository.schedule_defs if each.name.startswith(WATCHED)],
        sensors=whole.sensors,
        resources=whole.resources,
        executor=whole.executor,
    )


defs = make_definitions()
