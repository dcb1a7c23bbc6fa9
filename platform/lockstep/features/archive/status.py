"""The extent and the size of an archive, from its log and the ledger; opens no file of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
import pyarrow as pa

from lockstep.declare.stream import AnyStream
from lockstep.features.archive.readers import ArchiveReader, list_readers
from lockstep.model.position import TopicIdPartition
from lockstep.operations.plan_frame import Description, Labelled, Records, Unit
from lockstep.operations.stream_table import open_table
from lockstep.table import delta_log, transactions
from lockstep.table.archive import ArchivedBlock, read_blocks
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_positions


class ArchivedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition in the archive.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        archived_from: First offset from which on nothing is missing; None if nothing is archived.
        archived_until: Offset after the last archived one.
        position: Position of the stream.
    """

    topic: str
    partition: int
    archived_from: int | None
    archived_until: int | None
    position: int


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The archive of a stream.

    Attributes:
        stream: Name of the stream.
        is_declared: The stream archives its messages.
        keep_hours: Hours for which messages stay; None without a limit.
        rows: Messages, and runs of offsets without one.
        files: Files.
        bytes: Their bytes.
        dropped_up_to: Last batch whose messages retention has dropped; 0 for none.
        readers: Streams that have not read all messages, with their first unread batch: retention waits for them.
        partitions: The partitions of the stream.
    """

    stream: str
    is_declared: bool
    keep_hours: float | None
    rows: int
    files: int
    bytes: int
    dropped_up_to: int
    readers: tuple[ArchiveReader, ...]
    partitions: tuple[ArchivedPartition, ...]

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("declared", "yes" if self.is_declared else "no"),
            Labelled("hours kept", self.keep_hours, note="" if self.keep_hours else "all"),
            Labelled("rows", self.rows),
            Labelled("files", self.files),
            Labelled("bytes", self.bytes, Unit.BYTES),
            Labelled("dropped up to batch", self.dropped_up_to),
        )
        names = "topic partition archived_from archived_until position"
        records = (
            Records.of("partitions", self.partitions, names),
            Records.of("readers", self.readers, "stream first_batch problem"),
        )
        return Description(title=f"{self.stream}: archive", facts=facts, records=records)


def read_archive_status(stream: AnyStream, folders: StreamFolders) -> ArchiveStatus:
    """Read the extent and the size of the archive of a stream.

    Raises:
        NoTable: The stream has never run.
        TableError: A table does not match its head, or a ledger file is damaged.
    """
    head = open_table(folders).base().head
    positions = read_positions(folders, head)
    blocks = read_blocks(folders, head, dict.fromkeys(positions, 0))
    rows = list[int]()
    sizes = list[int]()
    dropped = 0
    if delta_log.has_log(folders.archive):
        table = delta_log.open_delta_table(folders.archive)
        actions = pa.table(table.get_add_actions(flatten=True))
        rows += cast("list[int]", actions["num_records"].to_pylist())
        sizes += cast("list[int]", actions["size_bytes"].to_pylist())
        dropped = table.transaction_version(transactions.DROPPED) or 0
    keep_hours = None
    if stream.archive is not None and stream.archive.keep is not None:
        keep_hours = stream.archive.keep.total_seconds() / 3600
    return ArchiveStatus(
        stream=folders.stream,
        is_declared=stream.archive is not None,
        keep_hours=keep_hours,
        rows=sum(rows),
        files=len(sizes),
        bytes=sum(sizes),
        dropped_up_to=dropped,
        readers=list_readers(folders, head),
        partitions=tuple(_list_partitions(positions, blocks)),
    )


def _list_partitions(
    positions: Mapping[TopicIdPartition, LedgerRow], blocks: Mapping[TopicIdPartition, Sequence[ArchivedBlock]]
) -> Iterator[ArchivedPartition]:
    for key, row in sorted(positions.items(), key=lambda item: (item[1].topic, item[1].partition)):
        yield ArchivedPartition(
            topic=row.topic,
            partition=row.partition,
            archived_from=blocks[key][0].start if key in blocks else None,
            archived_until=row.archived_until,
            position=row.until,
        )
