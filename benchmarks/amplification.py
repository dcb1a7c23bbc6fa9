"""What compaction writes of a stream with a trigger of a second: bytes for each byte of its batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from deltalake import DeltaTable
from rich.console import Console

from benchmarks.compaction import BATCH_FILES, write_small_file
from benchmarks.growth import STREAM
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from lockstep.engine.driver.startup import WriterStartup
from lockstep.features.compaction.run import CompactionResult, compact_stream
from lockstep.table import ledger
from lockstep.table.commit import BatchCommit, OutputLog, Writer, commit_batch
from lockstep.table.layout import StreamFolders

AMPLIFICATION_MAX = 1.05
LOOK_SECONDS = 600
"""The schedule of minor compaction, in simulated seconds; a file each second."""


@dataclass(frozen=True)
class OpenHours:
    """The stream.

    Attributes:
        hours: Whole hours that are closed in the end.
        files: Files an hour.
        rows: Rows of a file.
    """

    hours: int = 2
    files: int = 3_600
    rows: int = 200


def measure_amplification(made: OpenHours, *, folder: Path, console: Console) -> Record:
    """Commit the hours, compact as the schedules do; compare what was written."""
    conditions = Conditions.now()
    by_batches, live, done = _write_hours(made, StreamFolders(STREAM.name, folder))
    written = {
        "closed hours": sum(each.bytes_after for each in done if not each.minor_bins) / by_batches,
        "minor compaction of open hours": sum(each.bytes_after for each in done if each.minor_bins) / by_batches,
    }
    console.print(written)
    goals, what = {"closed hours": AMPLIFICATION_MAX}, "bytes written for a byte of the batches"
    figures = [
        *(Figure(f"{name}: {what}", each, "", goals.get(name)) for name, each in written.items()),
        Figure("files of the table, at most", max(live), ""),
        Figure("files that the batches wrote", made.hours * made.files, ""),
    ]
    bars = Series("bytes", list(written.values()), labels=list(written))
    title = f"{made.hours} hours of {made.files} files"
    panel = Panel(kind="bars", title=title, x_label="compaction", y_label=what, series=[bars])
    settings: dict[str, object] = {"hours": made.hours, "files": made.files, "rows": made.rows, "bytes": by_batches}
    return conditions.record("amplification", settings, figures, [panel], {"files": live})


def _write_hours(made: OpenHours, folders: StreamFolders) -> tuple[int, list[int], list[CompactionResult]]:
    """Bytes of the batches of whole hours; at each look the number of live files, and what its compaction did."""
    claimed = WriterStartup(STREAM, folders, "cluster").claim(cancelled=lambda: False)
    output, writer = OutputLog(folders.table), Writer(epoch=claimed.head.epoch, generation=claimed.head.generation)
    random, size, live, done = np.random.default_rng(7), 0, list[int](), list[CompactionResult]()
    for first in range(0, made.hours * made.files + LOOK_SECONDS, BATCH_FILES):
        hour = f"2026-01-01T{first // made.files:02}"
        files = tuple(
            write_small_file(folders.table, at, made.rows, random, hour=hour)
            for at in range(first, first + BATCH_FILES)
        )
        number, side = output.base().head.batch + 1, ledger.write_ledger(folders.ledger, [])
        output.commit(commit_batch(writer, BatchCommit(number=number, commit_hour=hour, files=files, ledger=side)))
        size += sum(file.size for file in files) if first < made.hours * made.files else 0
        if not (first + BATCH_FILES) % LOOK_SECONDS:
            live.append(len(DeltaTable(folders.table).file_uris()))
            done.append(compact_stream(folders))
    return size, live, done
