"""One look at a stream that has run for days, in a process of its own: `python -m benchmarks.growth_side`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from dagster import DagsterInstance, SensorDefinition, build_sensor_context

from benchmarks.growth import STREAM, Look
from jobs.streaming import streaming_job
from lockstep.engine.driver.startup import WriterStartup
from lockstep.operations.inspect.status import read_status
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import KafkaSettings, Settings, SparkSettings
from lockstep.table.layout import StreamFolders
from sensors.health import health_sensor
from sensors.supervisor import supervisor_sensor

LOOKS = 5
UNUSED = "127.0.0.1:9"
"""No broker: what Kafka is asked does not grow with the number of batches."""


def look(act: Callable[[], object], process: int) -> Look:
    """Repeat an act, and read the usage of the process that does the work."""
    clock = ~process << 3 | 2  # of the CPU time of another process: clock_getcpuclockid(3)
    found = []
    for _ in range(LOOKS):
        before = time.clock_gettime(clock)
        act()
        found.append(time.clock_gettime(clock) - before)
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    anonymous = sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
    return Look(min(found), anonymous * 1024)


def make_handle(folders: StreamFolders) -> StreamHandle:
    """What a command or a tick opens."""
    kafka = KafkaSettings(bootstrap_servers=UNUSED, timeout_seconds=0.2)
    return StreamHandle(STREAM, Settings(table_root=folders.root, kafka=kafka))


def look_by_start(folders: StreamFolders) -> Look:
    """The claim of a new writer, with all positions."""
    return look(lambda: WriterStartup(STREAM, folders, "cluster").claim(cancelled=lambda: False), os.getpid())


def look_by_status(folders: StreamFolders) -> Look:
    """`lockstep status STREAM`."""
    return look(lambda: read_status(make_handle(folders)), os.getpid())


def look_by_sensor(make: Callable[..., SensorDefinition], folders: StreamFolders) -> Look:
    """A tick on an instance without runs."""
    sensor = make(make_handle(folders).settings)
    with DagsterInstance.ephemeral() as instance:
        return look(lambda: sensor(build_sensor_context(instance=instance)), os.getpid())


def look_by_spark(folders: StreamFolders) -> Look:
    """Open the table and list its files, without what Spark keeps of an earlier look."""
    from pyspark.sql import SparkSession

    from lockstep.spark.session import start_context

    session = SparkSession(start_context(SparkSettings(master="local[1]"), "growth benchmark"))
    jvm_code: Any = session._jvm  # noqa: SLF001  # the cache of Delta has no public name in Python
    (jvm,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "java")

    def open_table() -> None:
        jvm_code.org.apache.spark.sql.delta.DeltaLog.clearCache()
        session.read.format("delta").load(str(folders.table)).inputFiles()

    return look(open_table, jvm.pid)


WORKS: Mapping[str, Callable[[StreamFolders], Look]] = {
    "a start": look_by_start,
    "status": look_by_status,
    "a tick of the supervisor": lambda folders: look_by_sensor(
        partial(supervisor_sensor, [STREAM], [streaming_job(STREAM)]), folders
    ),
    "a tick of the health sensor": lambda folders: look_by_sensor(
        partial(health_sensor, [STREAM], [streaming_job(STREAM)]), folders
    ),
    "open the table with Spark": look_by_spark,
}


def main(work: str, root: str, now: str) -> None:
    """Look under a clock that stands still; the answer is one line of JSON."""
    time.time = lambda: float(now)
    print(msgspec.json.encode(WORKS[work](StreamFolders(STREAM.name, Path(root)))).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
