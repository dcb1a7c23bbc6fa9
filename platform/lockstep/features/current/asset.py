"""The asset of a stream's current table, for streams that declare it."""

from collections.abc import Sequence

from dagster import AssetExecutionContext, AssetsDefinition, MaterializeResult, asset

from lockstep.addresses import make_absolute, to_url
from lockstep.declare.stream import AnyStream
from lockstep.features.current.refresh import refresh_current
from lockstep.operations.stream_table import has_table
from lockstep.orchestration.names import make_part_key, make_table_key
from lockstep.orchestration.plan_metadata import make_metadata
from lockstep.orchestration.run_lifecycle import report_failures
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

KINDS = {"deltalake"}


def make_current_asset(stream: AnyStream, settings: Settings, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<stream>/current`: runs while the stream writes, without Spark."""
    folders = StreamFolders(stream.name, settings.table_root)

    @asset(
        key=make_part_key(stream, "current"),
        deps=[make_table_key(stream)],
        group_name=stream.name,
        description=(
            f"The current rows of {stream.name}: one row a session and key, as after a batch. A run replaces the files "
            "with changed sessions, in one commit."
        ),
        metadata={"dagster/uri": to_url(StreamFolders(stream.name, make_absolute(settings.table_root)).current)},
        kinds=KINDS,
        owners=owners,
    )
    def current(context: AssetExecutionContext) -> MaterializeResult[None]:
        with report_failures(stream.name):
            if not has_table(folders):
                return MaterializeResult(metadata={"nothing_to_do": f"{stream.name} has no table yet"})
            done = refresh_current(stream, folders)
        context.log.info("%s: %s rows, %s keys changed", stream.name, done.rows, done.changed)
        return MaterializeResult(metadata={"dagster/row_count": done.rows, **make_metadata(done)})

    return current
