"""SQL only reads, and returns the contents of the tables, also times that Python has no type for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lockstep.operations.query import AsOf, WrongQuery, list_rows, query_sql, run_sql
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

ABSURD = 10**18
"""Microseconds since 1970: the year 33658."""


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, DeltaTable]:
    write_deltalake(tmp_path / "numbers", pa.table({"number": [1, 2]}))
    return {"numbers": DeltaTable(tmp_path / "numbers")}


@pytest.mark.parametrize(
    "begin", ["EXPLAIN ANALYZE ", "explain\nanalyze verbose ", "EXPLAIN EXPLAIN ANALYZE ", "EXPLAIN (ANALYZE) ", ""]
)
def test_no_query_writes_a_file_whatever_explains_it(tables: dict[str, DeltaTable], tmp_path: Path, begin: str) -> None:
    written = tmp_path / "written.csv"
    with pytest.raises(WrongQuery, match="does not start with SELECT"):
        run_sql(tables, f"{begin}COPY (SELECT 1) TO '{written}'")
    assert not written.exists()


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN SELECT number FROM numbers",
        "explain analyze verbose (select number from numbers)",
        "EXPLAIN FORMAT TREE WITH n AS (SELECT 1) SELECT * FROM n",
        "(SELECT number FROM numbers) UNION (VALUES (3))",
        "DESCRIBE numbers",
    ],
)
def test_what_reads_is_run_and_explained(tables: dict[str, DeltaTable], sql: str) -> None:
    assert run_sql(tables, sql).num_rows


@pytest.mark.parametrize("declared", [("a", "a_ledger"), ("a_ledger", "a")])
def test_a_stream_with_the_name_of_another_ones_ledger_is_what_it_is_called(
    tmp_path: Path, declared: tuple[str, ...]
) -> None:
    for name in declared:
        made = ProtocolRun(folders_in(tmp_path, name))
        made.claim()
        made.batch()
        if name == "a":
            made.rewind(0)
    found = query_sql("SELECT * FROM a_ledger", declared, tmp_path, AsOf(), limit=None)
    assert found.columns[0] == "number"
    assert found.notes == ("a_ledger is a separate table, not that of a",)
    assert query_sql("SELECT * FROM a_ledger_ledger", declared, tmp_path, AsOf(), limit=None).columns[1] == "batch"


def test_times_beyond_the_calendar_are_numbers_inside_of_other_values_too() -> None:
    time = pa.timestamp("us", "UTC")
    held = {
        "list": pa.array([[ABSURD, None], None], pa.list_(time)),
        "struct": pa.array([{"at": ABSURD, "size": 1}, None], pa.struct([("at", time), ("size", pa.int64())])),
        "map": pa.array([[("a", ABSURD)], []], pa.map_(pa.string(), time)),
        "deep": pa.array([[{"at": [ABSURD]}], []], pa.list_(pa.struct([("at", pa.list_(time))]))),
    }
    assert list_rows(pa.table(held)) == [
        [[ABSURD, None], {"at": ABSURD, "size": 1}, [("a", ABSURD)], [{"at": [ABSURD]}]],
        [None, None, [], []],
    ]
