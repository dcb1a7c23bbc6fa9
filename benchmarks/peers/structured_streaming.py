"""Spark Structured Streaming on the workload, with PySpark's own stateful operator: from topics to a Delta table.

`applyInPandasWithState` with one encoded table a session as state: the operator calls Python once a session and batch,
and state goes there and back with the rows. `transformWithStateInPandas` with the same state was no faster: 1.1 times
the CPU time on 400,000 messages without start-up, over two rounds of either, one of which it won. State of one entry a
row is a call to the JVM for each change.

The exchange by session and the sort behind it keep no order among the rows of a session, so the fold sorts by offset.
State is in RocksDB with a changelog; state and offsets are in the checkpoint, and Delta's transaction of a batch names
the batch, so that one that is done again after a failure is not written again.

python -m benchmarks.peers.structured_streaming TASK...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.messages import Change, Snapshot
from benchmarks.peers.table_fold import decode_message, decode_table, encode_table, fold_update, read_snapshot
from benchmarks.systems import Task, parse_task
from lockstep.spark.jars import resolve_jars
from lockstep.spark.java import require_java
from lockstep.spark.session import LOG_SETTINGS, ON_THIS_MACHINE

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

LOCK = Path(__file__).with_name("jars.lock")

_TYPES = {str: "string", int: "bigint", float: "double", bool: "boolean"}
OUTPUT = {field.name: _TYPES[field.type] for field in msgspec.structs.fields(Change)} | {
    "_topic": "string",
    "_partition": "int",
    "_offset": "bigint",
    "_row": "int",
    "_session": "string",
    "_sequence": "bigint",
    "_event_time_us": "bigint",
}
"""What `fold_session` returns; the other columns follow from these."""


def find_jars() -> list[Path]:
    """The jars of Delta and of Spark's source for Kafka, checked.

    Raises:
        EnvironmentProblem: No network, no Java, or a jar with another hash than the lock's.
    """
    require_java()
    return [*resolve_jars("delta"), *resolve_jars("spark-kafka", lock=LOCK)]


def run(task: Task) -> None:
    """Run the query over all messages there are; a micro-batch has the messages of a batch of lockstep."""
    spark = start_session(task.output.absolute())
    rows = fold_records(read_records(spark, task))
    query = (
        rows.writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", str(task.output.absolute() / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(task.output.absolute() / "table"))
    )
    query.awaitTermination()
    spark.stop()


def start_session(folder: Path) -> SparkSession:
    """A session on all cores, with the heap and the collector of the other peers."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning"  # of PySpark's own workers, once for each
    cores = len(os.sched_getaffinity(0))
    properties: dict[str, bool | float | int | str | None] = {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f'-Xms2g -XX:+UseParallelGC "-Dlog4j2.configurationFile={LOG_SETTINGS}"',
        "spark.jars": ",".join(map(str, find_jars())),
        "spark.local.dir": str(folder / "spark"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        **ON_THIS_MACHINE,
    }
    return SparkSession.builder.config(map=properties).getOrCreate()


def read_records(spark: SparkSession, task: Task) -> DataFrame:
    """The records of all matching topics, by key."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", task.bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribePattern", task.topics)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", task.batch_messages)
        .load()
        .selectExpr("CAST(key AS STRING) AS session", "topic", "partition", "offset", "value")
    )


def fold_records(records: DataFrame) -> DataFrame:
    """The output rows of records."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    folded = records.groupBy("session").applyInPandasWithState(
        fold_session,
        outputStructType=", ".join(f"{name} {kind}" for name, kind in OUTPUT.items()),
        stateStructType="encoded binary",
        outputMode="append",
        timeoutConf=GroupStateTimeout.NoTimeout,
    )
    proof = ["_topic AS _topic_id", "_offset AS _emit_offset", "timestamp_micros(_event_time_us) AS _event_time"]
    return folded.selectExpr("*", *proof).drop("_event_time_us")


def fold_session(_key: tuple[str], records: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Fold the records that a micro-batch has of one session."""
    import pandas as pd

    table = decode_table(state.get[0]) if state.exists else {}
    rows: list[tuple[object, ...]] = []
    for offset, topic, partition, value in _in_order(pd.concat(list(records), ignore_index=True)):
        message = decode_message(value)
        if isinstance(message, Snapshot):
            table = read_snapshot(message)
            continue
        for number, row in enumerate(fold_update(table, message)):
            rows.append((*row, topic, partition, offset, number, message.session, message.seq, message.ts))
    state.update((encode_table(table),))
    if rows:
        yield pd.DataFrame(dict(zip(OUTPUT, zip(*rows, strict=True), strict=True)))


def _in_order(records: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    ordered = records.sort_values("offset")
    return zip(*(ordered[name].tolist() for name in ("offset", "topic", "partition", "value")), strict=True)


if __name__ == "__main__":
    # By its name: what is defined in __main__ would be pickled by value, and a codec cannot be.
    from benchmarks.peers import structured_streaming  # noqa: PLW0406

    structured_streaming.run(parse_task())
