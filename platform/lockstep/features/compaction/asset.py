"""The asset of a stream's compaction, which rewrites small files as large ones, and the rule of its second schedule."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    MaterializeResult,
    RunRequest,
    SkipReason,
    asset,
)

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.features.compaction.compact import Compacted, compact, has_large_open_hour, make_run_budget
from lockstep.foreign_errors import explain_error
from lockstep.operations.stream_table import has_table
from lockstep.orchestration.names import make_part_key, make_table_key
from lockstep.orchestration.plan_metadata import make_metadata
from lockstep.orchestration.run_lifecycle import interrupt_run, report_failures
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from lockstep.features.compaction.run import Rewriter


KINDS = {"spark", "deltalake"}
PATIENCE_SECONDS = 10.0
"""Stop patience, short because a bin that is not committed is invisible."""


def make_compaction_asset(stream: AnyStream, settings: Settings, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<stream>/compaction`. It runs in parallel with a writing stream; neither waits for the other."""
    folders = StreamFolders(stream.name, settings.table_root)

    @asset(
        key=make_part_key(stream, "compaction"),
        deps=[make_table_key(stream)],
        group_name=stream.name,
        description=(
            f"Rewrites the small files of {stream.name}'s closed hours as large ones. The order of the rows is "
            "kept, and each commit carries the proof that no row changed. The ledger's closed hours likewise: one file "
            "per hour instead of one per batch, and those of quarantine and late table. The open hour of a stream that "
            "is idle is closed first; that of a live one is compacted too when it has many files. A run has a budget, "
            "and ends when the stream lags."
        ),
        kinds=KINDS,
        owners=owners,
    )
    def compaction(context: AssetExecutionContext, spark: SparkResource) -> MaterializeResult[None]:
        try:
            with report_failures(stream.name):
                if not has_table(folders):
                    return MaterializeResult(metadata={"nothing_to_do": f"{stream.name} has no table yet"})
                context.log.info("compacting %s", folders.table)
                compacted = _compact(stream, settings, spark)
        except StopTimeout as abandoned:
            raise interrupt_run(context, f"stopped ({abandoned}); committed bins stay") from None
        return MaterializeResult(metadata=make_metadata(compacted))

    return compaction


def request_minor_compaction(stream: AnyStream, settings: Settings) -> RunRequest | SkipReason:
    """The decision of the schedule of minor compaction: a run only while the open hour has many files."""
    folders = StreamFolders(stream.name, settings.table_root)
    try:
        is_due = has_large_open_hour(folders, target_bytes=settings.target_file_bytes)
    except Exception as error:
        if (explained := explain_error(error, stream.name)) is None:
            raise
        return SkipReason(f"the table cannot be read: {explained}")
    if not is_due:
        return SkipReason("the open hour has few small files")
    return RunRequest()


def _compact(stream: AnyStream, settings: Settings, spark: SparkResource) -> Compacted:
    def rewriter() -> "Rewriter":
        from lockstep.features.compaction.run import compact_on_spark

        return compact_on_spark(spark.session(f"{stream.name} compaction").sparkContext)

    stopping = StopSignal()
    folders = StreamFolders(stream.name, settings.table_root)
    budget = make_run_budget(stream, settings)
    return run_off_main_thread(
        lambda: compact(folders, make_rewriter=rewriter, target_bytes=settings.target_file_bytes, budget=budget),
        stopping,
        patience_seconds=PATIENCE_SECONDS,
        tick=lambda: None,
        abandon=spark.cancel,
    )
