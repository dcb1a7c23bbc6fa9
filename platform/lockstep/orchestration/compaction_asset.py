"""The asset of a stream's compaction, which rewrites the small files of closed hours as large ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterExecutionInterruptedError,
    MaterializeResult,
    MetadataValue,
    TableRecord,
    asset,
)

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.errors import LockstepError
from lockstep.operations.compact import Compacted, compact
from lockstep.orchestration.names import make_compaction_key, make_table_key
from lockstep.orchestration.run_lifecycle import report_failure
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from lockstep.compaction.run import Rewriter


KINDS = {"spark", "deltalake"}
BINS_SHOWN = 48
PATIENCE_SECONDS = 10.0
"""Stop patience, short because a bin that is not committed is invisible."""


def make_compaction_asset(stream: AnyStream, settings: Settings, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<stream>/compaction`. It runs in parallel with a writing stream; neither waits for the other."""
    folders = StreamFolders(stream.name, settings.table_root)

    @asset(
        key=make_compaction_key(stream),
        deps=[make_table_key(stream)],
        group_name=stream.name,
        description=(
            f"Rewrites the small files of {stream.name}'s closed hours as large ones. The order of the rows is "
            "kept, and each commit carries the proof that no row changed. The ledger's closed hours likewise: a file "
            "an hour instead of one a batch. The open hour of a stream that is idle is closed first."
        ),
        kinds=KINDS,
        owners=owners,
    )
    def compaction(context: AssetExecutionContext, spark: SparkResource) -> MaterializeResult[None]:
        if not delta_log.has_log(folders.table):
            return MaterializeResult(metadata={"nothing_to_do": f"{stream.name} has no table yet"})
        context.log.info("compacting closed hours of %s", folders.table)
        try:
            done = _compact(stream, folders, spark)
        except LockstepError as error:
            raise report_failure(error) from error
        return MaterializeResult(metadata=_describe(done))

    return compaction


def _compact(stream: AnyStream, folders: StreamFolders, spark: SparkResource) -> Compacted:
    def rewriter() -> "Rewriter":
        from lockstep.compaction.run import compact_on_spark

        return compact_on_spark(spark.session(f"{stream.name} compaction").sparkContext)

    stopping = StopSignal()
    try:
        return run_off_main_thread(
            lambda: compact(folders, make_rewriter=rewriter),
            stopping,
            patience_seconds=PATIENCE_SECONDS,
            tick=lambda: None,
            abandon=spark.cancel,
        )
    except StopTimeout as abandoned:
        raise DagsterExecutionInterruptedError(f"stopped ({abandoned}); committed bins stay") from None


def _describe(done: Compacted) -> dict[str, Any]:
    table, plan = done.table, done.plan.table
    numbers = {name: getattr(table, name) for name in table.__struct_fields__ if name != "hours"}
    of_ledger = {f"ledger_{name}": getattr(done.ledger, name) for name in done.ledger.__struct_fields__}
    bins = [
        TableRecord({"hour": part.commit_hour, "files": len(part.files), "bytes": part.size, "rows": part.rows})
        for part in plan.bins[-BINS_SHOWN:]
    ]
    left = [
        TableRecord({"because": each.reason.value, "hours": each.hours, "files": each.files, "bytes": each.bytes})
        for each in plan.left
    ]
    return {
        **numbers,
        "hours": ", ".join(table.hours) or "none",
        **of_ledger,
        "closed_idle_hour": done.plan.closes_hour or "none",
        "planned_files": plan.files_before,
        "planned_cpu_seconds": plan.cpu_seconds,
        **({"plan": MetadataValue.table(bins)} if bins else {}),
        **({"left": MetadataValue.table(left)} if left else {}),
    }
