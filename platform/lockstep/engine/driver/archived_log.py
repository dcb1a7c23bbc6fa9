"""The archive as the older part of Kafka's log: what Kafka no longer has, a run reads from there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.protocol import PlannedRange
from lockstep.kafka.admin import ClusterView
from lockstep.model.position import TopicIdPartition
from lockstep.table import delta_log
from lockstep.table.archive import ArchivedBlock, WantedMessages, read_blocks
from lockstep.table.commit import OutputLog
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow

ArchivedBlocks = Mapping[TopicIdPartition, Sequence[ArchivedBlock]]
"""The archived offsets of each partition, without a gap up to the newest."""


class ArchivedLog:
    """The archived offsets of the partitions of a run, as of its start: it reads no later offset again.

    A shadow reads from the archive of its stream.
    """

    def __init__(self, folders: StreamFolders, head: Head, known: Mapping[TopicIdPartition, LedgerRow]) -> None:
        """Reads nothing while Kafka has all offsets from the positions on.

        Args:
            folders: Folders of the stream.
            head: Its head.
            known: Newest ledger row of every partition.
        """
        self._folders = folders
        self._head = head
        self._known = known
        if head.origin is not None:
            self._folders = StreamFolders(head.origin.stream, folders.root)
        self._blocks: ArchivedBlocks | None = None

    def extend(self, view: ClusterView) -> ClusterView:
        """The view with log starts that count the archive, if it has the offsets before Kafka's without a gap.

        Raises:
            TableError: A ledger file is missing or damaged.
        """
        if self._blocks is None:
            ends = view.ends
            if not any(key in ends and row.until < ends[key].start for key, row in self._known.items()):
                return view
            self._blocks = self._read_blocks()
        return expand_view(view, self._blocks)

    def _read_blocks(self) -> ArchivedBlocks:
        head = self._head
        if head.origin is not None:
            if not delta_log.has_log(self._folders.table):
                return {}
            head = OutputLog(self._folders.table).base().head
        return read_blocks(self._folders, head, {key: row.until for key, row in self._known.items()})

    def locate(self, view: ClusterView, plan: BatchPlan) -> BatchPlan:
        """The plan, in which each range that Kafka no longer has names the batches that have archived it."""
        if not self._blocks:
            return plan
        bins = list[tuple[PlannedRange, ...]]()
        for group in plan.bins:
            located = partial(find_archived, self._folders.archive, view, self._blocks)
            bins.append(tuple(map(located, group)))
        return msgspec.structs.replace(plan, bins=tuple(bins))


def find_archived(archive: Path, view: ClusterView, blocks: ArchivedBlocks, item: PlannedRange) -> PlannedRange:
    """A planned range, which is read from the archive if Kafka no longer has its first offset. Pure.

    Args:
        archive: Folder of the archive table.
        view: The view that was extended by the blocks.
        blocks: The archived offsets of each partition.
        item: The range; the archive has all of it, or nothing.
    """
    position = item.position
    if not item.messages or not view.ends[position.key].is_archived(position.next_offset):
        return item
    holding = find_blocks(blocks[position.key], position.next_offset, item.until)
    wanted = WantedMessages(
        archive=archive,
        topic_id=position.topic_id,
        partition=position.partition,
        start=position.next_offset,
        until=item.until,
        first_batch=holding[0].first_batch,
        last_batch=holding[-1].last_batch,
    )
    return msgspec.structs.replace(item, archived=wanted)


def expand_view(view: ClusterView, blocks: ArchivedBlocks) -> ClusterView:
    """A view in which logs start where their archived blocks do, if nothing is missing in between. Pure."""
    earlier = {
        key: msgspec.structs.replace(view.ends[key], start=of_key[0].start, log_start=view.ends[key].start)
        for key, of_key in blocks.items()
        if key in view.ends and of_key[0].start < view.ends[key].start <= of_key[-1].until
    }
    return msgspec.structs.replace(view, ends={**view.ends, **earlier}) if earlier else view


def find_blocks(blocks: Sequence[ArchivedBlock], start: int, until: int) -> Sequence[ArchivedBlock]:
    """The blocks that have offsets [start, until), which all of them together have. Pure."""
    first = bisect_right(blocks, start, key=lambda block: block.start) - 1
    last = bisect_right(blocks, until - 1, key=lambda block: block.start)
    return blocks[max(0, first) : last]
