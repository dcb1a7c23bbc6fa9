"""The blocking check of a stream's table: downstream assets wait for it.

A result stays visible as long as no materialization by another run is newer; see `checked_version`.
"""

import time
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    MetadataValue,
    TableRecord,
    asset_check,
)

from lockstep.declare.stream import AnyStream
from lockstep.declare.transform import is_overridden
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.errors import LockstepError
from lockstep.folds.table import TableFold
from lockstep.integrity.base import SessionStart
from lockstep.orchestration.names import CHECK, make_ledger_key, make_table_key
from lockstep.orchestration.observed_assets import SWEEP_SECONDS
from lockstep.orchestration.run_lifecycle import REPORT_SECONDS, report_failure
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.orchestration.table_asset import is_ledger_fresh
from lockstep.settings import Settings
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from dagster._core.definitions.metadata import RawMetadataValue

    from lockstep.quality.check import Checked
    from lockstep.quality.rules import RuleResult


PATIENCE_SECONDS = 5.0
"""Stop patience, short because a check changes nothing."""
VERSION = "table_version"
LEADING = ("lag_messages", "freshness_p50_seconds", "freshness_p99_seconds")
WINDOW_SECONDS_MAX, LEDGER_SECONDS_MAX = 2 * REPORT_SECONDS, 2 * SWEEP_SECONDS
"""Older metadata of the table and of the ledger is ignored."""


def make_table_check(stream: AnyStream, settings: Settings) -> AssetChecksDefinition:
    """The check `complete_and_in_order` of `<stream>/table`; it may run in parallel with a writing stream."""
    folders = StreamFolders(stream.name, settings.table_root)

    @asset_check(
        asset=make_table_key(stream),
        name=CHECK,
        blocking=True,
        description=(
            f"Great Expectations on a summary of {stream.name} and its ledger: every offset is accounted for "
            "once, no row is there twice, sequences rise."
        ),
    )
    def check(context: AssetCheckExecutionContext, spark: SparkResource) -> AssetCheckResult:
        if not delta_log.has_log(folders.table):
            return _nothing_yet(f"{stream.name} has no table yet")
        context.log.info("checking %s", folders.table)
        try:
            checked = _check(stream, folders, spark)
        except LockstepError as error:
            raise report_failure(error) from error
        if materialization := find_checked_version(stream, checked, context, time.time()):
            context.op_execution_context.log_event(materialization)
        return _result(checked, folders)

    return check


def find_checked_version(
    stream: AnyStream, checked: "Checked", context: AssetCheckExecutionContext, now: float
) -> AssetMaterialization | None:
    """The materialization of the checked version; None when no evidence shows that the table is up to date.

    A never-ending run only observes the table, as each materialization would make the check look outdated.
    So the check materializes, in one run with its result, the version it has checked: if that
    version was not materialized before, or the ledger's own materialization shows that there is no lag.
    """
    instance, run = context.instance, context.run.run_id
    event = instance.get_latest_materialization_event(make_table_key(stream))
    if event is not None and event.run_id == run:
        return None  # the bounded run of this check materializes
    before = event.asset_materialization.metadata.get(VERSION) if event and event.asset_materialization else None
    is_new = before is None or before.value != checked.versions.table
    ledger = instance.get_latest_materialization_event(make_ledger_key(stream))
    if not checked.rows or not (is_new or (ledger and is_ledger_fresh(stream.trigger, ledger.timestamp, now))):
        return None
    window = _last_figures(instance, make_table_key(stream), now - WINDOW_SECONDS_MAX)
    figures = window | _last_figures(instance, make_ledger_key(stream), now - LEDGER_SECONDS_MAX)
    return AssetMaterialization(
        make_table_key(stream),
        metadata={
            **{name: figures[name] for name in LEADING if name in figures},
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
    return dict(event.metadata) if event is not None else {}


def may_begin_unseen(stream: AnyStream) -> bool:
    """Whether sequence numbers may fall without a message that has no rows in between: the next session began."""
    ends_with_rows = is_overridden(type(stream.transform), "on_end") or stream.event_time.session_idle is not None
    return stream.integrity.session_start is SessionStart.FIRST_MESSAGE and ends_with_rows


def _check(stream: AnyStream, folders: StreamFolders, spark: SparkResource) -> "Checked":
    def work() -> "Checked":
        from lockstep.quality.check import check_stream

        session = spark.session(f"{stream.name} check")
        snapshots_emit = type(stream.transform).on_snapshot is not TableFold.on_snapshot
        in_order = stream.integrity.in_order and not may_begin_unseen(stream)
        return check_stream(session, folders, snapshots_emit=snapshots_emit, in_order=in_order)

    try:
        return run_off_main_thread(
            work, StopSignal(), patience_seconds=PATIENCE_SECONDS, tick=lambda: None, abandon=spark.cancel
        )
    except StopTimeout as abandoned:
        raise DagsterExecutionInterruptedError(f"stopped ({abandoned})") from None


def _result(checked: "Checked", folders: StreamFolders) -> AssetCheckResult:
    from lockstep.quality.check import make_result_path
    from lockstep.quality.rules import RuleOutcome

    metadata: dict[str, RawMetadataValue] = {
        "rules": MetadataValue.table([_record(result) for result in checked.results]),
        "rows": checked.rows,
        VERSION: checked.versions.table,
        "result": MetadataValue.path(make_result_path(folders)),
        **{f"worst_{result.rule}": _worst(result) for result in checked.results if result.worst},
    }
    if all(result.outcome is RuleOutcome.NOTHING for result in checked.results):
        return _nothing_yet("no row is committed yet", metadata)
    return AssetCheckResult(passed=checked.passed, description=_says(checked), metadata=metadata)


def _nothing_yet(why: str, metadata: "dict[str, RawMetadataValue] | None" = None) -> AssetCheckResult:
    """Nothing to check is not a pass, and no reason to block either."""
    return AssetCheckResult(
        passed=False, severity=AssetCheckSeverity.WARN, description=f"nothing to check: {why}", metadata=metadata
    )


def _says(checked: "Checked") -> str:
    if checked.passed:
        return f"{checked.rows} rows and their ledger, up to table version {checked.versions.table}"
    broken = [result for result in checked.results if result.observed or result.crashed]
    return "; ".join(f"{result.outcome.value}: {result.sentence} {result.reason}".strip() for result in broken)


def _record(result: "RuleResult") -> TableRecord:
    return TableRecord(
        {
            "rule": result.rule,
            "outcome": result.outcome.value,
            "observed": result.observed,
            "threshold": result.threshold,
            "unexpected": result.unexpected,
            "checked": result.checked,
            "promise": result.sentence,
            "reason": result.reason,
        }
    )


def _worst(result: "RuleResult") -> "RawMetadataValue":
    return MetadataValue.table([TableRecord(place) for place in result.worst])
