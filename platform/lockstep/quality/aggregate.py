"""One two-level Spark aggregate of matching versions.

Rows and ledger ranges go through one shuffle, by topic id and partition, and are sorted by
offset: each row then has the range that covers it, whether the previous row has its coordinates,
and the number of messages before it. A second sort, by session, compares the sequences. The first
level counts by batch, so that errors of two batches cannot cancel out; the second by partition.

An increment is measured in the same way: the offset that each partition had reached and the last number of each session
take part as rows that count nothing. The user's rules are columns of the rows, true where a row violates them.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none

from lockstep.declare.rules import ColumnRule, InRange, InSet, Matches, Predicate, Rule, Unique
from lockstep.model.table_schema import IDENTITY, make_provenance_schema
from lockstep.quality.increment import Increment, SessionEnd, TableVersions
from lockstep.quality.rules import FileSummary, PartitionSummary
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.delta_log import Lineage
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, find_live_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession


_OPTIONS: Final = {
    # With it every shuffle is a job of its own, and there is nothing to adapt: the keys are partitions.
    "spark.sql.adaptive.enabled": "false",
    # The aggregate reads every file: data skipping only costs a job over the log.
    "spark.databricks.delta.stats.skipping": "false",
    # The default of 50 tasks for each scan of the log costs more than the log of a stream.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A failed conversion in a user's condition is null, which violates the rule, and not the end of all rules.
    "spark.sql.ansi.enabled": "false",
}
_SMALL_OPTIONS: Final = {
    # One task and no generated code: to write and compile a hundred classes costs more than to interpret a few rows.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SMALL_BYTES: Final = 2**20
"""Size of the data files up to which a check interprets its plan in one task: some 20,000 rows."""
SESSION_ENDS_MAX: Final = 200_000
"""Sessions whose last number is kept for the next increment, the newest of each partition: 12 MB at most. The numbers
of other sessions are compared within an increment only."""
SAMPLE_ROWS: Final = 20
"""Rows shown of a violated rule."""

_ROWS: Final = """
select _topic_id as topic_id, _topic as topic, _partition as partition, _emit_offset as at, 1 as kind,
       _row as row_number, _offset as offset, _session as session, _sequence as sequence,
       _event_time as event_time{violations}
from {rows}
"""

_RANGES: Final = """
with ranges as (
    select *,
           coalesce(max(until) over (
               partition by topic_id, partition order by start, until, batch
               rows between unbounded preceding and 1 preceding
           ), start) as reached,
           aggregate(holes, 0L, (total, hole) -> total + hole.until - hole.start) as hole_offsets,
           aggregate(filter(holes, hole -> hole.cause = 'unproven'), 0L,
                     (total, hole) -> total + hole.until - hole.start) as unproven_offsets
    from {ledger}
)
select topic_id, topic, partition, greatest(start, reached) as at, 0 as kind,
       struct(batch, until, until > greatest(start, reached) as covers, until - start as offsets_read, messages,
              if(until > start and batch > {retired}, rows, 0) as ledger_rows,
              if(until > start or batch <= {retired}, 0, rows) as silent_rows,
              if(batch > {retired}, with_rows, 0) as with_rows,
              released, buffered, late, if(batch > {retired}, timer_rows, 0) as timer_rows,
              if(batch > {retired}, accepted_without_row, coalesce(accepted_without_row + with_rows,
                 messages + released - skipped - dropped - quarantined - late - buffered)) as accepted_without_row,
              skipped, dropped, quarantined, repeats,
              hole_offsets as holes, unproven_offsets as unproven_holes,
              if(accepted_loss is null, 0L, until - start - messages - hole_offsets) as accepted_losses,
              greatest(start - reached, 0) as gap_offsets,
              greatest(least(until, reached) - start, 0) as overlap_offsets,
              aggregate(filter(erased, part -> part.batch > {retired}), 0L, (total, part) -> total + part.rows)
                  as erased_rows,
              aggregate(filter(erased, part -> part.batch > {retired}), 0L, (total, part) -> total + part.messages)
                  as erased_messages) as ledger
from ranges where not is_boundary
"""
"""A range covers the offsets that no earlier range covers, so each offset belongs to one batch. The rows of batches up
to {retired} were dropped by retention: their messages count as accepted without a row. The ledger row of an erasure
counts the rows that it removed."""

_SUMMARY: Final = """
with placed as (
    select *,
           last(if(ledger.covers, struct(ledger.batch, ledger.until), null)) ignore nulls over so_far as cover,
           kind = 1 and not coalesce(lag(kind) over in_order = 1 and lag(at) over in_order = at
               and lag(row_number) over in_order = row_number, false) as is_new_row,
           kind = 1 and not coalesce(lag(kind) over in_order = 1
               and lag(offset) over in_order = offset, false) as is_new_message,
           coalesce(known_own, offset = at) as is_own
    from {events}
    window in_order as (partition by topic_id, partition order by at, kind, row_number),
           so_far as (partition by topic_id, partition order by at, kind, row_number
                      rows between unbounded preceding and current row)
), counted as (
    select *, kind = 1 as is_row, coalesce(kind = 1 and at < cover.until, false) as inside,
           coalesce(known_number, count_if(is_new_message and is_own) over (
               partition by topic_id, partition order by at, kind, row_number
               rows between unbounded preceding and current row)) as message_number
    from placed
), compared as (
    select *,
           is_row and row_number() over in_session = 1 as is_new_session,
           is_row and lead(at) over in_session is null as ends_session,
           last(if(sequence is null, null, struct(sequence, at, message_number, is_own))) ignore nulls over (
               partition by topic_id, partition, session order by at, row_number
               rows between unbounded preceding and 1 preceding) as previous
    from counted
    window in_session as (partition by topic_id, partition, session order by at, row_number)
), by_batch as (
    select topic_id, partition, max(topic) as topic, max(ledger.batch) as ledger_batch,
           count_if(is_new_session) as sessions, count_if(is_row) as rows,
           count_if(is_new_row) as distinct_rows, count_if(is_row and not inside) as rows_outside,
           count_if(is_new_row and inside) as rows_inside,
           count_if(is_new_message and inside) as messages_with_rows,
           count_if(is_row and sequence is not null) as numbered_rows,
           count_if(sequence < previous.sequence and not may_restart) as sequence_falls,
           count_if(sequence = previous.sequence and at > previous.at and not may_restart) as sequence_repeats,
           count_if(sequence <= previous.sequence and may_restart) as sequence_restarts,
           max(ledger.with_rows) as with_rows, max(ledger.until) as reached,
           count_if(is_new_message and is_own) as new_messages,
           collect_list(if(ends_session and newest.sequence is not null,
                           struct(newest.at, session, newest.sequence, newest.message_number, newest.is_own), null))
               as session_ends,
           {sums},
           unix_micros(min(event_time)) as first_event_time_us,
           unix_micros(max(event_time)) as last_event_time_us
    from (select *, not previous.is_own
                    or at - previous.at > message_number - previous.message_number as may_restart,
                 if(sequence is null, previous, struct(sequence, at, message_number, is_own)) as newest
          from compared)
    group by topic_id, partition, if(is_row, if(inside, cover.batch, null), ledger.batch)
)
select topic_id, max(topic) as topic, partition, count(ledger_batch) as batches,
       if(sum(silent_rows) + sum(erased_rows) = 0, sum(abs(ledger_rows - rows_inside)),
          abs(sum(ledger_rows) + sum(silent_rows) - sum(erased_rows) - sum(rows))) as row_differences,
       sum(abs(offsets_read - messages - holes - accepted_losses)) as unexplained_offsets,
       if(sum(erased_messages) = 0,
          sum(abs(unaccounted))
              + if(sum(timer_rows) = 0, sum(abs(coalesce(with_rows, messages_with_rows) - messages_with_rows)), 0),
          sum(abs(if(with_rows is null, 0, unaccounted))) + if(sum(timer_rows) > 0, 0,
              abs(sum(if(with_rows is null, unaccounted, with_rows - messages_with_rows)) - sum(erased_messages))))
           as unexplained_messages,
       {totals},
       max(reached) as reached, sum(new_messages) as new_messages,
       slice(sort_array(flatten(collect_list(session_ends)), false), 1, {ends_max}) as session_ends,
       min(first_event_time_us) as first_event_time_us, max(last_event_time_us) as last_event_time_us
from (select *, messages + released - coalesce(with_rows, messages_with_rows) - accepted_without_row - skipped
             - dropped - quarantined - late - buffered as unaccounted
      from by_batch)
group by topic_id, partition
"""
"""Rows that timers emitted while a partition was idle belong to an empty range; a later range covers their
offset. So where there are any, rows are compared by partition, not by batch. Likewise where a session was erased.

A sequence may fall where a session ends and restarts, but the snapshot of the restart emits no row: a restart is
excluded only where every offset between the two rows has rows of its own. Those of timers and of released messages are
not: they belong to earlier offsets. Where the first of the two rows was released, its own emit offset may be the
snapshot's."""

_LEDGER_SUMS: Final = (
    "offsets_read",
    "messages",
    "ledger_rows",
    "accepted_without_row",
    "skipped",
    "dropped",
    "quarantined",
    "released",
    "buffered",
    "late",
    "timer_rows",
    "silent_rows",
    "erased_rows",
    "erased_messages",
    "repeats",
    "holes",
    "unproven_holes",
    "accepted_losses",
    "gap_offsets",
    "overlap_offsets",
)
_ROW_SUMS: Final = (
    "sessions",
    "rows",
    "distinct_rows",
    "rows_outside",
    "messages_with_rows",
    "numbered_rows",
    "sequence_falls",
    "sequence_restarts",
    "sequence_repeats",
)


class Summary(msgspec.Struct, frozen=True):
    """The measurements of a check.

    Attributes:
        partitions: By partition, in order of topic and partition.
        sessions: The newest sessions with numbers.
        uncompiled: Why a rule could not be measured, by its id.
        samples: Coordinates of rows that violate a rule, by its id.
    """

    partitions: tuple[PartitionSummary, ...]
    sessions: tuple[SessionEnd, ...] = ()
    uncompiled: Mapping[str, str] = {}
    samples: Mapping[str, tuple[dict[str, str | int | None], ...]] = {}


def summarize(
    spark: SparkSession,
    folders: StreamFolders,
    versions: TableVersions,
    rules: Sequence[Rule] = (),
    increment: Increment | None = None,
) -> Summary:
    """Measure all partitions that have rows or ledger ranges.

    Takes three Spark jobs for a whole table (the files of each table, the aggregate), one for an increment, and one or
    two for the samples of all violated rules, besides Delta's jobs to read a log for the first time; where a rule
    raises, one for each rule, and all of them again. Leaves nothing cached.

    Args:
        spark: A session with Delta's extensions, as `prepare_session` configures it; its options remain unchanged.
        folders: The stream.
        versions: The versions to measure.
        rules: The user's rules; those that are no condition on rows are passed over.
        increment: What was added since an earlier check; None for the whole table.
    """
    from pyspark.errors import PySparkException

    with open_rows(spark, folders, versions, increment) as (session, rows):
        violations, uncompiled = compile_rules(rows, rules)
        events = _Events(session, folders, versions, rows, increment)
        try:
            return _measure(events, violations, uncompiled)
        except (PySparkException, Py4JError):
            raising = _find_raising(rows, violations)
            if not raising:
                raise
            rest = [(rule, flag) for rule, flag in violations if rule.name not in raising]
            return _measure(events, rest, uncompiled | raising)


@dataclass(frozen=True)
class _Events:
    """What a check measures: the rows that it reads, and what belongs to them."""

    session: SparkSession
    folders: StreamFolders
    versions: TableVersions
    rows: DataFrame
    increment: Increment | None


def _measure(events: _Events, violations: Sequence[tuple[Rule, Column]], uncompiled: Mapping[str, str]) -> Summary:
    flags = [_name_flag(number) for number in range(len(violations))]
    flagged = events.rows.withColumns(dict(zip(flags, (flag for _, flag in violations), strict=True)))
    known = events.increment.state.totals if events.increment else ()
    text = _make_summary_text(flags, max(100, SESSION_ENDS_MAX // max(1, len(known))))
    summary = events.session.sql(text, events=_load_events(events, flagged, flags))
    found = [row.asDict(recursive=True) for row in summary.collect()]
    ids = [rule.name for rule, _ in violations]
    partitions = [_read_partition(row, ids) for row in found]
    violated = [number for number, name in enumerate(ids) if any(place.violations[name] for place in partitions)]
    samples = _collect_samples(flagged, {ids[number]: flags[number] for number in violated})
    partitions.sort(key=lambda place: (place.topic, place.topic_id, place.partition))
    ends = tuple(_read_session_end(row, end) for row in found for end in row["session_ends"])
    return Summary(tuple(partitions), ends, uncompiled, samples)


def _find_raising(rows: DataFrame, violations: Iterable[tuple[Rule, Column]]) -> dict[str, str]:
    """Why some rules raise on rows, by their ids; each is run alone."""
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import count_if

    raising: dict[str, str] = {}
    for rule, flag in violations:
        try:
            rows.select(flag.alias("violates")).select(count_if("violates")).collect()
        except (PySparkException, Py4JError) as error:
            raising[rule.name] = _describe(error)
    return raising


def _describe(error: Exception) -> str:
    """What Spark or Java says first; a failed job says it last."""
    text = str(getattr(error, "java_exception", "") or error).strip().partition("\n")[0]
    return text.rpartition(" executor driver): ")[2] or type(error).__name__


def _read_partition(row: dict[str, Any], rules: Sequence[str]) -> PartitionSummary:
    violations = {name: row[_name_flag(number)] for number, name in enumerate(rules)}
    return msgspec.convert(row | {"violations": violations}, PartitionSummary)


def _read_session_end(row: dict[str, Any], end: dict[str, Any]) -> SessionEnd:
    number = end["message_number"] - row["new_messages"]
    place = row["topic_id"], row["partition"]
    return SessionEnd(*place, end["session"], end["sequence"], end["at"], number, end["is_own"])


def _load_events(events: _Events, rows: DataFrame, flags: Sequence[str]) -> DataFrame:
    """Rows, ledger ranges, and what is known of the time before."""
    session, versions, increment = events.session, events.versions, events.increment
    ledger = _load_ledger(session, events.folders.ledger, versions, increment)
    retired = 0 if increment else versions.retired  # of an increment the files themselves are read, also dropped ones
    ranges = session.sql(_RANGES, ledger=ledger, retired=retired)
    violations = "".join(f", {flag}" for flag in flags)
    flagged = session.sql(_ROWS.replace("{violations}", violations), rows=rows)
    ends = session.createDataFrame(_make_ends(increment.state.sessions if increment else ()))
    return flagged.unionByName(ranges, allowMissingColumns=True).unionByName(ends, allowMissingColumns=True)


def _load_ledger(
    session: SparkSession, ledger: Path, versions: TableVersions, increment: Increment | None
) -> DataFrame:
    """The ledger rows of the batches, with all current columns; an older release wrote fewer.

    Those of an increment follow one row a partition, which ends where the earlier check ended and counts nothing.
    """
    from pyspark.sql.functions import col, lit

    if increment is None:
        since, frame = 0, _load(session, ledger, versions.ledger)
    else:
        since = increment.state.versions.batch
        paths = find_live_paths(ledger, first_batch=since + 1, last_batch=versions.batch)
        frame = _load_files(session, ledger, versions.ledger, [_make_action(ledger, path) for path in paths])
    missing = [name for name in LedgerRow.__struct_fields__ if name not in frame.columns]
    frame = frame.withColumns({name: lit(None).cast(_NESTED.get(name, "long")) for name in missing})
    frame = frame.where((col("batch") > since) & (col("batch") <= versions.batch)).where(_counts(versions.valid))
    frame = frame.withColumn("is_boundary", lit(False))  # noqa: FBT003  # a value
    if increment is None:
        return frame
    boundary = session.createDataFrame(_make_boundary(increment.state.totals))
    return frame.unionByName(boundary, allowMissingColumns=True)


_NESTED: Final = {"erased": "array<struct<digest: string, start: long, batch: long, rows: long, messages: long>>"}
"""Types of columns that an older release lacks, where they are no number."""


def _counts(valid: Iterable[Lineage]) -> str:
    """Batches that count: rewinds undid the others."""
    return " or ".join(f"generation = {each.generation} and batch <= {each.last_batch}" for each in valid)


def _make_action(folder: Path, path: str) -> str:
    """The log's line for a live file, as far as reading it needs it."""
    status = find_storage(folder).get_status(folder / path)
    size, changed = (status.size, status.modified_at) if status is not None else (0, 0.0)
    line = {"path": path, "partitionValues": {}, "size": size, "modificationTime": int(1000 * changed)}
    return msgspec.json.encode({"add": line | {"dataChange": True}}).decode()


def _make_boundary(totals: Iterable[PartitionSummary]) -> pa.Table:
    reached = [(place.topic_id, place.partition, place.reached) for place in totals if place.reached is not None]
    return pa.table(
        {
            "topic_id": pa.array([topic_id for topic_id, _, _ in reached], pa.string()),
            "partition": pa.array([partition for _, partition, _ in reached], pa.int32()),
            "start": pa.array([-1] * len(reached), pa.int64()),  # before all ranges
            "until": pa.array([until for _, _, until in reached], pa.int64()),
            "is_boundary": pa.array([True] * len(reached), pa.bool_()),
        }
    )


def _make_ends(ends: Sequence[SessionEnd]) -> pa.Table:
    """Session ends as events, before all rows of the increment."""
    return pa.table(
        {
            "topic_id": pa.array([end.topic_id for end in ends], pa.string()),
            "partition": pa.array([end.partition for end in ends], pa.int32()),
            "at": pa.array([end.at for end in ends], pa.int64()),
            "kind": pa.array([2] * len(ends), pa.int32()),
            "row_number": pa.array([-1] * len(ends), pa.int32()),
            "session": pa.array([end.session for end in ends], pa.string()),
            "sequence": pa.array([end.sequence for end in ends], pa.int64()),
            "known_number": pa.array([end.number for end in ends], pa.int64()),
            "known_own": pa.array([end.is_own for end in ends], pa.bool_()),
        }
    )


def _name_flag(number: int) -> str:
    return f"violates_{number}"


def compile_rules(rows: DataFrame, rules: Iterable[Rule]) -> tuple[list[tuple[Rule, Column]], dict[str, str]]:
    """For each rule the rows that violate it, as a column; and why some have none, by the rule's id."""
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import coalesce, lit

    failed: dict[str, str] = {}
    conditions: dict[str, tuple[Rule, Column]] = {}
    for rule in rules:
        if isinstance(rule, ColumnRule | Unique | Predicate):
            try:
                conditions[rule.name] = rule, _compile(rule)
            except (PySparkException, Py4JError) as error:  # the latter of a literal that Java cannot hold
                failed[rule.name] = _describe(error)
    kinds, unresolved = _resolve(rows, {name: condition for name, (_, condition) in conditions.items()})
    failed |= unresolved | {
        name: f"the condition is of type {kind}, not boolean" for name, kind in kinds.items() if kind != "boolean"
    }
    sound = [parts for name, parts in conditions.items() if name not in failed]
    return [(rule, ~coalesce(condition, lit(False))) for rule, condition in sound], failed  # noqa: FBT003  # a value


def _resolve(rows: DataFrame, conditions: Mapping[str, Column]) -> tuple[dict[str, str], dict[str, str]]:
    """The type of each condition, and why some have none; all at once, and one by one only where that fails.

    Each stands with the other columns, as it will: an aggregate has a type, and no value of a row.
    """
    from pyspark.errors import PySparkException

    try:
        columns = {_name_flag(number): condition for number, condition in enumerate(conditions.values())}
        schema = rows.withColumns(columns).schema
    except (PySparkException, Py4JError) as error:
        if len(conditions) == 1:
            return {}, dict.fromkeys(conditions, _describe(error))
        parts = [_resolve(rows, {name: condition}) for name, condition in conditions.items()]
        return reduce(operator.or_, (kinds for kinds, _ in parts)), reduce(operator.or_, (why for _, why in parts))
    return {name: schema[flag].dataType.simpleString() for name, flag in zip(conditions, columns, strict=True)}, {}


def _compile(rule: ColumnRule | Unique | Predicate) -> Column:
    """The condition that a row fulfils; null counts as violated."""
    from pyspark.sql.functions import col, expr, row_number
    from pyspark.sql.window import Window

    match rule:
        case Predicate(condition=text):
            return expr(text)
        case Unique(columns=columns, scope=scope):
            keys = [f"`{name}`" for name in (*columns, *_SCOPES[scope.value])]
            return row_number().over(Window.partitionBy(*keys).orderBy(*IDENTITY)) == 1
        case ColumnRule(column=name):
            value = col(f"`{name}`")
            condition = _compile_column(rule, value)
            return value.isNull() | condition if rule.allows_null else condition


_SCOPES: Final = {
    "message": ("_topic_id", "_partition", "_offset", "_emit_offset"),
    "session": ("_topic_id", "_partition", "_session"),
    "table": (),
}


def _compile_column(rule: ColumnRule, value: Column) -> Column:
    from pyspark.sql.functions import isnan, lit, rlike

    match rule:
        case InRange(at_least=low, at_most=high):
            bounds = [value >= lit(low)] if low is not None else []
            bounds += [value <= lit(high)] if high is not None else []
            if isinstance(low, int | float) or isinstance(high, int | float):
                bounds.append(~isnan(value.cast("double")))
            return reduce(operator.and_, bounds)
        case InSet(values=values):
            return value.isin([lit(each) for each in values])
        case Matches(pattern=pattern):
            return rlike(value, lit(rf"(?d)\A(?:{pattern})\z"))  # d: only \n ends a line, as in Python
        case _:
            return value.isNotNull()


def _collect_samples(
    rows: DataFrame, violated: Mapping[str, str]
) -> dict[str, tuple[dict[str, str | int | None], ...]]:
    """Coordinates of the first rows that violate each rule, by its id; one query for all rules."""
    from pyspark.sql.functions import array, array_compact, col, explode, lit, row_number, when
    from pyspark.sql.window import Window

    if not violated:
        return {}
    named = [when(col(flag), lit(rule)) for rule, flag in violated.items()]
    found = rows.select(explode(array_compact(array(*named))).alias("rule"), "_topic", "_session", "_offset", *IDENTITY)
    numbered = found.withColumn("number", row_number().over(Window.partitionBy("rule").orderBy(*IDENTITY)))
    samples = dict[str, list[dict[str, str | int | None]]]()
    for row in numbered.where(col("number") <= SAMPLE_ROWS).orderBy("rule", "number").collect():
        shown = {"topic": row["_topic"], "partition": row["_partition"], "offset": row["_offset"]}
        shown |= {"emit_offset": row["_emit_offset"], "row": row["_row"], "session": row["_session"]}
        samples.setdefault(row["rule"], []).append(shown)
    return {rule: tuple(shown) for rule, shown in samples.items()}


def summarize_files(table: Path, version: int) -> tuple[FileSummary, ...]:
    """Count the nulls of the NOT NULL provenance columns, file by file, from the log.

    Spark cannot: the columns are declared NOT NULL, so it evaluates `is null` to false without
    reading, and reads a null as zero or fails. The log's counts come from the Parquet footers.
    """
    actions = pa.table(delta_log.open_delta_table(table, version=version).get_add_actions(flatten=True))
    required = [f"null_count.{field.name}" for field in make_provenance_schema() if not field.nullable]
    return tuple(_file_summary(action, required) for action in actions.to_pylist())


def _file_summary(action: dict[str, object], required: list[str]) -> FileSummary:
    rows = action.get("num_records")
    counts = [action.get(name) for name in required]
    held = rows if isinstance(rows, int) else 1  # a file with an unknown number of rows is not proved
    return FileSummary(
        path=str(action["path"]),
        rows=held,
        nulls=sum(count for count in counts if isinstance(count, int)),
        uncounted=held * sum(1 for count in counts if count is None),
        size=int(str(action["size_bytes"])),
    )


def _make_summary_text(flags: Sequence[str], ends_max: int) -> str:
    sums = [f"coalesce(sum(ledger.{name}), 0) as {name}" for name in _LEDGER_SUMS]
    sums += [f"count_if(is_row and {flag}) as {flag}" for flag in flags]
    totals = ", ".join(f"sum({name}) as {name}" for name in (*_LEDGER_SUMS, *_ROW_SUMS, *flags))
    text = _SUMMARY.replace("{sums}", ", ".join(sums)).replace("{totals}", totals)
    return text.replace("{ends_max}", str(ends_max))


def _load(session: SparkSession, table: Path, version: int) -> DataFrame:
    return session.read.format("delta").option("versionAsOf", version).load(find_storage(table).uri(table))


def _load_files(session: SparkSession, table: Path, version: int, actions: Iterable[str]) -> DataFrame:
    """Some files of a Delta table, also files that were compacted since; as Delta's own streaming source reads them."""
    from pyspark.sql import DataFrame

    jvm: Any = session._jvm  # noqa: SLF001  # Delta offers this in Scala only
    jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001  # the session of the frame
    none, files = jvm.scala.Option.empty(), jvm.java.util.ArrayList()
    for action in actions:
        files.add(jvm.org.apache.spark.sql.delta.actions.Action.fromJson(action))
    listed = jvm.scala.jdk.javaapi.CollectionConverters.asScala(files).toSeq()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, find_storage(table).uri(table))  # noqa: SLF001  # as above
    snapshot = log.getSnapshotAt(version, none, none, False)  # noqa: FBT003  # Scala's
    return DataFrame(log.createDataFrame(snapshot, listed, False, none), session)  # noqa: FBT003  # as above


@contextmanager
def open_rows(
    spark: SparkSession, folders: StreamFolders, versions: TableVersions, increment: Increment | None
) -> Iterator[tuple[SparkSession, DataFrame]]:
    """The rows of a check, in a session with options of its own; afterwards Delta's cached logs are discarded."""
    session = spark.newSession()
    for name, value in _OPTIONS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(2 * session.sparkContext.defaultParallelism))
    for name, value in _SMALL_OPTIONS.items() if _measure_size(folders, versions, increment) <= SMALL_BYTES else ():
        session.conf.set(name, value)
    try:
        if increment is None:
            yield session, _load(session, folders.table, versions.table)
        else:
            actions = [file.action for file in increment.files]
            yield session, _load_files(session, folders.table, versions.table, actions)
    finally:
        for table in (folders.table, folders.ledger):
            _forget(session, table)


def _measure_size(folders: StreamFolders, versions: TableVersions, increment: Increment | None) -> int:
    """Bytes of the data files that a check reads."""
    if increment is not None:
        return sum(file.size for file in increment.files)
    actions = pa.table(delta_log.open_delta_table(folders.table, version=versions.table).get_add_actions())
    return sum(size or 0 for size in actions["size_bytes"].to_pylist())


def _forget(session: SparkSession, table: Path) -> None:
    jvm = session._jvm  # noqa: SLF001  # Delta offers this in Scala only
    if jvm is None:  # pragma: no cover  # classic sessions have one
        raise TypeError("not a classic Spark session")
    log = jvm.org.apache.spark.sql.delta.DeltaLog
    log.invalidateCache(session._jsparkSession, jvm.org.apache.hadoop.fs.Path(find_storage(table).uri(table)))  # noqa: SLF001  # as above
