"""Compaction with Spark as the worker, read by delta-spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from lockstep.features.compaction.run import CompactionRefused, compact_on_spark, compact_stream
from lockstep.model.table_schema import IDENTITY
from tests.features.compaction.reading import Totals, read_by_deltalake, read_by_duckdb, read_meanwhile
from tests.support.stream_table import HOUR, NEXT_HOUR, StreamTable, live_files, stored_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A0 = ("a", 0)
B0 = ("b", 0)
C0 = ("c", 0)
QUERY = "seen"


@pytest.fixture
def two_hours(table: StreamTable) -> StreamTable:
    for hour in (HOUR, NEXT_HOUR):
        for _ in range(3):
            table.batch({A0: 20, B0: 10}, {C0: 5}, hour=hour)
    table.close(NEXT_HOUR)
    return table


def rows_of(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: [row[name] for name in IDENTITY])


def test_bins_are_tasks_of_a_spark_job_and_delta_spark_reads_equal_rows(
    two_hours: StreamTable, spark: SparkSession
) -> None:
    stored = stored_rows(two_hours.folders)
    path = str(two_hours.folders.table)
    before = rows_of(spark.read.format("delta").load(path))
    result = compact_stream(two_hours.folders, rewriter=compact_on_spark(spark.sparkContext))
    assert (result.bins, result.files_before, result.files_after) == (2, 12, 2)
    after = spark.read.format("delta").load(path)
    assert before == rows_of(after)
    assert stored == stored_rows(two_hours.folders)
    assert len(before) == result.rows
    one_topic = after.where(f"_topic_id = 'a' and commit_hour = '{HOUR}'").count()
    assert one_topic == sum(row["_topic_id"] == "a" and row["commit_hour"] == HOUR for row in stored)


def test_a_refusal_comes_back_from_a_spark_task_by_name(two_hours: StreamTable, spark: SparkSession) -> None:
    (two_hours.folders.table / live_files(two_hours.folders)[0]).unlink()
    with pytest.raises(CompactionRefused, match=f"hour {HOUR}: .* is missing") as refused:
        compact_stream(two_hours.folders, rewriter=compact_on_spark(spark.sparkContext))
    assert refused.value.result.hours == (NEXT_HOUR,)


@pytest.mark.slow
def test_a_running_structured_streaming_query_sees_each_row_once(two_hours: StreamTable, spark: SparkSession) -> None:
    path = str(two_hours.folders.table)
    source = spark.readStream.format("delta").load(path)
    query = source.writeStream.format("memory").queryName(QUERY).start()
    try:
        query.processAllAvailable()
        first = spark.table(QUERY).count()
        assert len(stored_rows(two_hours.folders)) == first > 0
        assert compact_stream(two_hours.folders).bins == 2
        query.processAllAvailable()
        assert first == spark.table(QUERY).count()
        two_hours.batch({A0: 5, B0: 5}, {C0: 5}, hour="2026-01-01T02")
        query.processAllAvailable()
        assert rows_of(spark.read.format("delta").load(path)) == rows_of(spark.table(QUERY))
    except StreamingQueryException as error:
        pytest.fail(str(error))
    finally:
        query.stop()


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.fault("F43")
def test_a_thousand_reads_during_compactions_see_a_version_of_the_table(
    table: StreamTable, spark: SparkSession
) -> None:
    def read_by_spark(table: StreamTable) -> Totals:
        frame = spark.read.format("delta").load(str(table.folders.table))
        ((count, total),) = frame.selectExpr("count(*)", "coalesce(sum(number), 0)").collect()
        return count, total

    readers = [read_by_deltalake, read_by_duckdb, read_by_spark]
    assert read_meanwhile(table, readers, 1_000, reads_a_step=10) == 0
