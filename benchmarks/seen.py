"""Computes when each message became visible, from the observer's records, the table's log and the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.workload import Size
from lockstep.table.commit import CommitKind
from lockstep.table.delta_log import read_entry
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_columns, read_ledger

Times = npt.NDArray[np.int64]
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Commit:
    """A batch that the observer saw.

    Attributes:
        batch: Its number.
        epoch: Epoch of its writer.
        seen_ns: When its version could first be read, in nanoseconds since 1970.
    """

    batch: int
    epoch: int
    seen_ns: int


def commits(table: Path, notes: Path) -> list[Commit]:
    """The batches among the recorded versions, in order."""
    found: list[Commit] = []
    for line in notes.read_text().splitlines() if notes.exists() else []:
        version, seen_ns = map(int, line.split())
        if (batch := _read_batch(table, version)) is not None:
            found.append(Commit(*batch, seen_ns))
    return found


@cache
def _read_batch(table: Path, version: int) -> tuple[int, int] | None:
    """Batch and epoch of a version, read once; None where it is no batch."""
    entry = read_entry(table, version)
    if entry is None or entry.head is None or entry.kind != CommitKind.BATCH.value:
        return None
    return entry.head.batch, entry.head.epoch


def reached(ledger: Path) -> int:
    """Messages read, according to the ledger; 0 without one."""
    if not (ledger / "_delta_log").exists():
        return 0
    columns = read_columns(ledger, ["batch", "topic_id", "partition", "messages"])
    return int(pc.sum(columns["messages"]).as_py() or 0)


class Seen:
    """The observed commits of a run, with its ledger."""

    def __init__(self, folders: StreamFolders, seen: Sequence[Commit]) -> None:
        self.commits = seen
        self._ledger = read_ledger(folders.ledger)

    def delays_seconds(self, created_ms: Mapping[str, Times], since_ns: int, until_ns: int) -> npt.NDArray[np.float64]:
        """Seconds from creation to visibility of each message created in [since, until)."""
        visible = {commit.batch: commit.seen_ns for commit in self.commits}
        parts = [self._delays(row, created_ms[row.topic], visible[row.batch], since_ns, until_ns) for row in self._read]
        return np.concatenate(parts)

    def batch_seconds(self, since_ns: int) -> list[float]:
        """Wall seconds of each batch that was seen since then, from plan to commit."""
        wall = {row.batch: row.batch_seconds for row in self._ledger}
        return [wall[commit.batch] for commit in self.commits if commit.seen_ns >= since_ns]

    @property
    def _read(self) -> list[LedgerRow]:
        return [row for row in self._ledger if row.until > row.start]

    @staticmethod
    def _delays(
        row: LedgerRow, created_ms: Times, seen_ns: int, since_ns: int, until_ns: int
    ) -> npt.NDArray[np.float64]:
        created = created_ms[row.start : row.until]
        chosen = created[(created >= since_ns // 1_000_000) & (created < until_ns // 1_000_000)]
        delays: npt.NDArray[np.float64] = seen_ns / 1e9 - chosen / 1e3
        return delays


def created_ms(bootstrap_servers: str, size: Size) -> dict[str, Times]:
    """Kafka's timestamp of each message, by topic, at the index of its offset.

    Raises:
        KafkaException: The broker did not return all messages.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "created", "auto.offset.reset": "error"})
    try:
        places = [TopicPartition(name, 0, 0) for name in size.topic_names()]
        ends = [consumer.get_watermark_offsets(place, timeout=_TIMEOUT_SECONDS)[1] for place in places]
        found = {place.topic: np.zeros(end, dtype=np.int64) for place, end in zip(places, ends, strict=True)}
        consumer.assign(places)
        left = sum(ends)
        while left:
            records = consumer.consume(min(10_000, left), _TIMEOUT_SECONDS)
            for record in records:
                if (error := record.error()) is not None:
                    raise KafkaException(error)
                found[str(record.topic())][int(record.offset() or 0)] = record.timestamp()[1]
            left -= len(records)
    finally:
        consumer.close()
    return found
