"""Streams that are to read archived messages again: the stream of the archive after a rewind, and its shadows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from lockstep.feature import load_parts
from lockstep.model.position import TopicIdPartition
from lockstep.operations.stream_table import try_read_head
from lockstep.table.archive import ArchivedEnd, read_archived_ends, read_blocks
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_positions


class ArchiveReader(msgspec.Struct, frozen=True, kw_only=True):
    """A stream whose position is before the end of the archive. Kafka may still have these messages.

    Attributes:
        stream: Its name.
        first_batch: The first batch of the archive with messages that it has not read.
    """

    stream: str
    first_batch: int


def list_readers(folders: StreamFolders, head: Head) -> tuple[ArchiveReader, ...]:
    """List the streams that have not read all archived messages.

    Args:
        folders: Folders of the stream.
        head: Its head.

    Raises:
        TableError: A ledger file is missing or damaged, or the table of a shadow is.
    """
    archived = read_archived_ends(folders, head)
    own = read_positions(folders, head)
    readers = list[ArchiveReader]()
    for name, positions in ((folders.stream, own), *_read_shadow_positions(folders, head)):
        unread = find_unread(archived, positions)
        blocks = read_blocks(folders, head, unread) if unread else {}
        if blocks:
            first = min(of_key[0].first_batch for of_key in blocks.values())
            readers.append(ArchiveReader(stream=name, first_batch=first))
    return tuple(readers)


def find_unread(
    archived: Mapping[TopicIdPartition, ArchivedEnd], positions: Mapping[TopicIdPartition, LedgerRow]
) -> dict[TopicIdPartition, int]:
    """The positions that are before the end of the archive; 0 for a partition that the reader does not know. Pure.

    Args:
        archived: The end of the archive in each partition.
        positions: The newest rows of the reader, which has none of a partition before it finds the growth of its topic
            or another topic.
    """
    unread = dict[TopicIdPartition, int]()
    for key, end in archived.items():
        own = positions.get(key)
        is_read = not end.is_gone if own is None else not own.retired
        reached = 0 if own is None else own.until
        if is_read and reached < (end.until or 0):
            unread[key] = reached
    return unread


def _read_shadow_positions(
    folders: StreamFolders, head: Head
) -> Iterator[tuple[str, Mapping[TopicIdPartition, LedgerRow]]]:
    for list_tables in load_parts("table_listers"):
        for name in list_tables({folders.stream}, folders.root):
            own = StreamFolders(name, folders.root)
            further = try_read_head(own)
            if further is not None and further.origin is not None and further.origin.table_id == head.table_id:
                yield name, read_positions(own, further)
