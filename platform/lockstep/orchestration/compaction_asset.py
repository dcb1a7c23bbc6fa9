"""The asset of a stream's compaction, which rewrites the small files of closed hours as large ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster import AssetExecutionContext, AssetsDefinition, DagsterExecutionInterruptedError, MaterializeResult, asset

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.errors import LockstepError
from lockstep.orchestration.names import make_compaction_key, make_table_key
from lockstep.orchestration.run_lifecycle import report_failure
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from lockstep.compaction.ledger_files import LedgerCompaction
    from lockstep.compaction.run import CompactionResult


KINDS = {"spark", "deltalake"}
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
            "an hour instead of one a batch."
        ),
        kinds=KINDS,
        owners=owners,
    )
    def compaction(context: AssetExecutionContext, spark: SparkResource) -> MaterializeResult[None]:
        if not delta_log.has_log(folders.table):
            return MaterializeResult(metadata={"nothing_to_do": f"{stream.name} has no table yet"})
        context.log.info("compacting closed hours of %s", folders.table)
        try:
            ledger = _compact_ledger(folders)
            result = _compact(stream, folders, spark)
        except LockstepError as error:
            raise report_failure(error) from error
        numbers = {name: getattr(result, name) for name in result.__struct_fields__ if name != "hours"}
        of_ledger = {f"ledger_{name}": getattr(ledger, name) for name in ledger.__struct_fields__}
        return MaterializeResult(metadata={**numbers, "hours": ", ".join(result.hours) or "none", **of_ledger})

    return compaction


def _compact_ledger(folders: StreamFolders) -> "LedgerCompaction":
    """Compact the ledger before the table: a refused hour of the table must not let the ledger grow."""
    from lockstep.compaction.ledger_files import compact_ledger

    return compact_ledger(folders, OutputLog(folders.table).base().head)


def _compact(stream: AnyStream, folders: StreamFolders, spark: SparkResource) -> "CompactionResult":
    def work() -> "CompactionResult":
        from lockstep.compaction.run import compact_on_spark, compact_stream

        session = spark.session(f"{stream.name} compaction")
        return compact_stream(folders, rewriter=compact_on_spark(session.sparkContext))

    stopping = StopSignal()
    try:
        return run_off_main_thread(
            work, stopping, patience_seconds=PATIENCE_SECONDS, tick=lambda: None, abandon=spark.cancel
        )
    except StopTimeout as abandoned:
        raise DagsterExecutionInterruptedError(f"stopped ({abandoned}); committed bins stay") from None
