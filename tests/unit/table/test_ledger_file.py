"""The file of a batch's ledger rows: all rows are read back, and a few rows are not compressed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest

from lockstep.model.finding import Hole
from lockstep.model.lookup_version import LookupVersion
from lockstep.model.position import Position
from lockstep.table.ledger import read_ledger_file, write_ledger
from lockstep.table.parquet import SNAPPY_ROWS
from lockstep.table.positions import LedgerStamp, make_unchanged_row

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.ledger import LedgerRow

STAMP = LedgerStamp(
    generation=1,
    batch=7,
    epoch=2,
    committed_at=datetime(2026, 1, 1, tzinfo=UTC),
    batch_seconds=0.5,
    restart_cause=None,
)


def make_rows(count: int) -> list[LedgerRow]:
    positions = (Position(topic="t", topic_id="id", partition=number, next_offset=5) for number in range(count))
    return [make_unchanged_row(STAMP, position, None) for position in positions]


@pytest.mark.parametrize(("rows", "compression"), [(SNAPPY_ROWS, "SNAPPY"), (SNAPPY_ROWS + 1, "ZSTD")])
def test_a_few_rows_are_compressed_by_snappy_and_all_come_back(tmp_path: Path, rows: int, compression: str) -> None:
    written = make_rows(rows)
    file = write_ledger(tmp_path, written)
    assert (file.rows, file.statistics) == (rows, f'{{"numRecords":{rows}}}')
    assert read_ledger_file(tmp_path, file.path) == written
    assert pq.ParquetFile(tmp_path / file.path).metadata.row_group(0).column(0).compression == compression


def test_holes_of_one_row_among_rows_without_any_come_back(tmp_path: Path) -> None:
    holes = [Hole(start=1, until=3, cause="marker")]
    written = [msgspec.structs.replace(row, holes=holes if row.partition == 2 else []) for row in make_rows(4)]
    assert read_ledger_file(tmp_path, write_ledger(tmp_path, written).path) == written


def test_versions_of_lookups_come_back_and_none_is_not_an_empty_list(tmp_path: Path) -> None:
    read = [LookupVersion(name="weights", version=3, table_id="id")]
    written = [msgspec.structs.replace(row, lookups=(None, read)[row.partition % 2]) for row in make_rows(4)]
    file = write_ledger(tmp_path, written)
    assert read_ledger_file(tmp_path, file.path) == written
    assert pq.ParquetFile(tmp_path / file.path).read()["lookups"].null_count == 2
