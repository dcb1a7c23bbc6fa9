"""The asset of a derived table: a run brings it up to the tables that it reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    MaterializeResult,
    TableColumn,
    TableSchema,
    asset,
)

from lockstep.addresses import make_absolute, to_url
from lockstep.declare.derived import Derived, OutputMode
from lockstep.engine.driver.import_roots import find_module_root
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.features.derived.derive import DerivedRun, run_derived
from lockstep.orchestration.dagster_types import RawMetadataValue
from lockstep.orchestration.names import make_derived_key, make_table_key, name_derived_job
from lockstep.orchestration.plan_metadata import make_metadata
from lockstep.orchestration.run_lifecycle import interrupt_run, report_failures
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from lockstep.table.delta_log import open_delta_table
from lockstep.table.layout import DerivedFolders

KINDS = {"spark", "deltalake"}
PATIENCE_SECONDS = 10.0
"""Stop patience, short because a batch that is not finished is finished by the next run."""


def make_derived_asset(derived: Derived, settings: Settings, *, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<name>/table`, in the group of its first source. It runs while its sources are written."""
    sources = list(derived.sources)

    @asset(
        key=make_derived_key(derived),
        deps=[make_table_key(source) for source in sources],
        group_name=sources[0].name,
        description=make_derived_description(derived),
        metadata={"dagster/uri": to_url(DerivedFolders(derived.name, make_absolute(settings.table_root)).table)},
        kinds=KINDS,
        owners=owners,
    )
    def derive(context: AssetExecutionContext, spark: SparkResource) -> MaterializeResult[None]:
        try:
            with report_failures():
                run = _run(derived, settings, spark)
                if run.version is None:
                    return MaterializeResult(metadata={"nothing_to_do": "a source has no table yet"})
                shown = _describe(run)
        except StopTimeout as abandoned:
            raise interrupt_run(context, f"stopped ({abandoned}); the next run continues") from None
        context.log.info("%s: %s rows, %s before", derived.name, run.rows, run.rows_before)
        return MaterializeResult(metadata=shown)

    return derive


def make_derived_description(derived: Derived) -> str:
    """The description of the declaration, then the behaviour of a run."""
    names = " and ".join(f"`{source.name}`" for source in derived.sources)
    return (
        f"{derived.description}\n\n"
        f"Computed by Spark from the committed rows of {names}.{_describe_watermark(derived)}\n\n"
        f"**Materialize**, the job `{name_derived_job(derived)}` and `lockstep derive {derived.name}` read the commits "
        "that are new, and end. `rebuilt_because` says why a run computed all rows again."
    ).strip()


def _describe_watermark(derived: Derived) -> str:
    if derived.watermark is None or derived.output_mode is not OutputMode.APPEND:
        return ""
    return (
        f" The watermark is {derived.watermark.delay} (h:mm:ss) behind the newest `{derived.watermark.column}` that a "
        "run has read. Windows that end after it are not in the table yet."
    )


def _run(derived: Derived, settings: Settings, spark: SparkResource) -> DerivedRun:
    roots = find_module_root(derived.derive.__module__)
    return run_off_main_thread(
        lambda: run_derived(derived, settings.table_root, lambda: spark.session(derived.name, roots)),
        StopSignal(),
        patience_seconds=PATIENCE_SECONDS,
        tick=lambda: None,
        abandon=spark.cancel,
    )


def _describe(done: DerivedRun) -> dict[str, RawMetadataValue]:
    schema = pa.schema(cast("pa.Schema", open_delta_table(Path(done.folder)).schema().to_arrow()))
    columns = [TableColumn(field.name, str(field.type)) for field in schema]
    shown: dict[str, RawMetadataValue] = {
        "dagster/row_count": done.rows,
        "dagster/column_schema": TableSchema(columns=columns),
    }
    return {**shown, **make_metadata(done)}
