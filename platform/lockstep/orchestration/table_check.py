"""The blocking check of a stream's table: what comes after the table waits for it."""

from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    DagsterExecutionInterruptedError,
    MetadataValue,
    TableRecord,
    asset_check,
)

from lockstep.engine.beside import Abandoned, Stopping, run_beside
from lockstep.engine.hands import AnyStream
from lockstep.errors import LockstepError
from lockstep.folds.table import TableFold
from lockstep.orchestration.endings import failed
from lockstep.orchestration.names import CHECK, table_key
from lockstep.orchestration.spark import SparkResource
from lockstep.settings import Settings
from lockstep.table import log
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from dagster._core.definitions.metadata import RawMetadataValue

    from lockstep.quality.check import Checked
    from lockstep.quality.rules import RuleResult

PATIENCE_SECONDS = 5.0
"""A check changes nothing: a stop hardly waits for it."""


def table_check(stream: AnyStream, settings: Settings) -> AssetChecksDefinition:
    """The check `complete_and_in_order` of `<stream>/table`; it may run beside a writing stream."""
    folders = StreamFolders(stream.name, settings.table_root)

    @asset_check(
        asset=table_key(stream),
        name=CHECK,
        blocking=True,
        description=(
            f"Great Expectations on a summary of {stream.name} and its ledger: every offset is accounted for "
            "once, no row is there twice, sequences rise."
        ),
    )
    def check(context: AssetCheckExecutionContext, spark: SparkResource) -> AssetCheckResult:
        if not log.exists(folders.table):
            return _nothing_yet(f"{stream.name} has no table yet")
        context.log.info("checking %s", folders.table)
        try:
            return _result(_check(stream, folders, spark), folders)
        except LockstepError as error:
            raise failed(error) from error

    return check


def _check(stream: AnyStream, folders: StreamFolders, spark: SparkResource) -> "Checked":
    def work() -> "Checked":
        from lockstep.quality.check import check_stream

        session = spark.session(f"{stream.name} check")
        snapshots_emit = type(stream.transform).open is not TableFold.open
        in_order = stream.integrity.in_order
        return check_stream(session, folders, snapshots_emit=snapshots_emit, in_order=in_order)

    try:
        return run_beside(work, Stopping(), patience_seconds=PATIENCE_SECONDS, tick=lambda: None, abandon=spark.cancel)
    except Abandoned as abandoned:
        raise DagsterExecutionInterruptedError(f"stopped ({abandoned})") from None


def _result(checked: "Checked", folders: StreamFolders) -> AssetCheckResult:
    from lockstep.quality.check import result_file
    from lockstep.quality.rules import Outcome

    metadata: dict[str, RawMetadataValue] = {
        "rules": MetadataValue.table([_record(result) for result in checked.results]),
        "rows": checked.rows,
        "table_version": checked.versions.table,
        "result": MetadataValue.path(result_file(folders)),
        **{f"worst_{result.rule}": _worst(result) for result in checked.results if result.worst},
    }
    if all(result.outcome is Outcome.NOTHING for result in checked.results):
        return _nothing_yet("no row is committed yet", metadata)
    return AssetCheckResult(passed=checked.passed, description=_says(checked), metadata=metadata)


def _nothing_yet(why: str, metadata: "dict[str, RawMetadataValue] | None" = None) -> AssetCheckResult:
    """Nothing to check is not a pass, and no reason to hold anything up either."""
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
