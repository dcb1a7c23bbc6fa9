"""One process of the peer in Bytewax: offsets, state and files recovered together, by an epoch every 5 s.

State is the table of a session in memory; those that changed are saved whole at the end of each epoch, in the
recovery store (SQLite). The sink writes one Parquet file an epoch and saves its number: files of an epoch that was
not saved are replaced when the dataflow is resumed, so rows are there once. Each process has a share of the topics
and a recovery store of its own: an exchange between processes would pickle every message.

python -m benchmarks.peers.bytewax_worker SERVERS OUTPUT NUMBER TOPICS
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.connectors.kafka import KafkaSource, KafkaSourceMessage
from bytewax.dataflow import Dataflow
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from benchmarks.messages import Snapshot
from benchmarks.peers.table_fold import (
    CHANGE_COLUMNS,
    ORIGIN_COLUMNS,
    Table,
    decode_message,
    decode_table,
    encode_table,
    fold_update,
    read_snapshot,
)

EPOCH = timedelta(seconds=5)
FETCH_MESSAGES = 1_000

EVENT_TIME = pa.timestamp("us", tz="UTC")

Row = tuple[object, ...]

COLUMNS = (*CHANGE_COLUMNS, *ORIGIN_COLUMNS)


def main() -> None:
    """Run one share of the topics up to their ends."""
    servers, output, number, topics = sys.argv[1:]
    run(servers, Path(output), number, json.loads(topics))


def run(servers: str, output: Path, number: str, topics: list[str]) -> None:
    """Fold some topics to their ends; started again on the same output, it resumes."""
    recovery = output / f"recovery-{number}"
    if not recovery.exists():
        recovery.mkdir(parents=True)
        init_db_dir(recovery, 1)
    client = {"isolation.level": "read_committed", "fetch.wait.max.ms": "10", "log_level": "3"}
    flow = Dataflow(f"peer-{number}")
    source = KafkaSource([servers], topics, tail=False, add_config=client, batch_size=FETCH_MESSAGES)
    records = op.key_on("session", op.input("topics", flow, source), read_session)
    rows = op.stateful_batch("fold", records, Fold)
    op.output("files", rows, ParquetFiles(output / "rows", number))
    cli_main(flow, epoch_interval=EPOCH, recovery_config=RecoveryConfig(recovery))


def read_session(record: KafkaSourceMessage[bytes, bytes]) -> str:
    """The key of a record, by which order is kept."""
    session: str = record.key.decode()
    return session


class Fold(StatefulBatchLogic[KafkaSourceMessage[bytes, bytes], list[Row], bytes]):
    """The table of one session."""

    def __init__(self, saved: bytes | None) -> None:
        self._table: Table = decode_table(saved) if saved else {}

    def on_batch(self, values: list[KafkaSourceMessage[bytes, bytes]]) -> tuple[Iterable[list[Row]], bool]:
        """Fold records in order; all rows as one item, as the cost of the dataflow is one of items."""
        rows: list[Row] = []
        for record in values:
            message = decode_message(record.value)
            if isinstance(message, Snapshot):
                self._table = read_snapshot(message)
                continue
            topic, partition, offset = record.topic, record.partition, record.offset
            for number, row in enumerate(fold_update(self._table, message)):
                place = (topic, topic, partition, offset, offset, number)
                rows.append((*row, *place, message.session, message.seq, message.ts))
        return ([rows] if rows else []), StatefulBatchLogic.RETAIN

    def snapshot(self) -> bytes:
        """The table; bytes, so that nothing changes it until it is saved."""
        return encode_table(self._table)


class ParquetFiles(FixedPartitionedSink[list[Row], int]):
    """Parquet files in a folder, of one process."""

    def __init__(self, folder: Path, process: str) -> None:
        self._folder, self._process = folder, process

    def list_parts(self) -> list[str]:
        """One partition."""
        return [self._process]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> EpochFiles:
        """Resume behind the last saved file."""
        return EpochFiles(self._folder, for_part, resume_state or 0)


class EpochFiles(StatefulSinkPartition[list[Row], int]):
    """One file for each epoch that has rows."""

    def __init__(self, folder: Path, process: str, number: int) -> None:
        self._folder, self._process, self._number = folder, process, number
        self._rows: list[Row] = []
        folder.mkdir(exist_ok=True)
        for file in folder.glob(f"{process}-*.parquet"):  # of an epoch that was not saved
            if int(file.stem.rpartition("-")[2]) >= number:
                file.unlink()

    def write_batch(self, values: list[list[Row]]) -> None:
        """Keep rows until the end of the epoch."""
        for rows in values:
            self._rows += rows

    def snapshot(self) -> int:
        """Write the file of the epoch; returns the number of the next one."""
        if self._rows:
            write_rows(self._rows, self._folder / f"{self._process}-{self._number:06d}.parquet")
            self._number += 1
            self._rows = []
        return self._number


def write_rows(rows: list[Row], path: Path) -> None:
    """One synced Parquet file."""
    table = pa.table(dict(zip(COLUMNS, map(pa.array, zip(*rows, strict=True)), strict=True)))
    times = table["_event_time"].cast(EVENT_TIME)
    table = table.set_column(table.column_names.index("_event_time"), "_event_time", times)
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd", compression_level=1)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
