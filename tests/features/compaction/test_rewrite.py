"""Rewritten rows are ordered by partition, emit offset and row, for any input files."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.features.compaction.rewrite import collect_runs, sort_in_order
from lockstep.table.row_groups import regroup_rows
from lockstep.table.row_order import OutOfOrder
from tests.support.stream_table import Identity, identities

COLUMNS: dict[str, pa.DataType] = {
    "_topic_id": pa.string(),
    "_partition": pa.int32(),
    "_emit_offset": pa.int64(),
    "_row": pa.int32(),
}
SCHEMA = pa.schema(COLUMNS)
PARTITIONS = st.tuples(st.sampled_from("abc"), st.integers(0, 2))
FILES = st.lists(st.dictionaries(PARTITIONS, st.integers(1, 6), min_size=1), min_size=1, max_size=8)


def rows_at(places: list[Identity]) -> pa.Table:
    columns = zip(*places, strict=True) if places else [()] * 4
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def written(files: list[dict[tuple[str, int], int]]) -> list[list[Identity]]:
    """Return the rows of streaming files: the next rows of each partition, two rows per offset."""
    reached: dict[tuple[str, int], int] = {}
    result = []
    for file in files:
        places: list[Identity] = []
        for partition in sorted(file):
            start = reached.get(partition, 0)
            reached[partition] = start + file[partition]
            places += [(*partition, n // 2, n % 2) for n in range(start, start + file[partition])]
        result.append(places)
    return result


def with_dictionary(rows: pa.Table) -> pa.Table:
    """Return the rows with the topic ids as a dictionary of this table."""
    return rows.set_column(0, "_topic_id", rows.column("_topic_id").dictionary_encode())


def gathered(tables: list[pa.Table], scratch: Path, run_bytes: int) -> list[Identity]:
    runs = collect_runs(tables, scratch, run_bytes=run_bytes)
    return [place for piece in sort_in_order(runs) for place in identities(piece)]


@given(files=FILES, dice=st.randoms(), run_bytes=st.sampled_from([1, 200, 10**9]), encoded=st.booleans())
def test_rows_of_files_in_any_order_come_out_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[dict[tuple[str, int], int]],
    dice: random.Random,
    run_bytes: int,
    encoded: bool,  # noqa: FBT001  # drawn
) -> None:
    places = written(files)
    dice.shuffle(places)
    expected = sorted(place for file in places for place in file)
    tables = [with_dictionary(rows_at(each)) if encoded else rows_at(each) for each in places]
    assert expected == gathered(tables, tmp_path_factory.getbasetemp(), run_bytes)


def test_scratch_files_leave_no_name_behind(tmp_path: Path) -> None:
    files = written([{("a", 0): 5}] * 4)
    runs = collect_runs([rows_at(places) for places in files], tmp_path, run_bytes=1)
    assert (len(runs), list(tmp_path.iterdir())) == (4, [])
    assert [place for file in files for place in file] == [
        place for piece in sort_in_order(runs) for place in identities(piece)
    ]


@pytest.mark.parametrize("run_bytes", [1, 10**9])
@pytest.mark.parametrize(
    ("files", "offset"),
    [
        ([[("a", 0, 1, 0)], [("a", 0, 1, 0)]], 1),
        ([[("a", 0, 1, 0), ("a", 0, 5, 0)], [("a", 0, 3, 0)]], 3),
        ([[("a", 0, 1, 0), ("a", 0, 2, 0)], [("a", 0, 2, 0), ("a", 0, 3, 0)]], 2),
    ],
)
def test_overlapping_ranges_are_refused_by_name(
    tmp_path: Path, files: list[list[Identity]], offset: int, run_bytes: int
) -> None:
    with pytest.raises(OutOfOrder, match="topic id a, partition 0") as refused:
        gathered(list(map(rows_at, files)), tmp_path, run_bytes)
    assert ("a", 0, offset) == (refused.value.topic_id, refused.value.partition, refused.value.offset)


def test_a_file_that_is_not_sorted_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OutOfOrder, match="topic id b, partition 7, emit offset 3"):
        gathered([rows_at([("a", 0, 9, 0), ("b", 7, 4, 0), ("b", 7, 3, 0)])], tmp_path, 10**9)


@given(sizes=st.lists(st.integers(0, 9), max_size=9), rows=st.integers(1, 7))
def test_regrouping_changes_no_row_and_fills_every_table_but_the_last(sizes: list[int], rows: int) -> None:
    numbers = pa.table({"n": range(sum(sizes))})
    ends = [sum(sizes[:i]) for i in range(len(sizes))]
    pieces = [numbers.slice(start, size) for start, size in zip(ends, sizes, strict=True)]
    groups = list(regroup_rows(pieces, rows))
    assert numbers.column("n").to_pylist() == [n for group in groups for n in group.column("n").to_pylist()]
    assert all(len(group) == rows for group in groups[:-1])
