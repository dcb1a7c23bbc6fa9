"""The job that prunes Dagster's storage. It needs no Spark and takes a second or two plus its start."""

import time
from collections.abc import Iterable

import msgspec
from dagster import JobDefinition, OpExecutionContext, job, op

from lockstep.declare.derived import Derived
from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.orchestration.pruning import PruningLimits, PruningScope, prune_storage
from lockstep.settings import DagsterSettings

DAY_SECONDS = 86_400.0


def read_limits(settings: DagsterSettings) -> PruningLimits:
    """Retention limits from the installation's settings."""
    return PruningLimits(seconds=settings.retention_days * DAY_SECONDS, runs_max=settings.runs_max)


def make_pruning_job(
    streams: Iterable[AnyStream], settings: DagsterSettings, derived: Iterable[Derived] = ()
) -> JobDefinition:
    """The job `dagster_pruning`."""
    scope, limits = PruningScope.of(streams, derived), read_limits(settings)

    @op(description="Deletes old runs, events without a run, results of checks and ticks of these streams.")
    def prune_dagster(context: OpExecutionContext) -> None:
        pruned = prune_storage(context.instance, scope, limits, time.time())
        context.add_output_metadata(msgspec.structs.asdict(pruned))
        context.log.info("deleted: %s", pruned)

    @job(
        name=names.PRUNING_JOB,
        description=(
            f"Bounds Dagster's own database: keeps runs, events and results of {settings.retention_days:g} days, no "
            f"more than {settings.runs_max} ended runs of a job, and always the newest."
        ),
    )
    def dagster_pruning() -> None:
        prune_dagster()

    return dagster_pruning
