"""Positions of a stream in the form that other readers of Kafka start from."""

from __future__ import annotations

import json

import msgspec

from lockstep.operations.opened import opened
from lockstep.table import ledger
from lockstep.table.layout import StreamFolders


class Position(msgspec.Struct, frozen=True, order=True):
    """Where one partition stands: the next offset to read."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int


class Positions(msgspec.Struct, frozen=True):
    """All positions of a stream after one batch.

    Attributes:
        stream: Name of the stream.
        batch: Number of the last committed batch: the table holds all before these offsets, and nothing after.
        partitions: By topic and number.
    """

    stream: str
    batch: int
    partitions: tuple[Position, ...]


def read_positions(folders: StreamFolders) -> Positions:
    """The committed positions.

    Raises:
        NoTable: The stream has never run.
        TableError: The table is not as its head says.
    """
    head = opened(folders).base().head
    rows = ledger.positions(folders, head).values()
    listed = sorted(Position(row.topic, row.topic_id, row.partition, row.until) for row in rows)
    return Positions(folders.stream, head.batch, tuple(listed))


def spark_offsets(found: Positions) -> str:
    """The option `startingOffsets` of Spark's Kafka source: it goes on where the stream stands."""
    offsets: dict[str, dict[str, int]] = {}
    for item in found.partitions:
        offsets.setdefault(item.topic, {})[str(item.partition)] = item.next_offset
    return json.dumps(offsets, sort_keys=True)
