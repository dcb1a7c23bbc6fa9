"""Each reader of docs/reading.md returns the sent rows: before and after a compaction, and of earlier versions."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from lockstep.features.history.rewind import rewind_stream
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import OutputLog, raise_rewind_floor
from tests.integration.readers.written import READERS, Written, run_snippet, sorted_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lockstep.features.localdev.broker import Broker

MESSAGES = 25
EVERY_READER = [pytest.param(name, marks=pytest.mark.spark if name == "spark" else ()) for name in READERS]


@pytest.fixture(scope="module")
def once(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A table of several batches; not to be changed."""
    written = Written.begin(broker.bootstrap_servers, tmp_path_factory.mktemp("once"))
    written.more(MESSAGES)
    written.more(MESSAGES)
    assert len(written.runs.reports) > 4
    return written


@pytest.fixture
def written(once: Written, tmp_path: Path) -> Written:
    """A copy of the table for one test."""
    shutil.copytree(once.runs.root, tmp_path / "copy")
    runs = dataclasses.replace(once.runs, root=tmp_path / "copy")
    return dataclasses.replace(once, runs=runs, seen=list(once.seen))


def reader_rows(reader: str, snippet: str, **given: object) -> list[dict[str, Any]]:
    return sorted_rows(READERS[reader](run_snippet(snippet, **given)))


@pytest.mark.parametrize("reader", EVERY_READER)
def test_a_reader_gives_every_row_before_and_after_a_compaction(
    reader: str, written: Written, request: pytest.FixtureRequest
) -> None:
    spark = {"spark": request.getfixturevalue("spark")} if reader == "spark" else {}
    table = str(written.runs.folders.table)
    expected = written.expected()
    assert reader_rows(reader, reader, table=table, **spark) == expected
    before = DeltaTable(table).version()
    files = DeltaTable(table).file_uris()
    written.compact()
    assert len(DeltaTable(table).file_uris()) == 1 < len(files)
    assert reader_rows(reader, reader, table=table, **spark) == expected
    assert reader_rows(reader, f"{reader} version", table=table, version=before, **spark) == expected
    half = reader_rows(reader, f"{reader} version", table=table, version=before - 3, **spark)
    assert 0 < len(half) < len(expected)
    assert half == [row for row in expected if row in half]


@pytest.mark.parametrize("reader", EVERY_READER)
def test_a_reader_sees_the_types_that_the_stream_declared(
    reader: str, written: Written, request: pytest.FixtureRequest
) -> None:
    spark = {"spark": request.getfixturevalue("spark")} if reader == "spark" else {}
    frame = run_snippet(reader, table=str(written.runs.folders.table), **spark)
    types = dict(SCHEMAS[reader](frame))
    assert {name: types[name] for name in TYPES[reader]} == TYPES[reader]


SCHEMAS: dict[str, Callable[[Any], Iterable[tuple[str, str]]]] = {
    "spark": lambda frame: frame.dtypes,
    "deltalake": lambda frame: ((field.name, str(field.type)) for field in frame.schema),
    "polars": lambda frame: ((name, str(kind)) for name, kind in frame.schema.items()),
    "duckdb": lambda frame: zip(frame.columns, map(str, frame.types), strict=True),
}
TYPES = {
    "spark": {
        "number": "bigint",
        "price": "decimal(20,4)",
        "limit": "decimal(38,10)",
        "at": "timestamp",
        "day": "date",
        "side": "string",
        "venue": "struct<name:string,floor:bigint,opened:date>",
        "tags": "array<string>",
        "counts": "map<string,bigint>",
        "raw": "binary",
        "flag": "boolean",
    },
    "deltalake": {
        "number": "int64",
        "price": "decimal128(20, 4)",
        "limit": "decimal128(38, 10)",
        "at": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "side": "string",
        "venue": "struct<name: string, floor: int64, opened: date32[day]>",
        "flag": "bool",
    },
    "polars": {
        "number": "Int64",
        "price": "Decimal(precision=20, scale=4)",
        "at": "Datetime(time_unit='us', time_zone='UTC')",
        "day": "Date",
        "side": "String",
        "tags": "List(String)",
        "raw": "Binary",
    },
    "duckdb": {
        "number": "BIGINT",
        "price": "DECIMAL(20,4)",
        "at": "TIMESTAMP WITH TIME ZONE",
        "day": "DATE",
        "venue": 'STRUCT("name" VARCHAR, floor BIGINT, opened DATE)',
        "tags": "VARCHAR[]",
        "counts": "MAP(VARCHAR, BIGINT)",
    },
}


@pytest.mark.parametrize("reader", ["deltalake", "polars", "duckdb"])
def test_a_filter_on_the_hour_reads_the_rows_of_the_hour(reader: str, written: Written) -> None:
    written.compact()
    written.more(5)
    frame = run_snippet(reader, table=str(written.runs.folders.table))
    rows = READERS[reader](frame)
    hours = sorted({row["commit_hour"] for row in rows})
    assert len(hours) == 2
    assert sorted_rows(rows) == written.expected()


def test_structured_streaming_sees_each_row_once_across_compactions_and_restarts(
    written: Written, spark: SparkSession, tmp_path: Path
) -> None:
    """A query starts, and continues after a compaction and after more batches; a second query starts last.

    Batches between compactions are tested in features/compaction/test_spark.py.
    """
    table = str(written.runs.folders.table)
    target = str(tmp_path / "target")

    def follow(target: str) -> list[dict[str, Any]]:
        run_snippet("streaming", spark=spark, table=table, target=target, checkpoint=f"{target}-checkpoint")
        return sorted_rows(READERS["spark"](spark.read.format("delta").load(target)))

    assert follow(target) == written.expected()
    written.compact()
    assert follow(target) == written.expected()
    written.more(2 * MESSAGES)
    written.compact()
    assert follow(target) == written.expected()
    assert follow(str(tmp_path / "late")) == written.expected()


@pytest.mark.parametrize("reader", EVERY_READER)
def test_a_reader_sees_a_rewind_and_the_version_of_a_savepoint_of_which_only_its_entry_is_left(
    reader: str, written: Written, request: pytest.FixtureRequest
) -> None:
    spark = {"spark": request.getfixturevalue("spark")} if reader == "spark" else {}
    folders = written.runs.folders
    table = str(written.runs.folders.table)
    (kept,) = make_savepoint(folders, "before", who="a test", why="a test", at="2").savepoints
    assert kept.version is not None
    then = reader_rows(reader, f"{reader} version", table=table, version=kept.version, **spark)
    assert 0 < len(then) < len(written.expected())
    OutputLog(folders.table).commit(raise_rewind_floor(1, 4))
    write_checkpoint(folders.table, version=kept.version + 2)
    written.compact()
    run_housekeeping(folders, retention_seconds=1e9)
    versions = delta_log.list_versions(folders.table)
    assert versions[0] == kept.version < versions[1] - 1, "no entry was deleted: the test proves nothing"
    assert reader_rows(reader, f"{reader} version", table=table, version=kept.version, **spark) == then
    assert reader_rows(reader, reader, table=table, **spark) == written.expected()
    rewind_stream(written.runs.handle, "before", who="a test", why="a test")
    assert reader_rows(reader, reader, table=table, **spark) == then
    written.catch_up()
    assert reader_rows(reader, reader, table=table, **spark) == written.expected()


@pytest.mark.slow
def test_structured_streaming_stops_at_a_rewind_and_goes_on_over_it_where_told_so(
    written: Written, spark: SparkSession, tmp_path: Path
) -> None:
    table = str(written.runs.folders.table)
    target = str(tmp_path / "target")
    checkpoint = str(tmp_path / "checkpoint")
    given = {"spark": spark, "table": table, "target": target, "checkpoint": checkpoint}
    run_snippet("streaming", **given)
    rewind_stream(written.runs.handle, "2", who="a test", why="a test")
    with pytest.raises(StreamingQueryException, match="Detected a data update"):
        run_snippet("streaming", **given)
    written.catch_up()
    rows = spark.readStream.format("delta").option("skipChangeCommits", "true").load(table)
    to_target = rows.writeStream.format("delta").option("checkpointLocation", checkpoint)
    to_target.trigger(availableNow=True).start(target).awaitTermination()
    held = sorted_rows(READERS["spark"](spark.read.format("delta").load(target)))
    assert [row for row in held if row not in written.expected()] == []
    assert len(held) > len(written.expected()), "what went and what was read again are both there"
