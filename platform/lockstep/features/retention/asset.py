"""The asset of a stream's housekeeping, which deletes files that nothing can need any more."""

from collections.abc import Sequence
from typing import Any

from dagster import AssetExecutionContext, AssetsDefinition, MaterializeResult, MetadataValue, TableRecord, asset

from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.retention.housekeeping import HousekeepingResult, run_housekeeping
from lockstep.operations.growth import DiskGrowth
from lockstep.operations.stream_table import has_table
from lockstep.orchestration.names import make_part_key, make_table_key
from lockstep.orchestration.run_lifecycle import report_failure
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
        try:
            if not has_table(folders):
                return MaterializeResult(metadata={"nothing_to_do": f"{stream.name} has no table yet"})
            kept_seconds = settings.rewind_hours * 3600
            done = run_housekeeping(folders, retention_seconds=kept_seconds, stream=stream)
        except LockstepError as error:
            raise report_failure(error) from error
        context.log.info("rewind floor of %s: batch %s", stream.name, done.rewind_floor)
        return _result(done)

    return housekeeping


def _result(done: HousekeepingResult) -> MaterializeResult[None]:
    records = [TableRecord({"step": step.step, "files": step.files, "bytes": step.bytes}) for step in done.steps]
    return MaterializeResult(
        metadata={
            "files_deleted": sum(step.files for step in done.steps),
            "bytes_deleted": sum(step.bytes for step in done.steps),
            "rewind_floor": done.rewind_floor,
            "steps": MetadataValue.table(records),
            **({} if done.growth is None else describe_growth(done.growth)),
        }
    )


def describe_growth(growth: DiskGrowth) -> dict[str, Any]:
    """The growth as metadata: figures that the UI plots over time, and a table of the kinds."""
    records = [
        TableRecord(
            {
                "kind": each.kind.value,
                "files": each.files,
                "bytes": each.bytes,
                "bytes_a_day": each.bytes_a_day,
                "bytes_in_30_days": each.bytes_in_30_days,
            }
        )
        for each in growth.kinds
    ]
    forecast = {} if growth.bytes_in_30_days is None else {"bytes_in_30_days": growth.bytes_in_30_days}
    sizes = {f"bytes_{each.kind.value.replace(' ', '_')}": each.bytes for each in growth.kinds}
    return {
        "files_on_disk": growth.files,
        "bytes_on_disk": growth.bytes,
        **sizes,
        **forecast,
        "growth": MetadataValue.table(records),
    }
