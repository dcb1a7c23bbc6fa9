"""One two-level Spark aggregate of matching versions.

Rows and ledger ranges go through one shuffle, by topic id and partition, and are sorted by
offset: each row then has the range that covers it, whether the previous row has its coordinates,
and the number of messages before it. A second sort, by session, compares the sequences. The first
level counts by batch, so that errors of two batches cannot cancel out; the second by partition.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from lockstep.errors import TableError
from lockstep.model.table_schema import make_provenance_schema
from lockstep.quality.rules import FileSummary, PartitionSummary
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import Head, Lineage
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


_OPTIONS: Final = {
    # With it every shuffle is a job of its own, and there is nothing to adapt: the keys are partitions.
    "spark.sql.adaptive.enabled": "false",
    # The aggregate reads every file: data skipping only costs a job over the log.
    "spark.databricks.delta.stats.skipping": "false",
    # The default of 50 tasks for each scan of the log costs more than the log of a stream.
    "spark.databricks.delta.snapshotPartitions": "2",
}

_ROWS: Final = """
select _topic_id as topic_id, _topic as topic, _partition as partition, _emit_offset as at, 1 as kind,
       _row as row_number, _offset as offset, _session as session, _sequence as sequence,
       _event_time as event_time
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
    from {ledger} where batch <= {batch} and ({counts})
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
              greatest(least(until, reached) - start, 0) as overlap_offsets) as ledger
from ranges
"""
"""A range covers the offsets that no earlier range covers, so each offset belongs to one batch. The rows of batches up
to {retired} were dropped by retention: their messages count as accepted without a row."""

_SUMMARY: Final = """
with placed as (
    select *,
           last(if(ledger.covers, struct(ledger.batch, ledger.until), null)) ignore nulls over so_far as cover,
           kind = 1 and not coalesce(lag(kind) over in_order = 1 and lag(at) over in_order = at
               and lag(row_number) over in_order = row_number, false) as is_new_row,
           kind = 1 and not coalesce(lag(kind) over in_order = 1
               and lag(offset) over in_order = offset, false) as is_new_message
    from {events}
    window in_order as (partition by topic_id, partition order by at, kind, row_number),
           so_far as (partition by topic_id, partition order by at, kind, row_number
                      rows between unbounded preceding and current row)
), counted as (
    select *, kind = 1 as is_row, coalesce(kind = 1 and at < cover.until, false) as inside,
           count_if(is_new_message) over (partition by topic_id, partition order by at, kind, row_number
                  rows between unbounded preceding and current row) as message_number
    from placed
), compared as (
    select *,
           is_row and row_number() over in_session = 1 as is_new_session,
           last(if(sequence is null, null, struct(sequence, at, message_number))) ignore nulls over (
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
           count(sequence) as numbered_rows,
           count_if(sequence < previous.sequence and not may_restart) as sequence_falls,
           count_if(sequence = previous.sequence and at > previous.at and not may_restart) as sequence_repeats,
           count_if(sequence <= previous.sequence and may_restart) as sequence_restarts,
           max(ledger.with_rows) as with_rows,
           {sums},
           unix_micros(min(event_time)) as first_event_time_us,
           unix_micros(max(event_time)) as last_event_time_us
    from (select *, at - previous.at > message_number - previous.message_number as may_restart from compared)
    group by topic_id, partition, if(is_row, if(inside, cover.batch, null), ledger.batch)
)
select topic_id, max(topic) as topic, partition, count(ledger_batch) as batches,
       if(sum(silent_rows) = 0, sum(abs(ledger_rows - rows_inside)),
          abs(sum(ledger_rows) + sum(silent_rows) - sum(rows))) as row_differences,
       sum(abs(offsets_read - messages - holes - accepted_losses)) as unexplained_offsets,
       sum(abs(messages + released - coalesce(with_rows, messages_with_rows) - accepted_without_row - skipped
               - dropped - quarantined - late - buffered))
           + if(sum(timer_rows) = 0, sum(abs(coalesce(with_rows, messages_with_rows) - messages_with_rows)), 0)
           as unexplained_messages,
       {totals},
       min(first_event_time_us) as first_event_time_us, max(last_event_time_us) as last_event_time_us
from by_batch group by topic_id, partition
"""
"""Rows that timers emitted while a partition was idle belong to an empty range; a later range covers their
offset. So where there are any, rows are compared by partition, not by batch.

A sequence may fall where a session ends and restarts, but its END emits no row: a restart is excluded
only where every offset between the two rows has rows of its own."""

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


def summarize(spark: SparkSession, folders: StreamFolders, versions: TableVersions) -> tuple[PartitionSummary, ...]:
    """Measure all partitions that have rows or ledger ranges, in order of topic and partition.

    Takes three Spark jobs (the files of each table, the aggregate), besides Delta's jobs to
    read a log for the first time; leaves nothing cached.

    Args:
        spark: A session with Delta's extensions, as `prepare_session` configures it; its options remain unchanged.
        folders: The stream.
        versions: The versions to measure.
    """
    with _own_session(spark, folders) as session:
        rows = _load(session, folders.table, versions.table)
        ledger = _load_ledger(session, folders.ledger, versions.ledger)
        counted = _RANGES.replace("{counts}", _counts(versions.valid))
        ranges = session.sql(counted, ledger=ledger, batch=versions.batch, retired=versions.retired)
        events = session.sql(_ROWS, rows=rows).unionByName(ranges, allowMissingColumns=True)
        found = session.sql(_summary_text(), events=events).collect()
    places = [msgspec.convert(row.asDict(), PartitionSummary) for row in found]
    return tuple(sorted(places, key=lambda place: (place.topic, place.topic_id, place.partition)))


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
    )


def _counts(valid: Iterable[Lineage]) -> str:
    """Batches that count: rewinds undid the others."""
    return " or ".join(f"generation = {each.generation} and batch <= {each.last_batch}" for each in valid)


def _summary_text() -> str:
    sums = ", ".join(f"coalesce(sum(ledger.{name}), 0) as {name}" for name in _LEDGER_SUMS)
    totals = ", ".join(f"sum({name}) as {name}" for name in (*_LEDGER_SUMS, *_ROW_SUMS))
    return _SUMMARY.replace("{sums}", sums).replace("{totals}", totals)


def _load(session: SparkSession, table: Path, version: int) -> DataFrame:
    return session.read.format("delta").option("versionAsOf", version).load(find_storage(table).uri(table))


def _load_ledger(session: SparkSession, ledger: Path, version: int) -> DataFrame:
    """The ledger with all current columns; an older release wrote fewer."""
    from pyspark.sql.functions import lit

    frame = _load(session, ledger, version)
    missing = [name for name in LedgerRow.__struct_fields__ if name not in frame.columns]
    return frame.withColumns({name: lit(None).cast("long") for name in missing})


@contextmanager
def _own_session(spark: SparkSession, folders: StreamFolders) -> Iterator[SparkSession]:
    """A session with options of its own; afterwards Delta's cached states of both logs are discarded."""
    session = spark.newSession()
    for name, value in _OPTIONS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", str(2 * session.sparkContext.defaultParallelism))
    try:
        yield session
    finally:
        for table in (folders.table, folders.ledger):
            _forget(session, table)


def _forget(session: SparkSession, table: Path) -> None:
    jvm = session._jvm  # noqa: SLF001  # Delta offers this in Scala only
    if jvm is None:  # pragma: no cover  # classic sessions have one
        raise TypeError("not a classic Spark session")
    log = jvm.org.apache.spark.sql.delta.DeltaLog
    log.invalidateCache(session._jsparkSession, jvm.org.apache.hadoop.fs.Path(find_storage(table).uri(table)))  # noqa: SLF001  # as above


class TableVersions(msgspec.Struct, frozen=True):
    """Matching versions of a stream: both tables after the same batch.

    Attributes:
        table: Version of the output table.
        ledger: Version of the ledger, which may hold later batches as well.
        batch: Number of the last batch that both hold; 0 before the first.
        retired: Number of the last batch whose rows were dropped by retention; 0 for none.
        valid: The last batch that counts of each generation.
    """

    table: int
    ledger: int
    batch: int
    valid: tuple[Lineage, ...]
    retired: int = 0


def find_matching_versions(folders: StreamFolders) -> TableVersions:
    """The newest versions that match.

    The ledger follows the table, by one batch at most. Where that one is missing, the result is
    the table's version before it; so there is nothing to wait for.

    Raises:
        TableError: The tables are further apart, or the table has a foreign writer.
    """
    base = OutputLog(folders.table).base()
    ledger = delta_log.open_delta_table(folders.ledger)
    held = ledger.transaction_version(delta_log.BATCH) or 0
    head = base.head
    if held >= head.batch:
        return _make_versions(base.version, ledger.version(), head)
    before = delta_log.read_entry(folders.table, head.batch_version - 1)
    if held == head.batch - 1 and before is not None and before.head is not None:
        return _make_versions(before.version, ledger.version(), before.head)
    raise TableError(
        f"{folders.ledger} holds batch {held}, the output table batch {head.batch}: they differ by more than one batch",
        next_step="restore the ledger; nothing can be proved until both agree",
    )


def _make_versions(table: int, ledger: int, head: Head) -> TableVersions:
    retired = 0 if head.retention is None else head.retention.batch
    valid = tuple(Lineage(generation, last) for generation, last in head.valid_batches.items())
    return TableVersions(table=table, ledger=ledger, batch=head.batch, valid=valid, retired=retired)
