"""The archive as the older part of Kafka's log: what Kafka no longer has, a run reads from there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.protocol import PlannedRange
from lockstep.kafka.admin import ClusterView, PartitionOffsets
from lockstep.model.position import TopicIdPartition
from lockstep.table import delta_log
from lockstep.table.archive import ArchivedBlock, ArchivedEnd, WantedMessages, read_archived_ends, read_blocks
from lockstep.table.commit import OutputLog
from lockstep.table.head import FIRST_GENERATION, Head
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
        self._reached = {key: row.until for key, row in known.items()}
        if head.origin is not None:
            self._folders = StreamFolders(head.origin.stream, folders.root)
        self._ends: Mapping[TopicIdPartition, ArchivedEnd] | None = None
        self._asked = frozenset[TopicIdPartition]()
        self._blocks: ArchivedBlocks = {}

    def extend(self, view: ClusterView) -> ClusterView:
        """The view with log starts that count the archive, if it has the offsets before Kafka's without a gap.

        A partition without a row is read from its first archived offset: it was added to its topic, or its topic was
        found, after the batch of a rewind, or after the start of a shadow.

        Raises:
            TableError: A ledger file is missing or damaged.
        """
        reached = self._reached
        cut = [key for key, ends in view.ends.items() if ends.start > reached.get(key, 0) and key not in self._asked]
        if cut:
            self._ask(cut, view)
        if not self._blocks:
            return view
        return expand_view(view, self._blocks)

    def _ask(self, cut: Collection[TopicIdPartition], view: ClusterView) -> None:
        """Read the archived offsets of all partitions of a view, unless the archive has none of the cut partitions."""
        wanted = dict.fromkeys(view.ends, 0) | self._reached
        self._asked |= wanted.keys()
        head = self._read_head()
        if head is None:
            return
        has_row = not self._reached.keys().isdisjoint(cut)
        if has_row or not self._read_ends().keys().isdisjoint(cut):
            self._blocks = read_blocks(self._folders, head, wanted)

    def _read_ends(self) -> Mapping[TopicIdPartition, ArchivedEnd]:
        """The end of the archive in each partition; read once."""
        if self._ends is None:
            ends: Mapping[TopicIdPartition, ArchivedEnd] = {}
            head = self._read_head()
            if head is not None:
                ends = read_archived_ends(self._folders, head)
            self._ends = ends
        return self._ends

    def _read_head(self) -> Head | None:
        """The head of the stream of the archive; None without a table."""
        if self._head.origin is None:
            return self._head
        if not delta_log.has_log(self._folders.table):
            return None
        return OutputLog(self._folders.table).base().head

    def locate(self, view: ClusterView, plan: BatchPlan) -> BatchPlan:
        """The plan, in which each range that Kafka no longer has names the batches that have archived it.

        A range of a partition without a row before the run starts with the end of the archive, if it has one: nothing
        is archived twice.

        Raises:
            TableError: A ledger file is missing or damaged.
        """
        if plan.batch.archives and self._head.generation > FIRST_GENERATION:
            plan = with_ranges(plan, self._with_archived_end)
        if not self._blocks:
            return plan
        return with_ranges(plan, partial(find_archived, self._folders.archive, view, self._blocks))

    def _with_archived_end(self, item: PlannedRange) -> PlannedRange:
        position = item.position
        if position.archived_until is not None:
            return item
        end = self._read_ends().get(position.key)
        if end is None:
            return item
        return msgspec.structs.replace(item, position=msgspec.structs.replace(position, archived_until=end.until))


def with_ranges(plan: BatchPlan, replace: Callable[[PlannedRange], PlannedRange]) -> BatchPlan:
    """The plan with other ranges. Pure."""
    return msgspec.structs.replace(plan, bins=tuple(tuple(map(replace, group)) for group in plan.bins))


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
    extended = dict[TopicIdPartition, PartitionOffsets]()
    for key, of_key in blocks.items():
        offsets = view.ends.get(key)
        if offsets is not None and of_key[0].start < offsets.start <= of_key[-1].until:
            extended[key] = msgspec.structs.replace(offsets, start=of_key[0].start, log_start=offsets.start)
    if not extended:
        return view
    return msgspec.structs.replace(view, ends={**view.ends, **extended})


def find_blocks(blocks: Sequence[ArchivedBlock], start: int, until: int) -> Sequence[ArchivedBlock]:
    """The blocks that have offsets [start, until), which all of them together have. Pure."""
    first = bisect_right(blocks, start, key=lambda block: block.start) - 1
    last = bisect_right(blocks, until - 1, key=lambda block: block.start)
    return blocks[max(0, first) : last]
