"""Computes when each message became visible, from the observer's records and the rows of the table's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.workload import Size
from lockstep.table import commit_kinds
from lockstep.table.delta_log import read_entry
from lockstep.table.ledger import read_columns, read_ledger

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
    for version, seen_ns in read_notes(notes):
        if (batch := _read_batch(table, version)) is not None:
            found.append(Commit(*batch, seen_ns))
    return found


def read_notes(notes: Path) -> list[tuple[int, int]]:
    """The observer's records: each version, and when it was seen."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(int(version), int(seen_ns)) for version, seen_ns in map(str.split, lines)]


@cache
def _read_batch(table: Path, version: int) -> tuple[int, int] | None:
    """Batch and epoch of a version, read once; None where it is no batch."""
    entry = read_entry(table, version)
    if entry is None or entry.head is None or entry.kind != commit_kinds.BATCH.name:
        return None
    return entry.head.batch, entry.head.epoch


def reached(ledger: Path) -> int:
    """Messages read, according to the ledger; 0 without one."""
    if not (ledger / "_delta_log").exists():
        return 0
    columns = read_columns(ledger, ["batch", "topic_id", "partition", "messages"])
    return int(pc.sum(columns["messages"]).as_py() or 0)


@dataclass(frozen=True)
class Delays:
    """When each row's message was created, and when the row could first be read.

    Attributes:
        created_ms: Kafka's timestamp of each message.
        seen_ns: When the version with its row was seen, in nanoseconds since 1970.
    """

    created_ms: Times
    seen_ns: Times

    def between(self, since_ns: int, until_ns: int) -> npt.NDArray[np.float64]:
        """Seconds from creation to visibility of each message created in [since, until)."""
        chosen = (self.created_ms >= since_ns // 1_000_000) & (self.created_ms < until_ns // 1_000_000)
        delays: npt.NDArray[np.float64] = self.seen_ns[chosen] / 1e9 - self.created_ms[chosen] / 1e3
        return delays


def read_delays(table: Path, notes: Path, created_ms: Mapping[str, Times]) -> Delays:
    """The delays of all rows in the recorded versions: the files that each added are read, whoever wrote them."""
    parts = [(created_ms[topic][offsets], seen_ns) for topic, offsets, seen_ns in _rows_seen(table, notes)]
    return Delays(
        np.concatenate([created for created, _ in parts]),
        np.concatenate([np.full(len(created), seen_ns, dtype=np.int64) for created, seen_ns in parts]),
    )


def _rows_seen(table: Path, notes: Path) -> Iterator[tuple[str, Times, int]]:
    """Topic, offsets and time of the rows that appeared together."""
    for version, seen_ns in read_notes(notes):
        for path in _added_files(table, version):
            rows = pq.ParquetFile(table / path).read(columns=["_topic", "_offset"])
            topics = rows["_topic"].to_numpy(zero_copy_only=False)
            offsets = rows["_offset"].to_numpy()
            for topic in np.unique(topics):
                yield str(topic), offsets[topics == topic], seen_ns


def _added_files(table: Path, version: int) -> list[str]:
    """Paths of the data files that a version added."""
    entry = table / "_delta_log" / f"{version:020d}.json"
    adds = [action["add"] for action in map(msgspec.json.decode, entry.read_bytes().splitlines()) if "add" in action]
    return [unquote(add["path"]) for add in adds if add["dataChange"]]


def read_batch_seconds(ledger: Path, seen: Sequence[Commit], since_ns: int) -> list[float]:
    """Wall seconds of each batch that was seen since then, from plan to commit."""
    wall = {row.batch: row.batch_seconds for row in read_ledger(ledger)}
    return [wall[commit.batch] for commit in seen if commit.seen_ns >= since_ns]


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
