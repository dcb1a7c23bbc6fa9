"""Erased sessions, as the ledger has them: a digest for each partition, and the erased rows of each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import pyarrow.compute as pc

from lockstep.model.position import TopicIdPartition
from lockstep.table import ledger
from lockstep.table.layout import StreamFolders

_COLUMNS = ["batch", "topic", "topic_id", "partition", "erased"]


class ErasedSession(msgspec.Struct, frozen=True):
    """An erased session in one partition.

    Attributes:
        key: The source partition.
        digest: Digest of the session: the first 32 hexadecimal digits of the SHA-256 of the table's id, a line feed and
            the name.
        batch: The batch that is the erasure: rows of earlier batches are erased.
    """

    key: TopicIdPartition
    digest: str
    batch: int


class Erasures(msgspec.Struct, frozen=True):
    """Erasures of a stream.

    Attributes:
        sessions: The erased sessions, by partition.
        rows: Number of erased rows, by the batch that emitted them.
    """

    sessions: tuple[ErasedSession, ...] = ()
    rows: Mapping[int, int] = {}

    def count(self, after: int, until: int) -> int:
        """The number of erased rows of the batches from that after `after` to `until`."""
        return sum(rows for batch, rows in self.rows.items() if after < batch <= until)


def read_erasures(folders: StreamFolders, after: int, until: int) -> Erasures:
    """Read the erasures of some batches. A row group of the ledger is in memory.

    Args:
        folders: Folders of the stream.
        after: Erasures of batches up to this number are left out.
        until: The last batch.

    Raises:
        TableError: A file of the ledger is missing or damaged.
    """
    sessions = set[ErasedSession]()
    counts = Counter[int]()
    for rows in ledger.iterate_columns(folders.ledger, _COLUMNS, first_batch=after + 1, last_batch=until):
        erasing = rows.filter(pc.list_value_length(pc.field("erased")) > 0)
        for row in erasing.to_pylist():
            key = TopicIdPartition(row["topic_id"], row["partition"])
            for each in row["erased"]:
                sessions.add(ErasedSession(key, each["digest"], row["batch"]))
                counts[each["batch"]] += each["rows"]
    ordered = sorted(sessions, key=lambda each: (each.batch, each.key, each.digest))
    return Erasures(tuple(ordered), dict(counts))
