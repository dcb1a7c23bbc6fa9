"""The reference of live latency: a loop written by hand, with one Parquet file and one Delta commit every so often.

It folds messages as they come (`benchmarks.bare`), and writes at fixed times, until SIGTERM. It promises nothing: no
state is saved, nothing is synced, no gap is detected, nothing is recovered.
"""

from __future__ import annotations

import gc
import re
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import Message as Record
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from benchmarks.bare import CHUNK_MESSAGES, CONSUMER, SCHEMA, State, assign_all, fold, make_record_batch, write
from benchmarks.live_side import LiveTask, parse_live_task

TABLE, _MESSAGES = "bare-table", "messages"


def count_reached(output: Path) -> int:
    """Messages that the loop has read up to its newest commit; 0 without one."""
    if not DeltaTable.is_deltatable(str(output / TABLE)):
        return 0
    return DeltaTable(output / TABLE).transaction_version(_MESSAGES) or 0


def run(task: LiveTask, done: threading.Event) -> None:
    """Run the loop until it is done."""
    consumer = Consumer({**CONSUMER, "bootstrap.servers": task.bootstrap_servers})
    assign_all(consumer, re.compile(task.topics))
    table = DeltaTable.create(task.output / TABLE, SCHEMA)
    state: State = {}
    gc.disable()
    messages, due = 0, time.monotonic()
    while not done.is_set():
        due = max(time.monotonic(), due + task.trigger_seconds)
        rows, found = _fold_until(due, consumer, state)
        messages += found
        if found:
            _commit(table, rows, messages)
    consumer.close()


def _fold_until(due: float, consumer: Consumer, state: State) -> tuple[list[pa.RecordBatch], int]:
    """Fold what comes until a time; returns the rows and the number of messages."""
    batches: list[pa.RecordBatch] = []
    messages = 0
    while (left := due - time.monotonic()) > 0:
        records: list[Record] = consumer.consume(CHUNK_MESSAGES, left)
        for error in filter(None, map(Record.error, records)):
            raise KafkaException(error)
        messages += len(records)
        if rows := fold(records, state):
            batches.append(make_record_batch(rows))
    return batches, messages


def _commit(table: DeltaTable, batches: list[pa.RecordBatch], messages: int) -> None:
    """One file and one entry, which says how many messages were read."""
    adds: list[AddAction | RemoveAction] = []
    if batches:
        path = Path(table.table_uri.removeprefix("file://")) / f"{messages:012d}.parquet"
        write(batches, path)
        adds.append(
            AddAction(path.name, path.stat().st_size, {}, int(time.time() * 1000), data_change=True, stats="{}")
        )
    table.create_write_transaction(
        adds,
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(_MESSAGES, messages)]),
    )
    table.update_incremental()


def main() -> None:
    """Run the loop of the command line."""
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    run(parse_live_task(), done)


if __name__ == "__main__":
    main()
