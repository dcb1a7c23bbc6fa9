"""The proof of the rows: independent of order and files, different for any changed value."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from benchmarks import verify
from benchmarks.verify import Digest, digest_of, digest_of_batch
from benchmarks.workload import Size

VALUES = ("ok", "pump-1", -0.0, 1.5, -2.25, 3.0, -7, True)
ROWS = [
    ("s1", 1, 10, *VALUES, *VALUES),
    ("s1", 2, 11, "fault", "fan-2", 1.0, 2.0, 3.0, 4.0, 5, False, *VALUES),
    ("s2", 1, 10, *VALUES, "é", "", 0.0, 1e300, -1.0, 0.1, 2**62, True),
]


def table(rows: Sequence[tuple[object, ...]]) -> pa.Table:
    columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
    return pa.table(columns, names=list(verify.COLUMNS))


def digest(rows: Sequence[tuple[object, ...]]) -> Digest:
    return sum((digest_of_batch(batch) for batch in table(rows).to_batches()), Digest(0, 0))


def test_arrow_and_plain_python_compute_the_same_hash() -> None:
    plain = sum(verify.plain_hash(row) for row in ROWS) % 2**64
    assert digest(ROWS) == Digest(len(ROWS), plain)


def test_order_and_files_do_not_matter(tmp_path: Path) -> None:
    pq.write_table(table(ROWS[2:]), tmp_path / "a.parquet")
    pq.write_table(table(ROWS[1::-1]), tmp_path / "b.parquet", row_group_size=1)
    assert digest_of(tmp_path) == digest(ROWS)


@pytest.mark.parametrize("column", range(len(verify.COLUMNS)), ids=verify.COLUMNS)
def test_another_value_in_any_column_is_seen(column: int) -> None:
    other: list[object] = list(ROWS[1])
    match other[column]:
        case bool(value):
            other[column] = not value
        case str(value):
            other[column] = value + "?"
        case int(value) | float(value):
            other[column] = value + 1
    assert digest([ROWS[0], tuple(other), ROWS[2]]) != digest(ROWS)


def test_a_null_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="1 null in column previous_flag"):
        digest([(*ROWS[0][:-1], None), ROWS[1]])


def test_only_the_committed_files_of_a_delta_table_count(tmp_path: Path) -> None:
    hours = pa.array(["2026-01-01T00", "2026-01-01T00", "2026-01-01T01"])
    folder = tmp_path / "ready fold, 100%"
    write_deltalake(str(folder), table(ROWS).append_column("commit_hour", hours), partition_by=["commit_hour"])
    pq.write_table(table(ROWS), folder / "orphan.parquet")
    assert digest_of(folder) == digest(ROWS)


def test_the_plain_fold_gives_a_row_for_each_update() -> None:
    size = Size("tiny", 1_600, topics=2, sessions=10, rows=5)
    assert verify.expected(size).rows == size.updates
