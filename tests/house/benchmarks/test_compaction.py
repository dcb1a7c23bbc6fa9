"""Small files of the compaction benchmark equal the engine's files, over laps of the recordings."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from assets.order_books import order_books
from benchmarks.compaction import HOUR
from benchmarks.engine_files import fold_batches, make_order_book_batches, make_sensor_batches
from benchmarks.sensors import sensors

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 706_795
"""Rows of all three books, by the plain fold (tests/streams/order_books)."""


def test_each_update_of_a_sensor_is_a_row_in_files_of_fifty_kilobytes(tmp_path: Path) -> None:
    stream = sensors(r"sensors\..+")
    files = list(fold_batches(stream, make_sensor_batches(4, 1_000), tmp_path, hour=HOUR))
    assert [file.rows for file in files] == [800, 1_000, 1_000, 1_000]  # each of 200 sessions starts with a snapshot
    assert all(30_000 < file.size < 90_000 for file in files[1:])


@pytest.mark.slow
def test_the_recordings_go_on_as_new_sessions_at_the_next_offset(tmp_path: Path) -> None:
    files = list(islice(fold_batches(order_books, make_order_book_batches(240.0), tmp_path, hour=HOUR), 3))
    read = [pq.read_table(tmp_path / "order_books" / "table" / file.path) for file in files]
    laps = [str(session).rpartition("-")[2] for rows in read for session in rows["_session"].to_pylist()]
    assert (laps.count("0"), set(laps)) == (ROWS, {"0", "1"})
    assert 0 not in read[2]["_offset"].to_pylist()
