"""Cost and gain of a compaction of one hour of small files, against delta-rs and Spark on copies of the same table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.console import Console

from assets.order_books import order_books
from benchmarks.engine_files import fold_batches, make_order_book_batches, make_sensor_batches
from benchmarks.growth import BUILDER, STREAM, Reading
from benchmarks.measure import run_measured
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.sensors import sensors
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.startup import WriterStartup
from lockstep.table import ledger
from lockstep.table.commit import BatchCommit, OutputLog, Writer, commit_batch, commit_closed_hour
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFile, write_file
from lockstep.table.row_encoder import PartitionRun, Provenance

HOUR = "2026-01-01T00"
BATCH_FILES, PARTITIONS = 50, 4
SYSTEMS = {"lockstep": "imports", "delta-rs optimize": "imports", "Spark OPTIMIZE": "Spark start"}
"""Each system with the work that costs what its start does."""


@dataclass(frozen=True)
class SmallFiles:
    """The hour to compact.

    Attributes:
        files: Number of files.
        rows: Rows of a file that are generated; 3,000 are about 40 kB.
        messages: Messages of a file of the workload of the main benchmark, a row each; 1,000 are about 50 kB.
        seconds: Of the recorded order books, so many seconds make a file: about 60 kB.
        recorded: Files of recorded rows, which are more than twice as many a file.
    """

    files: int = 2_000
    rows: int = 3_000
    messages: int = 1_000
    seconds: float = 5.0
    recorded: int = 720


@dataclass(frozen=True)
class MadeTable:
    """A table of small files.

    Attributes:
        table: Its folder.
        files: Number of its files.
        rows: Number of their rows.
        stat_bytes: Bytes of its files.
    """

    table: Path
    files: int
    rows: int
    stat_bytes: int

    @property
    def settings(self) -> dict[str, object]:
        """Its size for the record."""
        return {"files": self.files, "bytes": self.stat_bytes, "rows": self.rows}


@dataclass(frozen=True)
class Workload:
    """Rows of one kind.

    Attributes:
        name: Its name among the figures; empty for the one that is measured since the first record.
        write: Writes its table.
        aggregate: What a scan of two columns reads, besides the sessions.
    """

    name: str
    write: Callable[[SmallFiles, Path], MadeTable]
    aggregate: str

    def label(self, figure: str) -> str:
        """A figure's name."""
        return f"{self.name}: {figure}" if self.name else figure


@dataclass(frozen=True)
class Measured:
    """What was measured of one workload, by system.

    Attributes:
        workload: The rows.
        made: Their table.
        cpu_seconds: Of a compaction, without start-up.
        inversions: Rows out of order after it.
        scans: CPU seconds of a warm scan by Spark, before and after the compaction by lockstep, by what it reads.
    """

    workload: Workload
    made: MadeTable
    cpu_seconds: dict[str, float]
    inversions: dict[str, int]
    scans: dict[str, tuple[float, float]]


def measure_compaction(small: SmallFiles, *, folder: Path, console: Console) -> Record:
    """Compact one table of each workload by each system; measure, compare rows, count inversions of the order."""
    conditions = Conditions.now()
    found = []
    for number, workload in enumerate(WORKLOADS):
        root = folder / str(number)
        found.append(_measure_workload(workload, small, root, console))
        shutil.rmtree(root)
    return _record(conditions, found)


def _measure_workload(workload: Workload, small: SmallFiles, folder: Path, console: Console) -> Measured:
    """One workload: each system compacts a copy of its own."""
    made = workload.write(small, folder / "made")
    console.print(workload.label(f"{made.files} files, {made.rows} rows, {made.stat_bytes} bytes"))
    started = {work: measure(work, made.table) for work in ("imports", "Spark start")}
    before = measure_scans(made.table, workload.aggregate)
    cpu, inversions, tables = dict[str, float](), dict[str, int](), dict[str, Path]()
    for number, (system, start) in enumerate(SYSTEMS.items()):
        tables[system] = folder / f"copy-{number}" / made.table.parent.name / "table"
        shutil.copytree(made.table.parent, tables[system].parent)
        cpu[system] = measure(system, tables[system]) - started[start]
        inversions[system] = count_inversions(tables[system], expected_rows=made.rows)
        console.print(workload.label(f"{system}: {cpu[system]:.1f} CPU s, {inversions[system]} inversions"))
    after = measure_scans(tables["lockstep"], workload.aggregate)
    scans = {columns: (before[columns], after[columns]) for columns in before}
    return Measured(workload, made, cpu, inversions, scans)


def write_generated(small: SmallFiles, root: Path) -> MadeTable:
    """Rows that are written without a fold: 13 columns, a float of which every value is another."""
    random, table = np.random.default_rng(7), StreamFolders(STREAM.name, root).table
    files = (write_small_file(table, at, small.rows, random) for at in range(small.files))
    return write_closed_hour(STREAM, files, root)


def write_sensors(small: SmallFiles, root: Path) -> MadeTable:
    """Rows of the main benchmark, folded: 26 columns."""
    stream = sensors(r"sensors\..+")
    batches = make_sensor_batches(small.files, small.messages)
    return write_closed_hour(stream, fold_batches(stream, batches, root, hour=HOUR), root)


def write_order_books(small: SmallFiles, root: Path) -> MadeTable:
    """Rows of recorded order books, folded: 13 columns, six of them text of the exchange."""
    files = fold_batches(order_books, make_order_book_batches(small.seconds), root, hour=HOUR)
    return write_closed_hour(order_books, islice(files, min(small.files, small.recorded)), root)


WORKLOADS = (
    Workload("", write_generated, "sum(value)"),
    Workload("sensors", write_sensors, "sum(v0)"),
    Workload("order books", write_order_books, "max(price)"),
)


def write_closed_hour(stream: AnyStream, files: Iterable[DataFile], root: Path) -> MadeTable:
    """An hour of small files as the engine commits them, closed."""
    folders = StreamFolders(stream.name, root)
    claimed = WriterStartup(stream, folders, "cluster").claim(cancelled=lambda: False)
    output, writer = OutputLog(folders.table), Writer(epoch=claimed.head.epoch, generation=claimed.head.generation)
    waiting, committed = iter(files), list[DataFile]()
    for number in count(1):
        some = tuple(islice(waiting, BATCH_FILES))
        if not some:
            break
        committed += some
        batch = BatchCommit(number=number, commit_hour=HOUR, files=some, ledger=ledger.write_ledger(folders.ledger, []))
        output.commit(commit_batch(writer, batch))
    output.commit(commit_closed_hour(HOUR))
    rows, size = sum(file.rows for file in committed), sum(file.size for file in committed)
    return MadeTable(folders.table, len(committed), rows, size)


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
    built = pa.Table.from_batches([BUILDER.build(found, proof)])
    return write_file(table, built, prefix="rows", commit_hour=hour)


def measure(work: str, table: Path, *arguments: str) -> float:
    """CPU seconds of a work, its processes and its JVM included."""
    command = [sys.executable, "-m", "benchmarks.compaction_side", work, str(table), *arguments]
    return run_measured(command, os.environ).cpu_seconds


def measure_scans(table: Path, aggregate: str) -> dict[str, float]:
    """CPU seconds of a scan by Spark once it is warm: of ten scans, as a start costs more than many of them."""
    work = "Spark scans"
    return {
        columns: (measure(work, table, "12", *reads) - measure(work, table, "2", *reads)) / 10
        for columns, reads in {"two columns": [aggregate], "all columns": []}.items()
    }


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


def _record(conditions: Conditions, found: list[Measured]) -> Record:
    figures = [figure for each in found for figure in _figures(each)]
    panels = [_panel(each) for each in found]
    settings: dict[str, object] = {each.workload.name or "generated": each.made.settings for each in found}
    scans: dict[str, object] = {each.workload.name or "generated": each.scans for each in found}
    return conditions.record("compaction", settings, figures, panels, {"scan_cpu_seconds": scans})


def _figures(found: Measured) -> list[Figure]:
    """Of a million rows and of a GB: rows of another width have another cost a GB."""
    label = found.workload.label
    gigabytes, millions, cpu = found.made.stat_bytes / 1e9, found.made.rows / 1e6, found.cpu_seconds.items()
    return [
        Figure(label("bytes of a row"), found.made.stat_bytes / found.made.rows, "B"),
        *(Figure(label(f"{name}, without start-up"), each / gigabytes, "CPU s per GB") for name, each in cpu),
        *(Figure(label(f"{name}, without start-up"), each / millions, "CPU s per million rows") for name, each in cpu),
        *(Figure(label(f"{name}: rows out of order"), each, "") for name, each in found.inversions.items()),
        *(
            Figure(label(f"a warm Spark scan of {columns}, compacted to small files"), after / before, "")
            for columns, (before, after) in found.scans.items()
        ),
    ]


def _panel(found: Measured) -> Panel:
    made = found.made
    cost = [each / made.rows * 1e6 for each in found.cpu_seconds.values()]
    return Panel(
        kind="bars",
        title=found.workload.label(f"{made.files} files of {made.stat_bytes / made.files / 1e3:.0f} kB become one"),
        x_label="system",
        y_label="CPU s per million rows",
        series=[Series("CPU", cost, labels=list(found.cpu_seconds))],
    )
