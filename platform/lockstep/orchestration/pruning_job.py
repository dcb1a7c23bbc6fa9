"""The job that prunes Dagster's storage. It needs no Spark and takes a second or two plus its start."""

import time
from collections.abc import Iterable

import msgspec
from dagster import JobDefinition, OpExecutionContext, job, op

from lockstep.declare.derived import Derived
from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.settings import DagsterSettings


def make_pruning_job(
    streams: Iterable[AnyStream], settings: DagsterSettings, derived: Iterable[Derived] = ()
) -> JobDefinition:
    """The job `dagster_pruning`."""
    listed = tuple(streams)
    tables = tuple(derived)

    @op(description="Deletes old runs, events without a run, results of checks and ticks of these streams.")
    def prune_dagster(context: OpExecutionContext) -> None:
        # Here, because it needs internals of Dagster, which a code location is not to depend on when it loads.
        from lockstep.orchestration.pruning import PruningLimits, PruningScope, prune_storage

        scope = PruningScope.of(listed, tables, settings.hosts)
        limits = PruningLimits.of(settings)
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
