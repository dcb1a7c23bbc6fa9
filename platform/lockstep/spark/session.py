"""The Spark session: one way to start it, for runs, checks and queries.

Jars come from a checked cache, never from `--packages` at run time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import lockstep
from lockstep.errors import EnvironmentProblem
from lockstep.settings import SparkSettings
from lockstep.spark.jars import resolve
from lockstep.spark.java import require_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

DRIVER_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM schedules; Python and Arrow do the work. Without its second compiler and with the plain
collector it starts at about half the CPU (measured: 17.0 to 8.7 CPU seconds on a crowded machine)."""


def spark_properties(settings: SparkSettings, *, import_roots: tuple[Path, ...] = ()) -> dict[str, str]:
    """The properties of every session of lockstep.

    Args:
        settings: Master, memory, and what the user adds.
        import_roots: Folders from which executors import the user's stream modules.
    """
    python_path = ":".join(str(root) for root in (Path(lockstep.__file__).parents[1], *import_roots))
    return {
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": DRIVER_JAVA_OPTIONS,
        "spark.driver.host": "127.0.0.1" if settings.master.startswith("local") else "",
        "spark.driver.bindAddress": "127.0.0.1" if settings.master.startswith("local") else "",
        "spark.jars": ",".join(str(jar) for jar in resolve("delta")),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # Delta reads its log in 50 tasks unless told otherwise; a stream's log is small.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.executorEnv.PYTHONPATH": python_path,
        # Halves the fixed cost of a Python task (measured).
        "spark.python.unix.domain.socket.enabled": "true",
        # A second attempt beside a slow one would only read the same ranges twice.
        "spark.speculation": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **settings.options,
    }


def start_context(settings: SparkSettings, name: str, *, import_roots: tuple[Path, ...] = ()) -> SparkContext:
    """Start Spark without SQL, which a stream does not use and which costs half as much again.

    A session asked for later in this process is made on top of it.

    Raises:
        EnvironmentProblem: As `prepare_session` does.
    """
    from pyspark import SparkConf, SparkContext  # heavy; only runs pay for it

    properties = prepare_session(settings, import_roots=import_roots)
    return SparkContext.getOrCreate(SparkConf().setAppName(name).setAll(list(properties.items())))


def start_session(settings: SparkSettings, name: str, *, import_roots: tuple[Path, ...] = ()) -> SparkSession:
    """Start the session of this process.

    Raises:
        EnvironmentProblem: As `prepare_session` does.
    """
    from pyspark.sql import SparkSession  # heavy; only runs pay for it

    builder = SparkSession.builder.appName(name)
    for key, value in prepare_session(settings, import_roots=import_roots).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def prepare_session(settings: SparkSettings, *, import_roots: tuple[Path, ...] = ()) -> dict[str, str]:
    """Make sure that this process can start the session, and give its properties.

    Raises:
        EnvironmentProblem: No usable Java, a jar that cannot be had, or a session of another kind
            already runs in this process: its static configuration would silently stay.
    """
    from pyspark import SparkContext  # heavy; only runs pay for it

    require_java()
    # Workers run this very interpreter; a cluster whose environment lies elsewhere names its own.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = {key: value for key, value in spark_properties(settings, import_roots=import_roots).items() if value}
    running = SparkContext._active_spark_context  # noqa: SLF001  # what getOrCreate itself looks at
    if running is not None:
        _refuse_other(running, wanted)
    return wanted


def _refuse_other(running: SparkContext, wanted: dict[str, str]) -> None:
    held = dict(running.getConf().getAll())
    for key in ("spark.master", "spark.driver.memory", "spark.jars", "spark.sql.extensions"):
        if held.get(key) != wanted[key]:
            raise EnvironmentProblem(
                f"this process already runs a Spark session with {key} = {held.get(key)!r}, not {wanted[key]!r}",
                next_step="stop that session, or run the stream in a process of its own",
            )
