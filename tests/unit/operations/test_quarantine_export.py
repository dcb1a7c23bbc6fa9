"""An export of the quarantine holds a few messages in memory, for any number of messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.operations.quarantine import QuarantineFilter, export_quarantined
from lockstep.table import side_tables
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from tests.features.quality.stream_tables import CLEAN, clean_batches, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FILES = 24
MESSAGES = 5
VALUE = b"v" * 100_000


def make_row(offset: int) -> QuarantineRow:
    return QuarantineRow(
        generation=1, batch=1, topic_id=CLEAN[0].topic_id, topic=CLEAN[0].topic, partition=0, offset=offset,
        session=None, cause="gap", expected=None, found=None, timestamp=None, key=None, value=VALUE,
        value_bytes=len(VALUE), headers=[],
    )  # fmt: skip


def test_an_export_that_writes_slowly_reads_few_files_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = write(tmp_path, clean_batches(1, CLEAN[:1]))
    files = tuple(
        write_quarantine(folders.quarantine, [make_row(MESSAGES * file + each) for each in range(MESSAGES)])
        for file in range(FILES)
    )
    side_tables.SideLog(folders.quarantine).catch_up(files, 1, after=0)
    held = list[int]()
    really_write = pq.ParquetWriter.write_batch

    def write_slowly(writer: pq.ParquetWriter, batch: pa.RecordBatch) -> None:
        time.sleep(0.02)
        held.append(pa.total_allocated_bytes() - before)
        really_write(writer, batch)

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", write_slowly)
    before = pa.total_allocated_bytes()
    exported = export_quarantined(folders, QuarantineFilter(), tmp_path / "all.parquet")
    assert exported.messages == FILES * MESSAGES
    assert max(held) < 3.5 * MESSAGES * len(VALUE)
