"""Texts written by the codes of their dictionaries stay equal for every reader and in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.features.compaction.plan import Bin
from lockstep.features.compaction.rewrite import (
    RewriteTask,
    Rewritten,
    collect_runs,
    find_coded,
    prove_file,
    rewrite_bin,
)
from lockstep.table.live_files import LiveFile
from lockstep.table.parquet import STRING_CHARACTERS, DataFile, DataFileWriter, is_self_describing, write_file
from lockstep.table.row_groups import DICTIONARY_BYTES_MAX

HOUR = "2026-01-01T00"
Texts = tuple[str | None, str]
"""A nullable text and a text that is never null."""

COLUMNS: list[pa.Field[Any]] = [
    pa.field("maybe", pa.string()),
    pa.field("always", pa.string(), nullable=False),
    pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("_topic_id", pa.string(), nullable=False),
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_emit_offset", pa.int64(), nullable=False),
    pa.field("_row", pa.int32(), nullable=False),
]
SCHEMA = pa.schema(COLUMNS)
LONG = "k" * 5_000  # Parquet stores no bounds of texts above 4 kB
TEXTS = st.one_of(st.sampled_from(["", "a", "b", "\0", "ü" * 40, "\U0010fffd" * 33, LONG]), st.text(max_size=3))
FILES = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(st.none() | TEXTS, TEXTS), min_size=1, max_size=6)),
    min_size=1,
    max_size=5,
).map(lambda files: [[(None if blank else maybe, always) for maybe, always in file] for blank, file in files])
"""Texts of files; in some files the first column is null throughout."""


def make_rows(texts: Sequence[Texts], first: int) -> pa.Table:
    """Return rows of two partitions, each text twice: a first file without repetition is not read as dictionaries."""
    twice = [pair for pair in texts for _ in range(2)]
    count = len(twice)
    return pa.table(
        {
            "maybe": [maybe for maybe, _ in twice] * 2,
            "always": [always for _, always in twice] * 2,
            "at": [datetime(2026, 1, 1, tzinfo=UTC)] * (2 * count),
            "_topic_id": ["t"] * (2 * count),
            "_partition": [0] * count + [1] * count,
            "_emit_offset": [*range(first, first + count)] * 2,
            "_row": [0] * (2 * count),
        },
        schema=SCHEMA,
    )


def make_files(files: Sequence[Sequence[Texts]]) -> Iterator[pa.Table]:
    """Return the rows of each file; each partition continues the previous file."""
    first = 0
    for texts in files:
        yield make_rows(texts, first)
        first += 2 * len(texts)


def compact(table: Path, tables: Sequence[pa.Table], *, run_bytes: int, group_rows: int) -> Rewritten:
    """Write each table as a file and rewrite all as one file."""
    written = [write_file(table, rows, prefix="rows", commit_hour=HOUR) for rows in tables]
    live = tuple(
        LiveFile(path=file.path, size=file.size, rows=file.rows, commit_hour=HOUR, added_ms=0) for file in written
    )
    return rewrite_bin(RewriteTask(table, Bin(HOUR, live), None, run_bytes, group_rows))


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.cast(SCHEMA).sort_by([("_partition", "ascending"), ("_emit_offset", "ascending")]).to_pylist()


def commit(table: Path, file: DataFile) -> DeltaTable:
    """Commit the file to a new table in the folder."""
    fields = [*Schema.from_arrow(SCHEMA).fields, Field("commit_hour", PrimitiveType("string"))]
    made = DeltaTable.create(table, Schema(fields), partition_by=["commit_hour"])
    add = AddAction(file.path, file.size, {"commit_hour": HOUR}, 0, data_change=True, stats=file.statistics)
    made.create_write_transaction([add], "append", made.schema(), ["commit_hour"])
    return DeltaTable(table)


@settings(max_examples=max(20, settings().max_examples // 5))
@given(
    files=FILES,
    run_bytes=st.sampled_from([1, 600, 10**9]),
    group_rows=st.sampled_from([1, 3, 10**6]),
    largest=st.sampled_from([0, 8, 40, DICTIONARY_BYTES_MAX]),
)
def test_every_reader_finds_the_texts_that_went_in(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[Texts]],
    run_bytes: int,
    group_rows: int,
    largest: int,
) -> None:
    table = tmp_path_factory.mktemp("table")
    tables = list(make_files(files))
    expected = in_order(pa.concat_tables(tables))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lockstep.table.row_groups.DICTIONARY_BYTES_MAX", largest)
        file = compact(table, tables, run_bytes=run_bytes, group_rows=group_rows).file
    with pq.ParquetFile(table / file.path) as parquet:
        assert (parquet.schema_arrow, parquet.read().to_pylist()) == (SCHEMA, expected)
    of_delta = QueryBuilder().register("t", commit(table, file)).execute("SELECT * FROM t").read_all()
    assert in_order(pa.table(of_delta).select(SCHEMA.names)) == expected
    with duckdb.connect() as connection:
        rows = connection.read_parquet(str(table / file.path))
        found = rows.project('* REPLACE (epoch_us("at") AS "at"), typeof("at") AS kind').to_arrow_table()
    assert set(found["kind"].to_pylist()) == {"TIMESTAMP WITH TIME ZONE"}
    assert in_order(found.select(SCHEMA.names)) == expected


@given(files=FILES, run_bytes=st.sampled_from([1, 10**9]), group_rows=st.sampled_from([1, 5, 10**6]))
def test_the_log_counts_the_nulls_and_bounds_the_texts(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[Texts]], run_bytes: int, group_rows: int
) -> None:
    table = tmp_path_factory.mktemp("table")
    tables = list(make_files(files))
    file = compact(table, tables, run_bytes=run_bytes, group_rows=group_rows).file
    found = json.loads(file.statistics)
    rows = pa.concat_tables(tables)
    assert found["numRecords"] == rows.num_rows
    for name in ("maybe", "always"):
        texts: list[str] = [text for text in rows[name].to_pylist() if text is not None]
        assert found["nullCount"][name] == rows.num_rows - len(texts)
        least = found["minValues"].get(name)
        greatest = found["maxValues"].get(name)
        assert (least is None, greatest is None) == (not texts, not texts)
        if not texts:
            continue
        assert (least <= min(texts), greatest >= max(texts)) == (True, True)
        if len(max(texts)) <= STRING_CHARACTERS and LONG not in texts:
            assert (least, greatest) == (min(texts)[:STRING_CHARACTERS], max(texts))


def coded_column(rows: pa.Table, name: str) -> Any:
    """Return the only chunk of a column, with codes and dictionary."""
    (chunk,) = rows[name].chunks
    return chunk


def with_dictionaries(rows: pa.Table) -> pa.Table:
    for name in ("maybe", "always", "_topic_id"):
        n = rows.schema.get_field_index(name)
        coded: Any = rows[name].dictionary_encode()
        rows = rows.set_column(n, rows.schema.field(n).with_type(coded.type), coded)
    return rows


@given(files=FILES)
def test_the_dictionary_of_a_run_begins_with_that_of_the_run_before(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[Texts]]
) -> None:
    """One dictionary is valid for the codes of all runs, also after a run in which all texts are null."""
    coded = map(with_dictionaries, make_files(files))
    runs = [run.rows for run in collect_runs(coded, tmp_path_factory.getbasetemp(), run_bytes=1)]
    assert (len(runs), find_coded(runs)) == (len(files), ["maybe", "always", "_topic_id"])
    last = runs[-1]
    for rows, expected in zip(runs, make_files(files), strict=True):
        for name in ("maybe", "always", "_topic_id"):
            known = coded_column(last, name).dictionary
            texts = coded_column(rows, name)
            assert known.slice(0, len(texts.dictionary)).equals(texts.dictionary)
            assert known.take(texts.indices).to_pylist() == expected[name].to_pylist()


def dictionaries_of(path: Path, name: str) -> list[int]:
    """Return the number of texts in the dictionary of each row group."""
    with pq.ParquetFile(path, read_dictionary=[name]) as parquet:
        groups = [parquet.read_row_group(group) for group in range(parquet.num_row_groups)]
    return [len(coded_column(rows, name).dictionary) for rows in groups]


def test_codes_are_handed_on_as_they_are_while_the_dictionary_is_small(tmp_path: Path) -> None:
    """Each row group keeps the dictionary of all rows, which a writer would not make from its texts alone."""
    tables = list(make_files([[(f"m{n}", "x"), (None, "y")] for n in range(4)]))
    path = tmp_path / compact(tmp_path, tables, run_bytes=1, group_rows=4).file.path
    assert dictionaries_of(path, "maybe") == [4] * 8


def test_a_column_with_a_large_dictionary_is_written_as_text(tmp_path: Path) -> None:
    """Each row group would hold all of it. A column of few texts is still written by its codes."""
    each = DICTIONARY_BYTES_MAX // 100
    tables = list(make_files([[(f"{file}-{n:090}", "x") for n in range(each // 2)] for file in range(4)]))
    rewritten = compact(tmp_path, tables, run_bytes=1, group_rows=each)
    path = tmp_path / rewritten.file.path
    assert max(dictionaries_of(path, "maybe")) <= each
    assert in_order(pq.read_table(path).select(SCHEMA.names)) == in_order(pa.concat_tables(tables))
    assert prove_file(path).digest == rewritten.digest


def test_a_large_dictionary_is_not_carried_from_run_to_run(tmp_path: Path) -> None:
    """Otherwise runs grow with all texts of the hour."""
    each = 2 * DICTIONARY_BYTES_MAX // 100
    files = make_files([[(f"{file}-{n:090}", "x") for n in range(each)] for file in range(4)])
    runs = [run.rows for run in collect_runs(map(with_dictionaries, files), tmp_path, run_bytes=1)]
    assert [len(coded_column(rows, "maybe").dictionary) for rows in runs] == [each] * 4
    assert find_coded(runs) == ["always", "_topic_id"]


def test_files_hold_no_schema_of_arrow_where_it_adds_nothing(tmp_path: Path) -> None:
    file = write_file(tmp_path, next(make_files([[("a", "b")]])), prefix="rows")
    assert pq.read_metadata(tmp_path / file.path).metadata is None
    assert pq.read_schema(tmp_path / file.path).equals(SCHEMA)


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.timestamp("us", tz="Europe/Berlin"), pa.list_(pa.large_string()), pa.duration("us")],
)
def test_a_type_that_only_the_schema_of_arrow_names_keeps_it(tmp_path: Path, kind: pa.DataType) -> None:
    """Texts are written uncoded: a stored schema with dictionaries would make readers return dictionaries."""
    schema = pa.schema([pa.field("odd", kind), pa.field("text", pa.dictionary(pa.int32(), pa.string()))])
    texts: Any = pa.array(["a", None, "a"]).dictionary_encode()
    with DataFileWriter(tmp_path, schema, commit_hour=None, prefix="rows") as writer:
        writer.write(pa.table([pa.array([None] * 3, kind), texts], schema=schema))
        file = writer.finish()
    found = pq.read_table(tmp_path / file.path)
    assert found.schema == pa.schema([pa.field("odd", kind), pa.field("text", pa.string())])
    assert found["text"].to_pylist() == ["a", None, "a"]
    assert not is_self_describing(found.schema)


def test_metadata_of_a_column_is_kept(tmp_path: Path) -> None:
    """Also after a file whose equal columns have no metadata."""
    for schema in (pa.schema([("n", pa.int64())]), pa.schema([pa.field("n", pa.int64(), metadata={"unit": "m"})])):
        file = write_file(tmp_path, pa.table({"n": [1]}, schema=schema), prefix="rows")
        assert pq.read_schema(tmp_path / file.path).equals(schema, check_metadata=True)


def test_a_query_by_text_finds_its_rows_by_the_bounds_of_row_groups(tmp_path: Path) -> None:
    """The bounds of a row group are those of its texts, not of its dictionary, and hide no row."""
    tables = list(make_files([[(f"m{n}", f"x{n % 2}")] for n in range(6)]))
    path = tmp_path / compact(tmp_path, tables, run_bytes=1, group_rows=2).file.path
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(0).statistics
        assert statistics is not None
        assert statistics.min == statistics.max
    for n in range(6):
        found = pq.read_table(path, filters=pc.field("maybe") == f"m{n}")
        assert found.num_rows == 4
