"""The asset of a stream's housekeeping, which deletes files that nothing can need any more."""

from collections.abc import Sequence

from dagster import AssetExecutionContext, AssetsDefinition, MaterializeResult, asset

from lockstep.declare.stream import AnyStream
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations.stream_table import has_table
from lockstep.orchestration.names import make_part_key, make_table_key
from lockstep.orchestration.plan_metadata import make_metadata
from lockstep.orchestration.run_lifecycle import report_failures
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

KINDS = {"deltalake"}


def make_housekeeping_asset(stream: AnyStream, settings: Settings, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<stream>/housekeeping`: runs in parallel with a writing stream, without Spark."""
    folders = StreamFolders(stream.name, settings.table_root)

    @asset(
        key=make_part_key(stream, "housekeeping"),
        deps=[make_table_key(stream)],
        group_name=stream.name,
        description=(
            f"Deletes what {stream.name}, its readers and a rewind of up to {settings.rewind_hours:g} hours cannot "
            "need any more: old entries and checkpoints of the Delta logs, data files that compaction replaced, state "
            "that no batch refers to. `lockstep housekeeping --plan` shows it first."
        ),
        kinds=KINDS,
        owners=owners,
    )
    def housekeeping(context: AssetExecutionContext) -> MaterializeResult[None]:
        with report_failures(stream.name):
            if not has_table(folders):
                return MaterializeResult(metadata={"nothing_to_do": f"{stream.name} has no table yet"})
            kept_seconds = settings.rewind_hours * 3600
            result = run_housekeeping(folders, retention_seconds=kept_seconds, stream=stream)
        context.log.info("rewind floor of %s: batch %s", stream.name, result.rewind_floor)
        return MaterializeResult(metadata=make_metadata(result))

    return housekeeping
