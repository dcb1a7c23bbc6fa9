"""Partitions whose sessions are suspended, and the batches from which on: from the positions and the ledger."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow.compute as pc

from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_positions
from lockstep.table.positions import BEGUN_ELSEWHERE

NAMES = ("topic", "partition", "suspended_from")


class PartitionSuspension(msgspec.Struct, frozen=True, order=True):
    """All sessions of a partition were suspended: a message of an unknown session was lost.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        before: Sessions that started before this offset wait for a snapshot; -1 for those of another partition.
    """

    topic: str
    partition: int
    before: int

    def __str__(self) -> str:
        which = f"started before offset {self.before}"
        if self.before == BEGUN_ELSEWHERE:
            which = "did not start in this partition"
        until = "until their next snapshot (under FIRST_MESSAGE their next message)"
        return f"{self.topic}/{self.partition}: sessions that {which} are suspended {until}"


def list_suspensions(positions: Iterable[LedgerRow]) -> tuple[PartitionSuspension, ...]:
    """The suspensions in force, by topic and partition; sessions that had a snapshot since are not part of them."""
    rows = (row for row in positions if row.suspended_from)
    return tuple(sorted(PartitionSuspension(row.topic, row.partition, row.suspended_from) for row in rows))


def read_first_batches(folders: StreamFolders, head: Head) -> dict[PartitionSuspension, int]:
    """Every suspension of whole partitions with the batch in which it started, from the ledger.

    Raises:
        TableError: A ledger file is missing or damaged.
    """
    from lockstep.table.dataset import open_dataset  # loads pandas, which code locations do without

    rows = [row for row in read_positions(folders, head).values() if row.suspended_from]
    if not rows:  # a suspension stays in the positions: the ledger of all batches need not be read
        return {}
    # The ledger of all batches is read only if a partition is suspended now.
    suspended = open_dataset(folders.ledger).to_table(columns=[*NAMES, "batch"], filter=pc.field("suspended_from") != 0)
    begun = dict[PartitionSuspension, int]()
    for row in suspended.group_by(list(NAMES)).aggregate([("batch", "min")]).to_pylist():
        begun[PartitionSuspension(*(row[name] for name in NAMES))] = int(row["batch_min"])
    newest = {PartitionSuspension(row.topic, row.partition, row.suspended_from): row.batch for row in rows}
    return newest | begun  # the ledger may be behind
