"""One Spark aggregate of matching versions.

Rows, ledger ranges and facts from earlier checks go through one shuffle, by topic id and partition, and are
sorted by offset; `partitions.py` measures them so. The user's rules are columns of the rows, true where a row violates
them.
"""

from __future__ import annotations

import math
import operator
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none

from lockstep.declare.rules import Bound, ColumnRule, InRange, InSet, Matches, Predicate, References, Rule, Unique
from lockstep.features.quality.increment import CheckState, Increment, TableVersions
from lockstep.features.quality.partitions import (
    END,
    ORDER,
    RANGE,
    RANGE_VALUES,
    REACHED,
    ROW,
    RULES_OF_MASK,
    MeasuredPartition,
    SessionEnd,
    summarize_partitions,
)
from lockstep.features.quality.rules import FileSummary, PartitionSummary
from lockstep.integrity.base import EPOCH, to_microseconds
from lockstep.model.column_types import MAX_PRECISION
from lockstep.model.table_schema import IDENTITY, make_provenance_schema
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.head import Lineage
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LOSSES, LedgerRow, find_live_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType


_OPTIONS: Final = {
    # With it every shuffle is a separate job, and it has nothing to adapt: the keys are partitions.
    "spark.sql.adaptive.enabled": "false",
    # The aggregate reads every file: data skipping only costs a job over the log.
    "spark.databricks.delta.stats.skipping": "false",
    # The default of 50 tasks for each scan of the log costs more than the log of a stream.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A failed conversion in a user's condition is null, which violates the rule, and not the end of all rules.
    "spark.sql.ansi.enabled": "false",
    # With a limit of bytes, Spark adds up a whole Arrow batch at each of its rows; events are small.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
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
select xxhash64(_topic_id, int(_partition)) as place, _emit_offset as at, {kind} as kind,
       cast(_row as long) as row_number, _offset as offset, _session as session,
       if(_cause = 'late', null, _sequence) as sequence, _cause = 'snapshot' as restarts,
       unix_micros(_event_time) as event_time, {violated} as violated
from {rows}
"""
"""The row of a late message has no number here: it is lower than those before by its nature."""

_RANGES: Final = """
select xxhash64(topic_id, int(partition)) as place, topic_id, topic, int(partition) as partition,
       start as at, {kind} as kind, until as row_number, batch as offset,
       array({values}) as values
from (
    select topic_id, topic, partition, start, batch, until, messages,
           if(until > start and batch > {retired}, rows, 0) as ledger_rows,
           coalesce(if(batch > {retired}, with_rows, 0), -1) as with_rows,
           if(until > start or batch <= {retired}, 0, rows) as silent_rows,
           if(batch > {retired}, timer_rows, 0) as timer_rows,
           released, buffered, late,
           if(batch > {retired}, accepted_without_row, coalesce(accepted_without_row + with_rows,
              messages + released - skipped - dropped - quarantined - late - buffered)) as accepted_without_row,
           skipped, dropped, quarantined, repeats,
           aggregate(holes, 0L, (total, hole) -> total + hole.until - hole.start) as holes,
           aggregate(filter(holes, hole -> hole.cause = 'unproven'), 0L,
                     (total, hole) -> total + hole.until - hole.start) as unproven_holes,
           if(messages = 0 and exists(accepted, each -> each.kind in ({losses})), until - start, 0L)
               as accepted_losses,
           aggregate(filter(erased, part -> part.batch > {retired}), 0L, (total, part) -> total + part.rows)
               as erased_rows,
           aggregate(filter(erased, part -> part.batch > {retired}), 0L, (total, part) -> total + part.messages)
               as erased_messages
    from {ledger}
)
"""
"""The rows of batches up to {retired} were dropped by retention: their messages count as accepted without a row. The
ledger row of an erasure counts the rows that it removed."""


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
    removed: str | None = None,
) -> Summary:
    """Measure all partitions that have rows or ledger ranges.

    Takes two Spark jobs for a whole table (its files, the aggregate), one for an increment, and one or two for the
    samples of all violated rules, besides Delta's jobs to read a log for the first time; if a rule
    raises, one for each rule, and all of them again. Leaves nothing cached.

    Args:
        spark: A session with Delta's extensions, as `prepare_session` configures it; its options remain unchanged.
        folders: The stream.
        versions: The versions to measure.
        rules: The user's rules; rules that are not conditions on rows are skipped.
        increment: The additions since an earlier check; None for the whole table.
        removed: The column that is null in the row of a removed key, which rules about values pass over.
    """
    from pyspark.errors import PySparkException

    with open_rows(spark, folders, versions, increment) as (session, read):
        rows, unreadable = _join_references(session, folders.root, read, rules)
        readable = [rule for rule in rules if rule.name not in unreadable]
        violations, uncompiled = compile_rules(rows, readable, removed)
        uncompiled |= unreadable
        events = _Events(session, folders, versions, rows, increment)
        try:
            return _measure(events, violations, uncompiled)
        except (PySparkException, Py4JError):
            # The query of all rules does not tell which of them raised.
            raising = _find_raising(rows, violations)
            if not raising:
                raise
            judgeable = [(rule, flag) for rule, flag in violations if rule.name not in raising]
            return _measure(events, judgeable, uncompiled | raising)


@dataclass(frozen=True)
class _Events:
    """The input of a check: the rows that it reads, with their context."""

    session: SparkSession
    folders: StreamFolders
    versions: TableVersions
    rows: DataFrame
    increment: Increment | None


def _measure(events: _Events, violations: Sequence[tuple[Rule, Column]], uncompiled: Mapping[str, str]) -> Summary:
    ids: list[str] = []
    columns: dict[str, Column] = {}
    for number, (rule, violates) in enumerate(violations):
        ids.append(rule.name)
        columns[_name_flag(number)] = violates
    flagged = events.rows.withColumns(columns)
    measure = partial(summarize_partitions, rules=ids, ends_max=_limit_ends(events.increment))
    placed = _place(events.session, _load_events(events, flagged, list(columns))).sortWithinPartitions(*ORDER)
    rows = placed.mapInArrow(measure, "measured binary").collect()
    decoded = [msgspec.msgpack.decode(row["measured"], type=MeasuredPartition) for row in rows]
    partitions: list[PartitionSummary] = []
    ends: list[SessionEnd] = []
    violated = set[str]()
    for measured in _name_places(events.rows, decoded):
        partitions.append(measured.summary)
        ends += measured.ends
        violated |= {rule for rule, rows in measured.summary.violations.items() if rows}
    partitions.sort(key=lambda summary: (summary.topic, summary.topic_id, summary.partition))
    samples = _collect_samples(
        flagged, {rule: flag for rule, flag in zip(ids, columns, strict=True) if rule in violated}
    )
    return Summary(tuple(partitions), tuple(ends), uncompiled, samples)


def _limit_ends(increment: Increment | None) -> int:
    """Session ends that a partition may return, so that all partitions of the earlier check share the limit."""
    if increment is None:
        return SESSION_ENDS_MAX
    partitions = {(end.topic_id, end.partition) for end in increment.state.sessions}
    return max(100, SESSION_ENDS_MAX // max(1, len(partitions)))


def _name_places(rows: DataFrame, found: Sequence[MeasuredPartition]) -> list[MeasuredPartition]:
    """The measurements, also those of partitions without a ledger range, with topic and number."""
    from pyspark.sql.functions import col

    unnamed = [measured.place for measured in found if not measured.summary.topic_id]
    if not unnamed:
        return list(found)
    # Only rows without any ledger range, a fault, cost this further query.
    places = rows.select(_hash_place("_topic_id", "_partition").alias("place"), "_topic_id", "_topic", "_partition")
    names = {row["place"]: row for row in places.where(col("place").isin(unnamed)).distinct().collect()}
    named: list[MeasuredPartition] = []
    for measured in found:
        if measured.place in names:
            named.append(_name_place(measured, names[measured.place]))
        else:
            named.append(measured)
    return named


def _name_place(measured: MeasuredPartition, names: Row) -> MeasuredPartition:
    topic_id = names["_topic_id"]
    topic = names["_topic"]
    partition = names["_partition"]
    summary = msgspec.structs.replace(measured.summary, topic_id=topic_id, topic=topic, partition=partition)
    ends = tuple(msgspec.structs.replace(end, topic_id=topic_id, partition=partition) for end in measured.ends)
    return MeasuredPartition(measured.place, summary, ends)


def _join_references(
    session: SparkSession, root: Path, rows: DataFrame, rules: Iterable[Rule]
) -> tuple[DataFrame, dict[str, str]]:
    """The rows with a column for each `References`, true if the key is there; why some have none, by rule."""
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import broadcast, col, lit

    failed: dict[str, str] = {}
    for rule in rules:
        if not isinstance(rule, References):
            continue
        reference = _name_reference(rule)
        name = f"`{rule.column}`"
        try:
            keys = _load(session, root / rule.table).select(col(f"`{rule.key_column}`").alias(f"{reference}_key"))
        except (PySparkException, Py4JError) as error:
            failed[rule.name] = _describe(error)
            continue
        kinds = [frame.dtypes[0][1] for frame in (rows.select(name), keys)]
        if kinds[0] != kinds[1]:
            failed[rule.name] = f"{rule.column} is of type {kinds[0]}, {rule.key_column} of {rule.table} of {kinds[1]}"
            continue
        # A key that the table holds twice must not double the row.
        distinct = keys.distinct().withColumn(reference, lit(True))  # noqa: FBT003  # a value
        rows = rows.join(broadcast(distinct), col(name) == col(f"{reference}_key"), "left").drop(f"{reference}_key")
    return rows, failed


def _name_reference(rule: References) -> str:
    return f"lockstep_reference_{rule.name}"


def _place(session: SparkSession, events: DataFrame) -> DataFrame:
    """All events of a partition in one task."""
    if session.conf.get("spark.sql.shuffle.partitions") == "1":
        return events.coalesce(1)
    return events.repartition("place")


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
    """The first line of Spark's or Java's message; of a failed job its last part."""
    text = str(getattr(error, "java_exception", "") or error).strip().partition("\n")[0]
    return text.rpartition(" executor driver): ")[2] or type(error).__name__


def _load_events(events: _Events, rows: DataFrame, flags: Sequence[str]) -> DataFrame:
    """Rows, ledger ranges, and facts from earlier checks."""
    session = events.session
    versions = events.versions
    increment = events.increment
    ledger = _load_ledger(session, events.folders.ledger, versions, increment)
    # Of an increment the files themselves are read, also those whose rows retention has dropped since.
    retired = 0 if increment else versions.retired
    values = ", ".join(f"coalesce({name}, 0L)" for name in RANGE_VALUES)
    losses = ", ".join(map(repr, sorted(LOSSES)))
    query = _RANGES.replace("{values}", values).replace("{losses}", losses)
    ranges = session.sql(query, ledger=ledger, retired=retired, kind=RANGE)
    flagged = session.sql(_ROWS.replace("{violated}", _make_masks(flags)), rows=rows, kind=ROW)
    loaded = flagged.unionByName(ranges, allowMissingColumns=True)
    if increment is None:
        return loaded
    events_before = session.createDataFrame(_make_events_before(increment.state))
    placed = events_before.withColumn("place", _hash_place("topic_id", "partition"))
    return loaded.unionByName(placed, allowMissingColumns=True)


def _make_masks(flags: Sequence[str]) -> str:
    """Integers with a bit for each rule that a row violates; null for none."""
    if not flags:
        return "cast(null as array<long>)"
    bits = [f"if({flag}, {1 << number % RULES_OF_MASK}L, 0L)" for number, flag in enumerate(flags)]
    masks = [" | ".join(bits[first : first + RULES_OF_MASK]) for first in range(0, len(bits), RULES_OF_MASK)]
    return f"if({' or '.join(flags)}, array({', '.join(masks)}), null)"


def _hash_place(topic_id: str, partition: str) -> Column:
    from pyspark.sql.functions import expr

    return expr(f"xxhash64({topic_id}, int({partition}))")  # a hash depends on the types


def _load_ledger(
    session: SparkSession, ledger: Path, versions: TableVersions, increment: Increment | None
) -> DataFrame:
    """The ledger rows of the batches, with all current columns; an older release wrote fewer.

    Its files are named to Spark: to find them in the log costs Spark two jobs, a quarter of a check.
    """
    from pyspark.sql.functions import col, lit

    since = increment.state.versions.batch if increment else 0
    live = find_live_files(ledger, first_batch=since + 1, last_batch=versions.batch)
    frame = _load_files(session, ledger, versions.ledger, map(_make_action, live.items()))
    missing = [name for name in LedgerRow.__struct_fields__ if name not in frame.columns]
    frame = frame.withColumns({name: lit(None).cast(_NESTED.get(name, "long")) for name in missing})
    return frame.where((col("batch") > since) & (col("batch") <= versions.batch)).where(_counts(versions.valid))


_NESTED: Final = {"erased": "array<struct<digest: string, start: long, batch: long, rows: long, messages: long>>"}
"""Types of columns that an older release lacks, other than numbers."""


def _counts(valid: Iterable[Lineage]) -> str:
    """Batches that count: rewinds undid the others."""
    return " or ".join(f"generation = {line.generation} and batch <= {line.last_batch}" for line in valid)


def _make_action(file: tuple[str, int]) -> str:
    """The log's line for a live file, by its path and size: as far as reading it needs it."""
    line = {"path": file[0], "partitionValues": {}, "size": file[1], "modificationTime": 0, "dataChange": True}
    return msgspec.json.encode({"add": line}).decode()


def _make_events_before(state: CheckState) -> pa.Table:
    """The offset that each partition had reached and the last number of each session, before all other events."""
    living = [partition for partition in state.totals if partition.place not in state.forgotten]
    totals = [partition for partition in living if partition.reached is not None]
    reached = [partition.reached for partition in totals]
    numbers = [end.number for end in state.sessions]
    offsets = [end.at if end.is_own else -1 for end in state.sessions]
    # Offset -1 sorts before all events, also those of a message at offset 0.
    starts: dict[str, pa.Array[Any]] = {
        "topic": pa.array([partition.topic for partition in totals], pa.string()),
        "at": pa.array([-1] * len(totals), pa.int64()),
        "offset": pa.array([-1] * len(totals), pa.int64()),
    }
    ends: dict[str, pa.Array[Any]] = {
        "at": pa.array([end.at for end in state.sessions], pa.int64()),
        "offset": pa.array(offsets, pa.int64()),
        "session": pa.array([end.session for end in state.sessions], pa.string()),
        "sequence": pa.array([end.sequence for end in state.sessions], pa.int64()),
    }
    events = [_make_events(totals, REACHED, starts, reached), _make_events(state.sessions, END, ends, numbers)]
    return pa.concat_tables(events, promote_options="default")


def _make_events(
    places: Sequence[PartitionSummary | SessionEnd],
    kind: int,
    columns: Mapping[str, pa.Array[Any]],
    values: Iterable[int | None],
) -> pa.Table:
    return pa.table(
        {
            "topic_id": pa.array([place.topic_id for place in places], pa.string()),
            "partition": pa.array([place.partition for place in places], pa.int32()),
            "kind": pa.array([kind] * len(places), pa.int32()),
            "row_number": pa.array([-1] * len(places), pa.int64()),
            "values": pa.array([[value] for value in values], pa.list_(pa.int64())),
            **columns,
        }
    )


def _name_flag(number: int) -> str:
    return f"violates_{number}"


def compile_rules(
    rows: DataFrame, rules: Iterable[Rule], removed: str | None = None
) -> tuple[list[tuple[Rule, Column]], dict[str, str]]:
    """For each rule the rows that violate it, as a column; and why some have none, by the rule's id.

    Args:
        rows: The rows.
        rules: The rules.
        removed: See `summarize`.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import coalesce, col, lit

    failed: dict[str, str] = {}
    conditions: dict[str, tuple[Rule, Column]] = {}
    for rule in rules:
        if isinstance(rule, ColumnRule | Unique | Predicate | References):
            try:
                conditions[rule.name] = rule, _compile(rule, rows)
            except (PySparkException, Py4JError) as error:  # the latter of a literal that Java cannot hold
                failed[rule.name] = _describe(error)
    kinds, unresolved = _resolve(rows, {name: condition for name, (_, condition) in conditions.items()})
    of_other_types = {name: kind for name, kind in kinds.items() if kind != "boolean"}
    failed |= unresolved
    failed |= {name: f"the condition is of type {kind}, not boolean" for name, kind in of_other_types.items()}
    flags: list[tuple[Rule, Column]] = []
    for rule, condition in [conditions[name] for name in conditions if name not in failed]:
        is_violated = ~coalesce(condition, lit(False))  # noqa: FBT003  # a value
        # The row of a removed key has no values to judge, but coordinates as every row.
        if removed is not None and not isinstance(rule, Unique):
            is_violated &= col(f"`{removed}`").isNotNull()
        flags.append((rule, is_violated))
    return flags, failed


def _resolve(rows: DataFrame, conditions: Mapping[str, Column]) -> tuple[dict[str, str], dict[str, str]]:
    """The type of each condition, and why some have none; all together, and one by one only if that fails.

    Each is next to the other columns, as in the query: an aggregate has a type, and no value of a row.
    """
    from pyspark.errors import PySparkException

    try:
        columns = {_name_flag(number): condition for number, condition in enumerate(conditions.values())}
        schema = rows.withColumns(columns).schema
    except (PySparkException, Py4JError) as error:
        if len(conditions) == 1:
            return {}, dict.fromkeys(conditions, _describe(error))
        return _resolve_each(rows, conditions)
    return {name: schema[flag].dataType.simpleString() for name, flag in zip(conditions, columns, strict=True)}, {}


def _resolve_each(rows: DataFrame, conditions: Mapping[str, Column]) -> tuple[dict[str, str], dict[str, str]]:
    kinds: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name, condition in conditions.items():
        kind, why = _resolve(rows, {name: condition})
        kinds |= kind
        failed |= why
    return kinds, failed


def _compile(rule: ColumnRule | Unique | Predicate | References, rows: DataFrame) -> Column:
    """The condition that a row fulfils; null counts as violated."""
    from pyspark.sql.functions import col, expr, row_number
    from pyspark.sql.window import Window

    match rule:
        case Predicate(condition=text):
            return expr(text)
        case References(column=name, nullable=nullable):
            exists = col(_name_reference(rule))
            if nullable:
                return exists | col(f"`{name}`").isNull()
            return exists
        case Unique(columns=columns, scope=scope):
            keys = [f"`{name}`" for name in (*columns, *_SCOPES[scope.value])]
            return row_number().over(Window.partitionBy(*keys).orderBy(*IDENTITY)) == 1
        case ColumnRule(column=name):
            value = col(f"`{name}`")
            condition = _compile_column(rule, value, rows.schema[name].dataType)
            if rule.allows_null:
                return value.isNull() | condition
            return condition


_SCOPES: Final = {
    "message": ("_topic_id", "_partition", "_offset", "_emit_offset"),
    "session": ("_topic_id", "_partition", "_session"),
    "table": (),
}


def _compile_column(rule: ColumnRule, value: Column, kind: DataType) -> Column:
    from pyspark.sql.functions import isnan, lit, rlike, udf

    match rule:
        case InRange(at_least=low, at_most=high):
            bounds: list[Column] = []
            if low is not None:
                bounds.append(value >= _make_bound(low, kind, ROUND_CEILING))
            if high is not None:
                bounds.append(value <= _make_bound(high, kind, ROUND_FLOOR))
            # Spark orders NaN above all numbers; in Python it is in no range.
            if isinstance(low, int | float) or isinstance(high, int | float):
                bounds.append(~isnan(value.cast("double")))
            return reduce(operator.and_, bounds)
        case InSet(values=values):
            return value.isin([_make_literal(item) for item in values])
        case Matches(pattern=pattern) if _FOR_PYTHON.search(pattern):
            return udf(rule.accepts, "boolean", useArrow=False)(value)
        case Matches(pattern=pattern):
            return rlike(value, lit(rf"(?d)\A(?:{pattern})\z"))  # d: only \n ends a line, as in Python
        case _:
            return value.isNotNull()


_FOR_PYTHON: Final = re.compile(r"\)[*+{]|\{\d+,(\d{4,})?\}|\\Z|\\u[dD][89a-fA-F]|\(\?[is]*m")
r"""Patterns that Python judges. Java recurses, once for each time that a group is repeated, or a character of another
width: some thousand characters overflow its stack, which ends the process of the executor. It also finds `\Z` before a
last line break, no `^` of many lines at the end of the text, and in two escapes of surrogates one character.
"""


def _make_bound(bound: Bound, kind: DataType, rounding: str) -> Column:
    """A bound as the nearest value of the column's type inside the range; null without one.

    Left to Spark, both sides become one type, which rounds: decimals of more than 38 digits, integers next to doubles.
    """
    from pyspark.sql.functions import lit
    from pyspark.sql.types import DecimalType, DoubleType

    if isinstance(kind, DecimalType) and isinstance(bound, int | Decimal):
        exact = Decimal(bound)
        top = Decimal((0, (9,) * kind.precision, -kind.scale))
        clamped = min(max(exact, top.copy_negate()), top)
        # The range is beyond all values of the type: null, which no value fulfils.
        if clamped != exact and (clamped < exact) == (rounding == ROUND_CEILING):
            return lit(None).cast(kind)
        unit = Decimal((0, (1,), -kind.scale))
        nearest = clamped.quantize(unit, context=Context(prec=2 * MAX_PRECISION, rounding=rounding))
        return lit(f"{nearest:f}").cast(kind)
    if isinstance(kind, DoubleType) and isinstance(bound, int):
        rounded = float(bound)
        inwards = math.inf if rounding == ROUND_CEILING else -math.inf
        # Python compares an integer with a float exactly.
        if rounded != bound and (rounded < bound) == (inwards > 0):
            rounded = math.nextafter(rounded, inwards)
        return lit(rounded)
    return _make_literal(bound)


def _make_literal(value: object) -> Column:
    """A value of a rule; dates and times by their numbers, as Java counts those before 1582 in another calendar."""
    from pyspark.sql.functions import date_from_unix_date, lit, timestamp_micros

    if isinstance(value, datetime):
        return timestamp_micros(lit(to_microseconds(value - EPOCH)))
    if isinstance(value, date):
        return date_from_unix_date(lit((value - EPOCH.date()).days))
    return lit(value)


def _collect_samples(
    rows: DataFrame, violated: Mapping[str, str]
) -> dict[str, tuple[dict[str, str | int | None], ...]]:
    """Coordinates of the first rows that violate each rule, by its id; one query for all rules."""
    from pyspark.sql.functions import array, array_compact, col, explode, lit, row_number, when
    from pyspark.sql.window import Window

    if not violated:
        return {}
    names = [when(col(flag), lit(rule)) for rule, flag in violated.items()]
    # A row that violates several rules is a sample of each.
    broken_rule = explode(array_compact(array(*names))).alias("rule")
    broken = rows.select(broken_rule, "_topic", "_session", "_offset", *IDENTITY)
    numbered = broken.withColumn("number", row_number().over(Window.partitionBy("rule").orderBy(*IDENTITY)))
    samples = dict[str, list[dict[str, str | int | None]]]()
    for row in numbered.where(col("number") <= SAMPLE_ROWS).orderBy("rule", "number").collect():
        shown = {"topic": row["_topic"], "partition": row["_partition"], "offset": row["_offset"]}
        shown |= {"emit_offset": row["_emit_offset"], "row": row["_row"], "session": row["_session"]}
        samples.setdefault(row["rule"], []).append(shown)
    return {rule: tuple(shown) for rule, shown in samples.items()}


def summarize_files(table: Path, version: int) -> tuple[FileSummary, ...]:
    """Count the nulls of the NOT NULL provenance columns, file by file, from the log.

    Spark cannot: the columns are declared NOT NULL, so it evaluates `is null` to false without
    reading, and reads a null as zero or fails. The log's counts are those of the Parquet footers.
    """
    actions = pa.table(delta_log.open_delta_table(table, version=version).get_add_actions(flatten=True))
    required = [f"null_count.{field.name}" for field in make_provenance_schema() if not field.nullable]
    return tuple(_file_summary(action, required) for action in actions.to_pylist())


def _file_summary(action: dict[str, object], required: list[str]) -> FileSummary:
    counted = action.get("num_records")
    counts = [action.get(name) for name in required]
    rows = counted if isinstance(counted, int) else 1  # a file with an unknown number of rows is not proved
    return FileSummary(
        path=str(action["path"]),
        rows=rows,
        nulls=sum(count for count in counts if isinstance(count, int)),
        uncounted=rows * counts.count(None),
        size=int(str(action["size_bytes"])),
    )


def _load(session: SparkSession, table: Path, version: int | None = None) -> DataFrame:
    reader = session.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(find_storage(table).uri(table))


def _load_files(session: SparkSession, table: Path, version: int, actions: Iterable[str]) -> DataFrame:
    """Some files of a Delta table, also files that were compacted since; as Delta's own streaming source reads them."""
    from pyspark.sql import DataFrame

    jvm: Any = session._jvm  # noqa: SLF001  # Delta offers this in Scala only
    jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001  # the session of the frame
    none = jvm.scala.Option.empty()
    files = jvm.java.util.ArrayList()
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
    """The rows of a check, in a session with separate options; afterwards Delta's cached logs are discarded."""
    session = spark.newSession()
    for name, value in _OPTIONS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(2 * session.sparkContext.defaultParallelism))
    if _measure_size(folders, versions, increment) <= SMALL_BYTES:
        for name, value in _SMALL_OPTIONS.items():
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
