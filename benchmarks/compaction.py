"""Cost and gain of a compaction of one hour of small files, against delta-rs and Spark on copies of the same table."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.console import Console

from benchmarks.growth import BUILDER, STREAM, Reading
from benchmarks.measure import run_measured
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from lockstep.engine.driver.startup import WriterStartup
from lockstep.table import ledger
from lockstep.table.commit import BatchCommit, OutputLog, Writer, commit_batch, commit_closed_hour
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFile, DataFileWriter
from lockstep.table.row_encoder import PartitionRun, Provenance

HOUR = "2026-01-01T00"
BATCH_FILES, PARTITIONS = 50, 4
CPU_A_GIGABYTE_MAX, SCAN_MIN = 30.0, 5.0
SYSTEMS = {"lockstep": "imports", "delta-rs optimize": "imports", "Spark OPTIMIZE": "Spark start"}
"""Each system with the work that costs what its start does."""


@dataclass(frozen=True)
class SmallFiles:
    """The hour to compact.

    Attributes:
        files: Number of files.
        rows: Rows of a file; 3,000 are about 50 kB.
    """

    files: int = 2_000
    rows: int = 3_000


def measure_compaction(small: SmallFiles, *, folder: Path, console: Console) -> Record:
    """Compact one table by each system, on a copy of its own; measure, compare rows, count inversions of the order."""
    conditions = Conditions.now()
    made = write_table(small, folder / "made")
    size, count = made.stat_bytes, DeltaTable(made.table).to_pyarrow_dataset().count_rows()
    started = {work: measure(work, made.table) for work in ("imports", "Spark start")}
    before = measure_scan(made.table)
    cpu, inversions, tables = dict[str, float](), dict[str, int](), dict[str, Path]()
    for number, (system, start) in enumerate(SYSTEMS.items()):
        tables[system] = folder / f"copy-{number}" / STREAM.name / "table"
        shutil.copytree(made.table.parent, tables[system].parent)
        cpu[system] = (measure(system, tables[system]) - started[start]) / (size / 1e9)
        inversions[system] = count_inversions(tables[system], expected_rows=count)
        console.print(f"{system}: {cpu[system]:.1f} CPU s a GB, {inversions[system]} inversions")
    after = measure_scan(tables["lockstep"])
    return _record(conditions, small, size, cpu, inversions, (before, after))


@dataclass(frozen=True)
class MadeTable:
    """A table of small files.

    Attributes:
        table: Its folder.
        stat_bytes: Bytes of its files.
    """

    table: Path
    stat_bytes: int


def write_table(small: SmallFiles, root: Path) -> MadeTable:
    """An hour of small files as the engine leaves them, closed."""
    folders = StreamFolders(STREAM.name, root)
    claimed = WriterStartup(STREAM, folders, "cluster").claim(cancelled=lambda: False)
    output, writer = OutputLog(folders.table), Writer(epoch=claimed.head.epoch, generation=claimed.head.generation)
    random, size = np.random.default_rng(7), 0
    for number, first in enumerate(range(0, small.files, BATCH_FILES), 1):
        files = tuple(
            write_small_file(folders.table, at, small.rows, random)
            for at in range(first, min(first + BATCH_FILES, small.files))
        )
        size += sum(file.size for file in files)
        batch = BatchCommit(
            number=number, commit_hour=HOUR, files=files, ledger=ledger.write_ledger(folders.ledger, [])
        )
        output.commit(commit_batch(writer, batch))
    output.commit(commit_closed_hour(HOUR))
    return MadeTable(folders.table, size)


def write_small_file(
    table: Path, number: int, rows: int, random: np.random.Generator, *, hour: str = HOUR, first: int = 0
) -> DataFile:
    """A file with rows of all partitions; file by file the offsets of each go on, from the first one."""
    each = rows // PARTITIONS
    offsets = [first + number * each + at for _ in range(PARTITIONS) for at in range(each)]
    runs = [PartitionRun(f"growth.{partition}", f"id-of-{partition}", 0, each) for partition in range(PARTITIONS)]
    times = [1_767_225_600_000_000 + offset * 1_000 for offset in offsets]
    proof = Provenance(runs, offsets, [0] * len(offsets), [f"s{at % 97}" for at in offsets], offsets, times)
    values = random.normal(size=len(offsets)) * 1e6
    found = [Reading(f"sensor {at % 97}", float(values[i]), "C", 1) for i, at in enumerate(offsets)]
    with DataFileWriter(table, BUILDER.schema, commit_hour=hour, prefix="rows") as writer:
        writer.write(BUILDER.build(found, proof))
        return writer.finish()


def measure(work: str, table: Path) -> float:
    """CPU seconds of a work, its processes and its JVM included."""
    command = [sys.executable, "-m", "benchmarks.compaction_side", work, str(table)]
    return run_measured(command, os.environ).cpu_seconds


def measure_scan(table: Path) -> float:
    """CPU seconds of a scan by Spark once it is warm: of ten scans, as a start costs more than many of them."""
    return (measure("12 Spark scans", table) - measure("2 Spark scans", table)) / 10


def count_inversions(table: Path, *, expected_rows: int) -> int:
    """Rows of a partition that stand after a later one in the same file."""
    found = rows = 0
    for name in DeltaTable(table).file_uris():
        place = pq.ParquetFile(name).read(["_topic_id", "_emit_offset"])
        rows += len(place)
        codes = place["_topic_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        offsets = place["_emit_offset"].to_numpy()
        for code in np.unique(codes):
            found += int((np.diff(offsets[codes == code]) < 0).sum())
    if rows != expected_rows:
        raise ValueError(f"{table} has {rows} rows, not {expected_rows}")
    return found


def _record(
    conditions: Conditions,
    small: SmallFiles,
    size: int,
    cpu: dict[str, float],
    inversions: dict[str, int],
    scans: tuple[float, float],
) -> Record:
    goals = {"lockstep": CPU_A_GIGABYTE_MAX}
    before, after = scans
    millions, work = small.files * small.rows / 1e6, {name: each * size / 1e9 for name, each in cpu.items()}
    figures = [
        *(Figure(f"{name}, without start-up", each, "CPU s per GB", goals.get(name)) for name, each in cpu.items()),
        *(
            Figure(f"{name}, without start-up", each / millions, "CPU s per million rows")
            for name, each in work.items()
        ),
        *(Figure(f"{name}: rows out of order", each, "") for name, each in inversions.items()),
        Figure("a warm Spark scan, compacted to small files", after / before, "", 1 / SCAN_MIN),
    ]
    bars = Series("CPU", list(cpu.values()), labels=list(cpu))
    panel = Panel(
        kind="bars",
        title=f"{small.files} files of {size / small.files / 1e3:.0f} kB become one",
        x_label="system",
        y_label="CPU s per GB",
        series=[bars],
    )
    settings: dict[str, object] = {"files": small.files, "bytes": size, "rows": small.files * small.rows}
    return conditions.record("compaction", settings, figures, [panel], {"scan_cpu_seconds": [before, after]})
