"""Checks that a table is whole (I1 to I4, I8, I11) by its log's JSON, plain Parquet and a plain fold, without lockstep.

`assert_whole` holds at any moment, even directly after a kill: the rows of the newest version are the fold of exactly
the ranges that its commits record. Later rows prove the state: each has a sum over all state of its session.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.feed import COLUMNS, Feed, ProducerRecord, folded, snapshot, update
from tests.support.plain_reader import first_difference, heads, named_files, named_ledger_files, read_table, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lockstep.table.layout import StreamFolders

GHOST = "ghost"
"""Prefix of the keys of messages whose session was never opened: each belongs in quarantine."""
GHOST_EVERY = 10
Held = dict[tuple[str, int], list[tuple[str, bytes]]]
"""Key and value of each message, by topic and partition; offsets count from 0."""


@dataclass
class Sent:
    """The messages that the test has sent to Kafka.

    Attributes:
        feed: The producer.
        held: The messages of each partition.
    """

    feed: Feed
    held: Held = field(default_factory=dict)

    def create(self, name: str, partitions: int = 1) -> str:
        """Make a topic and record its partitions."""
        topic = self.feed.create(name, partitions)
        self.held.update({(topic, partition): [] for partition in range(partitions)})
        return topic

    def session(self, topic: str, updates: int, partition: int = 0) -> None:
        """Send a snapshot and updates, with a ghost's message after every few."""
        messages: list[tuple[str, bytes]] = []
        values = [snapshot(1, a=1, b=2), *(update(1 + n, a=n % 97, b=-n % 89) for n in range(1, updates + 1))]
        for at, value in enumerate(values, start=1):
            ghosts = [(f"{GHOST}{partition}", update(1, a=1))] if at % GHOST_EVERY == 0 else []
            messages += [(f"s{partition}", value), *ghosts]
        self._append(topic, messages, partition)

    def more(self, topic: str, updates: int, partition: int = 0) -> None:
        """Send updates that continue the session."""
        first = 1 + sum(not key.startswith(GHOST) for key, _ in self.held[topic, partition])
        values = [update(number, a=1) for number in range(first, first + updates)]
        self._append(topic, [(f"s{partition}", value) for value in values], partition)

    def _append(self, topic: str, messages: Sequence[tuple[str, bytes]], partition: int) -> None:
        self.feed.append(topic, [ProducerRecord(key, value) for key, value in messages], partition)
        self.held[topic, partition] += messages


def assert_all_read(folders: StreamFolders, held: Held, *, compacted: bool = False) -> None:
    """The table is whole to the end of all partitions, and the side tables contain the files named by the commits."""
    assert {key: len(messages) for key, messages in held.items()} == reached(folders, compacted=compacted)
    assert_whole(folders, held, compacted=compacted)
    assert compacted or named_ledger_files(folders.table) == named_files(folders.ledger)
    kept = sorted((row["topic"], row["partition"], row["offset"]) for row in rows_of_files(folders.quarantine))
    assert kept == sorted(
        (topic, partition, offset)
        for (topic, partition), messages in held.items()
        for offset, (key, _) in enumerate(messages)
        if key.startswith(GHOST)
    )


def assert_whole(folders: StreamFolders, held: Held, *, compacted: bool = False) -> None:
    """The rows of the newest version are the fold of the ranges that its commits record; epochs only rise.

    The order of the rows is that of their offsets if files were compacted, else that of the commits.
    """
    stands = reached(folders, compacted=compacted)
    table = read_table(folders.table) if named_files(folders.table) else None
    rows = 0
    for (topic, partition), messages in held.items():
        until = stands.get((topic, partition), 0)
        read = [(at, *message) for at, message in enumerate(messages[:until]) if not message[0].startswith(GHOST)]
        found = [] if table is None else rows_of(_of_partition(table, partition), topic, COLUMNS)
        difference = first_difference(folded(read), sorted(found) if compacted else found)
        assert difference is None, f"{topic}/{partition}: {difference}"
        rows += len(found)
    assert rows == (0 if table is None else table.num_rows)
    epochs = [head.get("epoch", 0) for head in heads(folders.table)]
    assert epochs == sorted(epochs)


def reached(folders: StreamFolders, *, compacted: bool = False) -> dict[tuple[str, int], int]:
    """Return the end of the ranges read of each partition, which must have no gap or overlap.

    The ranges are those of the files named by the commits; after a compaction, those of the ledger in the order of the
    batches.
    """
    ends: dict[tuple[str, int], int] = defaultdict(int)
    names = named_files(folders.ledger) if compacted else named_ledger_files(folders.table)
    rows = [row for name in names for row in _read(folders.ledger / name)]
    for row in sorted(rows, key=lambda row: int(row["batch"])) if compacted else rows:
        key = (row["topic"], row["partition"])
        assert row["start"] == ends[key], f"{key}: read from {row['start']}, stood at {ends[key]}"
        gone = sum(hole["until"] - hole["start"] for hole in row["holes"])
        assert row["messages"] + gone == row["until"] - row["start"], f"{key}: {row}"
        ends[key] = row["until"]
    return dict(ends)


def _of_partition(table: pa.Table, partition: int) -> pa.Table:
    return table.filter([held == partition for held in table["_partition"].to_pylist()])


def rows_of_files(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a side table, by the files of its newest version."""
    return [row for name in named_files(table) for row in _read(table / name)]


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows
