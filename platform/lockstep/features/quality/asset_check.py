"""The checks of a stream's table, one per rule; downstream assets wait for the built-in ones.

A result stays visible as long as no materialization by another run is newer; see `checked_version`.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    MetadataValue,
    TableRecord,
    multi_asset_check,
)

from lockstep.addresses import to_uri
from lockstep.declare.rules import BUILT_IN, Severity
from lockstep.declare.stream import AnyStream, format_source
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.operations.stream_table import has_table
from lockstep.orchestration.markdown import escape_markdown
from lockstep.orchestration.names import list_checks, make_ledger_key, make_table_key, name_checks_step
from lockstep.orchestration.observation_policy import SWEEP_SECONDS
from lockstep.orchestration.run_lifecycle import REPORT_SECONDS, interrupt_run, report_failures
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.orchestration.table_asset import is_ledger_fresh
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from lockstep.features.quality.check import Checked
    from lockstep.features.quality.rules import Cell, RuleResult
    from lockstep.orchestration.dagster_types import RawMetadataValue


PATIENCE_SECONDS = 5.0
"""Stop patience, short because a check changes nothing."""
VERSION = "table_version"
LEADING = ("lag_messages", "freshness_p50_seconds", "freshness_p99_seconds")
WINDOW_SECONDS_MAX = 2 * REPORT_SECONDS
LEDGER_SECONDS_MAX = 2 * SWEEP_SECONDS
"""Older metadata of the table and of the ledger is ignored."""


def make_table_check(stream: AnyStream, settings: Settings) -> AssetChecksDefinition:
    """The checks of `<stream>/table`, one per rule; they may run in parallel with a writing stream."""
    folders = StreamFolders(stream.name, settings.table_root)
    table = make_table_key(stream)
    names = list_checks(stream)

    @multi_asset_check(name=name_checks_step(stream), specs=_make_specs(stream), can_subset=True)
    def check(context: AssetCheckExecutionContext, spark: SparkResource) -> Iterator[AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        with report_failures(stream.name):
            if not has_table(folders):
                context.log.info("nothing to check: %s has no table yet", stream.name)
                return
            context.log.info("checking %s", folders.table)
            # Rows that only some rules have seen are read again, so that the others see them.
            checked = _check(context, stream, folders, spark, keep=selected == set(names))
        context.log.info("%s", checked.coverage.describe())
        if materialization := find_checked_version(stream, checked, context, time.time()):
            context.op_execution_context.log_event(materialization)
        with report_failures(stream.name):
            shared = describe_check(checked, folders, time.time())
        for result in checked.results:
            if result.rule in selected and (evaluated := make_check_result(result, checked, shared, table)):
                yield evaluated
            elif result.rule in selected:
                context.log.info("%s: %s: %s", result.rule, result.outcome.value, result.reason)
        with report_failures(stream.name):
            context.log.info("report: %s", _write_report(folders, settings))

    return check


def _write_report(folders: StreamFolders, settings: Settings) -> Path:
    from lockstep.features.quality.report import write_report

    return write_report(folders, target_bytes=settings.target_file_bytes).file


def _make_specs(stream: AnyStream) -> list[AssetCheckSpec]:
    table = make_table_key(stream)
    built_in = [AssetCheckSpec(name, asset=table, description=text, blocking=True) for name, text in BUILT_IN.items()]
    return built_in + [
        AssetCheckSpec(
            rule.name,
            asset=table,
            description=rule.promise,
            blocking=rule.blocking,
            metadata={"rule": format_source(rule), "severity": rule.severity.value},
        )
        for rule in stream.rules
    ]


def find_checked_version(
    stream: AnyStream, checked: "Checked", context: AssetCheckExecutionContext, now: float
) -> AssetMaterialization | None:
    """The materialization of the checked version; None when no evidence shows that the table is up to date.

    A never-ending run only observes the table, as each materialization would make the check seem outdated.
    So the check materializes, in one run with its result, the version it has checked: if that
    version was not materialized before, or the ledger's own materialization shows that there is no lag.
    """
    if not checked.coverage.full and not checked.coverage.files:
        return None  # results of an earlier run stay visible
    instance = context.instance
    run = context.run.run_id
    event = instance.get_latest_materialization_event(make_table_key(stream))
    if event is not None and event.run_id == run:
        return None  # the bounded run of this check materializes
    is_new = True
    if event is not None and event.asset_materialization is not None:
        version = event.asset_materialization.metadata.get(VERSION)
        is_new = version is None or version.value != checked.versions.table
    ledger = instance.get_latest_materialization_event(make_ledger_key(stream))
    if not checked.rows or not (is_new or (ledger and is_ledger_fresh(stream.trigger, ledger.timestamp, now))):
        return None
    window = _last_figures(instance, make_table_key(stream), now - WINDOW_SECONDS_MAX)
    figures = window | _last_figures(instance, make_ledger_key(stream), now - LEDGER_SECONDS_MAX)
    leading = {name: figures[name] for name in LEADING if name in figures}
    return AssetMaterialization(
        make_table_key(stream),
        metadata={
            **leading,
            "completeness_percent": checked.completeness_percent,
            "rows_in_table": checked.rows,
            VERSION: checked.versions.table,
        },
    )


def _last_figures(instance: DagsterInstance, key: AssetKey, since: float) -> "dict[str, RawMetadataValue]":
    """The metadata of the newest event of an asset; empty when it is older than the limit."""
    observed = instance.fetch_observations(key, limit=1).records
    materialized = instance.fetch_materializations(key, limit=1).records
    newest = max((*observed, *materialized), key=lambda record: record.timestamp, default=None)
    if newest is None or newest.timestamp < since:
        return {}
    event = newest.asset_observation or newest.asset_materialization
    if event is None:
        return {}
    return dict(event.metadata)


def _check(
    context: AssetCheckExecutionContext, stream: AnyStream, folders: StreamFolders, spark: SparkResource, *, keep: bool
) -> "Checked":
    def work() -> "Checked":
        from lockstep.features.quality.check import check_table

        return check_table(stream, spark.session(f"{stream.name} check"), folders, keep=keep)

    try:
        return run_off_main_thread(
            work, StopSignal(), patience_seconds=PATIENCE_SECONDS, tick=lambda: None, abandon=spark.cancel
        )
    except StopTimeout as abandoned:
        raise interrupt_run(context, f"stopped ({abandoned})") from None


def describe_check(checked: "Checked", folders: StreamFolders, now: float) -> "dict[str, RawMetadataValue]":
    """What all results of one check share: when it was done, the data it covers, the verdict, where to read more.

    The report is a file of the machine that checks, which a browser elsewhere cannot open: so its verdict is shown,
    and the command that opens it.

    Args:
        checked: The check.
        folders: The stream.
        now: The time of the check, in seconds since 1970 (UTC).
    """
    from lockstep.features.quality.check import make_result_path
    from lockstep.features.quality.report import judge_results, make_report_path

    verdict, _ = judge_results(checked.results)
    command = f"`lockstep report {folders.stream} --open`"
    report = (verdict, f"The page: {command}", f"Its file, where checks run: `{to_uri(make_report_path(folders))}`")
    newest = [
        partition.last_event_time_us for partition in checked.partitions if partition.last_event_time_us is not None
    ]
    shared: dict[str, RawMetadataValue] = {
        "checked_at": MetadataValue.timestamp(now),
        "data_checked": checked.coverage.describe(),
        "data_up_to_batch": checked.versions.batch,
        VERSION: checked.versions.table,
        "report": MetadataValue.md("\n\n".join(report)),
        "result": MetadataValue.path(to_uri(make_result_path(folders))),
    }
    if newest:
        shared["newest_event_in_table"] = MetadataValue.timestamp(max(newest) / 1e6)
    return shared


def _make_record_without_session(row: "Mapping[str, Cell]") -> TableRecord:
    # Dagster keeps its events, which no erasure reaches: they hold no name of a session.
    return TableRecord({name: cell for name, cell in row.items() if name != "session"})


def make_check_result(
    result: "RuleResult", checked: "Checked", shared: "Mapping[str, RawMetadataValue]", table: AssetKey
) -> AssetCheckResult | None:
    """A rule's result as Dagster shows it; None without anything to check, which Dagster shows as skipped.

    A check that crashed is an error, for any severity of its rule.
    """
    from lockstep.features.quality.rules import RuleOutcome

    if result.outcome in {RuleOutcome.NOTHING, RuleOutcome.NOTHING_NEW}:
        return None
    is_error = result.crashed or result.severity is Severity.CRITICAL
    parts = (f"{result.outcome.value}: {result.sentence}", result.reason, checked.coverage.describe())
    metadata: dict[str, RawMetadataValue] = {
        "outcome": result.outcome.value,
        "observed": result.observed,
        "threshold": result.threshold,
        "rows": result.rows or checked.rows,
        **shared,
    }
    if result.rows and result.observed is not None:
        of_rows = {"unexpected": result.observed, "unexpected_percent": 100 * result.observed / result.rows}
        metadata |= {**of_rows, "partitions_with_violations": result.unexpected}
    elif not result.crashed:
        metadata |= {"unexpected": result.unexpected, "checked": result.checked}
    if result.worst:
        metadata["worst"] = MetadataValue.table([TableRecord(row) for row in result.worst])
    if result.sample:
        metadata["sample"] = MetadataValue.table([_make_record_without_session(row) for row in result.sample])
    return AssetCheckResult(
        asset_key=table,
        check_name=result.rule,
        passed=result.passed,
        severity=AssetCheckSeverity.ERROR if is_error else AssetCheckSeverity.WARN,
        description=escape_markdown("; ".join(part.rstrip(".") for part in parts if part)),
        metadata=metadata,
    )
