"""The check `health` of a stream's table: its alarms, as Dagster shows them.

The health sensor evaluates it without a run: on a change, every half hour, and after a run that left it out. Before the
first time it shows no result, which is not a pass. It may be executed by hand, and blocks no asset after the
table. After such a run the sensor repeats the last results of the table's other checks, which have not changed.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    DagsterEventType,
    DagsterInstance,
    MetadataValue,
    RunRequest,
    TableColumn,
    TableRecord,
    TableSchema,
    asset_check,
)

from lockstep.declare.stream import AnyStream
from lockstep.operations.alarms import Alarm, AlarmSeverity, HealthFacts
from lockstep.operations.followers import FollowerLag
from lockstep.operations.inspect.health import read_health
from lockstep.operations.stream_handle import StreamHandle
from lockstep.orchestration.markdown import escape_markdown
from lockstep.orchestration.names import HEALTH, list_checks, make_table_key, name_checks_step, name_part_job
from lockstep.settings import Settings

if TYPE_CHECKING:
    from dagster import EventLogRecord

    from lockstep.orchestration.dagster_types import RawMetadataValue


ALARM_COLUMNS = TableSchema(
    [
        TableColumn("alarm", "string", description="its kind: docs/health.md"),
        TableColumn("severity", "string", description="error: act now; warning: act today"),
        TableColumn("problem", "string"),
        TableColumn("next", "string", description="the command to run next"),
    ]
)


def make_health_check(stream: AnyStream, settings: Settings) -> AssetChecksDefinition:
    """The check `health` of `<stream>/table`."""

    @asset_check(
        asset=make_table_key(stream),
        name=HEALTH,
        description=(
            f"Alarms of {stream.name}, before data is lost: freshness, retention headroom, stalled batches, partitions "
            "without a leader, open transactions, quarantine, compaction. Evaluated by the health sensor; "
            f"`lockstep status {stream.name}` shows the same."
        ),
    )
    def check() -> AssetCheckResult:
        health = read_health(StreamHandle(stream, settings))
        return AssetCheckResult(
            passed=not health.alarms and not health.unknown,
            severity=find_severity(health.alarms),
            description=describe_health(health.facts, health.alarms),
            metadata=make_health_metadata(health.facts, health.alarms),
        )

    return check


def make_health_evaluation(
    stream: AnyStream, facts: HealthFacts, alarms: Sequence[Alarm], newest: "EventLogRecord | None"
) -> AssetCheckEvaluation:
    """An evaluation of the check without a run.

    Args:
        stream: The stream.
        facts: The known facts.
        alarms: The announced alarms.
        newest: The newest materialization of the table: Dagster shows a result together with the one it names.
    """
    from dagster._core.definitions.asset_checks.asset_check_evaluation import (
        AssetCheckEvaluationTargetMaterializationData,
    )

    target = None
    if newest is not None:
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=newest.storage_id, run_id=newest.run_id, timestamp=newest.timestamp
        )
    return AssetCheckEvaluation(
        asset_key=make_table_key(stream),
        check_name=HEALTH,
        passed=not alarms and not facts.unknown,
        severity=find_severity(alarms),
        description=describe_health(facts, alarms),
        metadata=make_health_metadata(facts, alarms),
        target_materialization_data=target,
        blocking=False,
    )


def find_newest_materialization(stream: AnyStream, instance: DagsterInstance) -> "EventLogRecord | None":
    """The newest materialization of the table; None without one."""
    return next(iter(instance.fetch_materializations(make_table_key(stream), limit=1).records), None)


def find_hidden_checks(stream: AnyStream, instance: DagsterInstance) -> frozenset[str]:
    """Names of the checks in whose place Dagster shows a run that has ended and did not execute them.

    Each Materialize plans all checks of the table. If the table's step fails, as of a halted stream, they do not
    run: Dagster shows "Execution failed", or "Skipped" after a termination or if a run had nothing new to check,
    until each is evaluated again. A run whose step of the checks failed has executed them.
    """
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

    table = make_table_key(stream)
    keys = [AssetCheckKey(table, name) for name in (HEALTH, *list_checks(stream))]
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    planned = {
        key.name: record.run_id
        for key, record in newest.items()
        if record.status is AssetCheckExecutionRecordStatus.PLANNED
    }
    over = set[str]()
    left_out = set[str]()
    for run_id in set(planned.values()):
        run = instance.get_run_by_id(run_id)
        # A run that was deleted evaluates nothing any more; whether it failed is not known.
        if run is None or run.is_finished:
            over.add(run_id)
        if run is not None and run.is_finished:
            has_failed = not run.is_success and _has_failed(name_checks_step(stream), run_id, instance)
            if not has_failed:
                left_out.add(run_id)
    hidden = {name for name, run_id in planned.items() if name != HEALTH and run_id in left_out}
    if planned.get(HEALTH) in over:
        hidden.add(HEALTH)
    return frozenset(hidden)


ROWS = ("rows", "run_rows", "rows_in_table")
"""Figures of an event of the table that count rows."""


def request_first_checks(
    stream: AnyStream, instance: DagsterInstance, newest: "EventLogRecord | None"
) -> RunRequest | None:
    """A run of the checks when the table has rows and no run ever planned one of them; None otherwise.

    Dagster counts a check without a result among those that did not pass: "0 / 9 Passed". Once requested, the run has
    planned all checks; after any result of it, the next run is that of the schedule.

    Args:
        stream: The stream, new or with a new rule.
        instance: Dagster.
        newest: The newest materialization of the table.
    """
    if newest is None:
        return None
    table = make_table_key(stream)
    names = list_checks(stream)
    keys = [AssetCheckKey(table, name) for name in names]
    executed = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    # All had a run: the schedule repeats them.
    if len(executed) == len(keys):
        return None
    events = (newest, *instance.fetch_observations(table, limit=1).records)
    if not any(map(_has_rows, events)):
        return None  # the checks would have nothing to check
    job = name_part_job(stream, "checks")
    # The key has the number of checks that had a result: a new rule makes another request.
    return RunRequest(run_key=f"{job} {newest.storage_id} {len(executed)}", job_name=job)


def _has_rows(record: "EventLogRecord") -> bool:
    event = record.asset_materialization or record.asset_observation
    if event is None:
        return False
    counts = [event.metadata[name].value for name in ROWS if name in event.metadata]
    return any(isinstance(count, int | float) and count > 0 for count in counts)


def list_last_results(
    stream: AnyStream, checks: Iterable[str], instance: DagsterInstance
) -> list[AssetCheckEvaluation]:
    """The newest evaluation of each of these checks that has one; it names the materialization that it judged."""
    from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES

    table = make_table_key(stream)
    results: list[AssetCheckEvaluation] = []
    for name in sorted(checks):
        records = instance.event_log_storage.get_asset_check_execution_history(
            AssetCheckKey(table, name), limit=1, status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
        )
        results += [record.evaluation for record in records if record.evaluation is not None]
    return results


def _has_failed(step: str, run_id: str, instance: DagsterInstance) -> bool:
    failures = instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_FAILURE).records
    return any(record.event_log_entry.step_key == step for record in failures)


def find_severity(alarms: Sequence[Alarm]) -> AssetCheckSeverity:
    """The severity of a check: that of its worst alarm."""
    is_error = any(alarm.severity is AlarmSeverity.ERROR for alarm in alarms)
    return AssetCheckSeverity.ERROR if is_error else AssetCheckSeverity.WARN


def describe_health(facts: HealthFacts, alarms: Sequence[Alarm]) -> str:
    """One paragraph an alarm, and one for the unknown, as Markdown."""
    lines = [f"{alarm.severity.value}: {alarm.problem} (next: {alarm.next_step})" for alarm in alarms]
    if facts.unknown:
        lines.append(f"unknown: {', '.join(kind.value for kind in facts.unknown)}")
    return "\n\n".join(map(escape_markdown, lines)) or "no alarm"


def make_health_metadata(facts: HealthFacts, alarms: Sequence[Alarm]) -> "dict[str, RawMetadataValue]":
    """The alarms as a table, and the known figures, to be plotted."""
    figures: dict[str, float | None] = {
        "lag_messages": facts.lag_messages,
        "waiting_seconds": facts.waiting_seconds,
        "freshness_seconds": facts.freshness_seconds,
        "headroom_hours": None if facts.headroom_seconds is None else facts.headroom_seconds / 3600,
        "unavailable_partitions": None if facts.kafka else len(facts.unavailable),
        "quarantined_messages": facts.quarantined_messages,
        "quarantined_last_hour": facts.quarantined_last_hour,
        "uncompacted_hours": facts.debt.hours,
    }
    records = [
        TableRecord(
            {
                "alarm": str(alarm.kind),  # Dagster refuses an enum
                "severity": alarm.severity.value,
                "problem": alarm.problem,
                "next": alarm.next_step,
            }
        )
        for alarm in alarms
    ]
    known_figures = {name: float(value) for name, value in figures.items() if value is not None}
    tables = {"alarms": MetadataValue.table(records, ALARM_COLUMNS)}
    if facts.followers:
        tables["followers"] = MetadataValue.table([_make_record(lag) for lag in facts.followers])
    return {**tables, **known_figures}


def _make_record(lag: FollowerLag) -> TableRecord:
    return TableRecord(
        {
            "kind": lag.name.kind,
            "follower": lag.name.name,
            "unread_batches": lag.unread_batches,
            "last_run_seconds": round(lag.last_run_seconds),
            "standing": lag.standing.value,
            "failure": lag.failure,
        }
    )
