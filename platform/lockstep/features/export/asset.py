"""The asset of a stream's export, for streams that declare one."""

from collections.abc import Sequence

from dagster import AssetExecutionContext, AssetsDefinition, MaterializeResult, asset

from lockstep.declare.options import OnRewind
from lockstep.declare.stream import AnyStream
from lockstep.features.export.export import export_stream
from lockstep.operations.stream_table import has_table
from lockstep.orchestration.names import make_part_key
from lockstep.orchestration.plan_metadata import make_metadata
from lockstep.orchestration.run_lifecycle import report_failures
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

KINDS = {"parquet"}


def _describe_moment(stream: AnyStream, settings: Settings) -> str:
    """Describe when an hour is written."""
    if stream.export is not None and stream.export.on_rewind is OnRewind.REWRITE:
        return "when it is closed and compacted; after a rewind or a promotion that undoes its batches, again."
    if stream.export is not None and stream.export.on_rewind is OnRewind.REFUSE:
        return "when it is closed and compacted; a rewind or a promotion that would undo its batches is refused."
    return f"when no rewind can go back to it ({settings.rewind_hours:g} hours), and never touched again."


def make_export_asset(stream: AnyStream, settings: Settings, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<stream>/export`: runs while the stream writes, without Spark."""
    folders = StreamFolders(stream.name, settings.table_root)

    @asset(
        key=make_part_key(stream, "export"),
        deps=[make_part_key(stream, "compaction")],
        group_name=stream.name,
        description=(
            f"Hours of {stream.name} as a plain Parquet dataset, each written whole: "
            f"{_describe_moment(stream, settings)}"
        ),
        kinds=KINDS,
        owners=owners,
    )
    def export(context: AssetExecutionContext) -> MaterializeResult[None]:
        with report_failures(stream.name):
            if not has_table(folders):
                return MaterializeResult(metadata={"nothing_to_do": f"{stream.name} has no table yet"})
            done = export_stream(stream, folders, target_bytes=settings.target_file_bytes)
        context.log.info("%s hours of %s exported", len(done.hours), stream.name)
        return MaterializeResult(metadata=make_metadata(done))

    return export
