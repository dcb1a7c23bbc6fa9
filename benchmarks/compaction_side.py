"""One system's work of the compaction benchmark, in a process of its own: `python -m benchmarks.compaction_side`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lockstep.features.compaction.run import compact_stream
from lockstep.settings import SparkSettings
from lockstep.spark.session import start_context
from lockstep.table.layout import StreamFolders


def run_lockstep(table: Path) -> None:
    """The product's own, in this process."""
    compact_stream(StreamFolders(table.parent.name, table.parent.parent))


def run_delta_rs(table: Path) -> None:
    """delta-rs; banned in the product: two at once both commit."""
    DeltaTable(table).optimize.compact(target_size=256 * 1024 * 1024)


def run_spark(table: Path) -> None:
    """Delta's OPTIMIZE."""
    start_spark().sql(f"OPTIMIZE delta.`{table}`").collect()


def scan_by_spark(table: Path, scans: str, aggregate: str = "") -> None:
    """Read every row, some times: two columns of it, or all of them."""
    session = start_spark()
    for _ in range(int(scans)):
        rows = session.read.format("delta").load(str(table))
        if aggregate:
            rows.selectExpr(aggregate, "count(_session)").collect()
        else:
            rows.write.format("noop").mode("overwrite").save()


def start_only(table: Path) -> None:
    """What a start of Spark costs, with a look at the log."""
    start_spark().read.format("delta").load(str(table)).inputFiles()


def import_only(_table: Path) -> None:
    """What the imports cost: pyarrow's of pandas, at its first array, too."""
    pa.array([0])


def start_spark() -> SparkSession:
    """A session as the product configures it."""
    return SparkSession(start_context(SparkSettings(master="local[2]"), "compaction benchmark"))


WORKS: Mapping[str, Callable[..., None]] = {
    "lockstep": run_lockstep,
    "delta-rs optimize": run_delta_rs,
    "Spark OPTIMIZE": run_spark,
    "Spark scans": scan_by_spark,
    "Spark start": start_only,
    "imports": import_only,
}

if __name__ == "__main__":
    WORKS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
