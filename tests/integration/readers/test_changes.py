"""Readers of a changing table: each cell of the table of docs/reading.md, and changes by Spark SQL."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from lockstep.operations.repair import repair_stream
from lockstep.table.foreign_commits import ForeignCommit
from tests.support.every_commit import EveryCommit
from tests.support.protocol_run import ProtocolRun, stored_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[3] / "docs/reading.md"
READERS = ("plain", "ignoreDeletes", "skipChangeCommits")
STEPS = {"compaction": "compact", "retention": "retain", "erasure": "erase", "rewind": "rewind"}
STEPS |= {"promotion": "promote"}
USUAL = set(zip(STEPS, itertools.cycle(READERS), strict=False))
"""Cells tested by default: each commit and each reader; a cell takes 9 s of CPU time."""
CELLS = [
    pytest.param(*cell, marks=() if cell in USUAL else pytest.mark.slow) for cell in itertools.product(STEPS, READERS)
]


def read_page() -> dict[str, dict[str, str]]:
    """Return the page's table: the effect on each reader, by commit."""
    cell = r"\| (stops|continues) "
    rows = re.findall(rf"^\| ([^|]*) {cell * 3}\|$", PAGE.read_text(), re.MULTILINE)
    found = {what: dict(zip(READERS, cells, strict=True)) for what, *cells in rows}
    return {step: cells for step in STEPS for what, cells in found.items() if step in what}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hours with rows; the newest is open, and a batch in the middle is a possible target of a rewind."""
    root = tmp_path_factory.mktemp("changes")
    made = EveryCommit(root)
    for step in ("batch", "batch", "hour", "hour", "batch"):
        made.step(step)
    return root


def follow(spark: SparkSession, table: Path, work: Path, reader: str) -> list[int]:
    """Run the query of a reader once; return all offsets in its sink."""
    rows = spark.readStream.format("delta")
    if reader != "plain":
        rows = rows.option(reader, "true")
    query = rows.load(str(table)).writeStream.format("delta").option("checkpointLocation", str(work / "checkpoint"))
    query.trigger(availableNow=True).start(str(work / "sink")).awaitTermination()
    return sorted(map(int, DeltaTable(work / "sink").to_pyarrow_table()["_offset"].to_numpy()))


@pytest.mark.parametrize(("commit", "reader"), CELLS)
def test_a_reader_of_changes_does_what_the_page_says(
    original: Path, spark: SparkSession, tmp_path: Path, commit: str, reader: str
) -> None:
    made = EveryCommit.copy(original, tmp_path / "copy")
    table = made.run.folders.table
    work = tmp_path / reader
    read = follow(spark, table, work, reader)
    assert read == stored_offsets(made.run.folders)
    made.step(STEPS[commit])
    assert spark.read.format("delta").load(str(table)).count() == len(stored_offsets(made.run.folders))
    if read_page()[commit][reader] == "stops":
        with pytest.raises(StreamingQueryException, match=r"Detected (a data update|deleted data)"):
            follow(spark, table, work, reader)
        return
    assert follow(spark, table, work, reader) == read
    before = Counter(stored_offsets(made.run.folders))
    made.batch()
    newest = Counter(stored_offsets(made.run.folders)) - before
    assert newest.total() == 2
    assert follow(spark, table, work, reader) == sorted([*read, *newest.elements()])


def test_the_page_has_a_cell_for_each_reader_and_commit() -> None:
    assert {step: set(cells) for step, cells in read_page().items()} == {step: set(READERS) for step in STEPS}


CHANGES = {
    "DELETE": "DELETE FROM delta.`{}` WHERE _offset = 1",
    "UPDATE": "UPDATE delta.`{}` SET number = 7 WHERE _offset = 1",
    "MERGE": "MERGE INTO delta.`{0}` t USING (SELECT 1 AS o) s ON t._offset = s.o WHEN MATCHED THEN DELETE",
    "SET TBLPROPERTIES": "ALTER TABLE delta.`{}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')",
}
DESCRIPTIONS = (
    "ALTER TABLE delta.`{}` SET TBLPROPERTIES ('steward' = 'anna', 'comment' = 'rows')",
    "ALTER TABLE delta.`{}` UNSET TBLPROPERTIES ('steward')",
    "COMMENT ON TABLE delta.`{}` IS 'rows of the readings'",
    "ALTER TABLE delta.`{}` ALTER COLUMN number COMMENT 'a number'",
)


@pytest.mark.parametrize(
    "operation", [pytest.param(each, marks=() if each == "MERGE" else pytest.mark.slow) for each in CHANGES]
)
def test_a_change_by_spark_is_refused_by_name_and_set_aside(
    original: Path, spark: SparkSession, tmp_path: Path, operation: str
) -> None:
    made = EveryCommit.copy(original, tmp_path)
    before = stored_offsets(made.run.folders)
    spark.sql(CHANGES[operation].format(made.run.folders.table))
    with pytest.raises(ForeignCommit, match=rf"is {operation} by Apache-Spark.*not a commit of lockstep"):
        made.batch()
    assert any(each.condition == "repaired" for each in repair_stream(made.run.folders, apply=True).checks)
    assert stored_offsets(made.run.folders) == before
    again = ProtocolRun(made.run.folders)
    again.claim()
    again.batch()
    assert len(stored_offsets(made.run.folders)) == len(before) + 2


@pytest.mark.slow
def test_descriptions_by_spark_are_taken_over(original: Path, spark: SparkSession, tmp_path: Path) -> None:
    made = EveryCommit.copy(original, tmp_path)
    for statement in DESCRIPTIONS:
        spark.sql(statement.format(made.run.folders.table))
        made.batch()
    table = DeltaTable(made.run.folders.table)
    assert table.metadata().description == "rows of the readings"
    (number,) = (field for field in table.schema().fields if field.name == "number")
    assert number.metadata["comment"] == "a number"
    assert "steward" not in table.metadata().configuration
