"""Makes the archive of the classes that Spark loads (class_archive.py): python -m lockstep.spark.spark_archive."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from lockstep.settings import SparkSettings
from lockstep.spark.class_archive import find_spark_folder, make_archive, name_archive
from lockstep.spark.jars import fetch_ivy_jar
from lockstep.spark.java import require_java
from lockstep.spark.session import make_driver_options, start_context


def make_spark_archive() -> Path:
    """Make that of Spark in this process, which must not run one: a task in a Python worker, and a small Delta table.

    Raises:
        EnvironmentProblem: No Java, no jars, or no archive was made.
    """
    return make_archive(
        find_spark_folder(), name_archive("spark", fetch_ivy_jar().parent, require_java()), _train_spark
    )


def _train_spark(options: tuple[str, ...]) -> None:
    from pyspark.sql import SparkSession  # heavy; only this pays for it

    own = {
        "spark.driver.extraJavaOptions": make_driver_options(options),
        "spark.python.worker.reuse": "false",  # one that waits for another task would complain of the end
    }
    with tempfile.TemporaryDirectory() as folder:
        context = start_context(SparkSettings(master="local[2,3]", options=own), "class archive")
        context.parallelize(range(2), 2).map(str).collect()
        session = SparkSession(context)
        session.range(2).write.format("delta").save(f"{folder}/table")
        session.read.format("delta").load(f"{folder}/table").groupBy().sum("id").collect()
        gateway: Any = context._gateway  # noqa: SLF001  # pyspark leaves its JVM to the end of the process
        context.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    sys.stdout.write(f"{make_spark_archive()}\n")
