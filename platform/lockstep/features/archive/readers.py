"""Streams that are to read archived messages again: the stream of the archive after a rewind, and its shadows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from lockstep.errors import TableError
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
        first_batch: The first batch of the archive with messages that it has not read; 1 if that is unknown.
        problem: Why its positions cannot be read; empty if they can.
    """

    stream: str
    first_batch: int
    problem: str = ""


def list_readers(folders: StreamFolders, head: Head) -> tuple[ArchiveReader, ...]:
    """List the streams that have not read all archived messages; a damaged shadow counts as one that has read none.

    Args:
        folders: Folders of the stream.
        head: Its head.

    Raises:
        TableError: A ledger file of the stream is missing or damaged.
    """
    archived = read_archived_ends(folders, head)
    own = read_positions(folders, head)
    readers = list[ArchiveReader]()
    read: dict[str, Mapping[TopicIdPartition, LedgerRow]] = {folders.stream: own}
    for name in _list_shadow_names(folders):
        try:
            positions = _read_shadow_positions(StreamFolders(name, folders.root), head)
        except TableError as error:
            readers.append(ArchiveReader(stream=name, first_batch=1, problem=error.problem))
            continue
        if positions is not None:
            read[name] = positions
    for name, known in read.items():
        unread = find_unread(archived, known)
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


def _list_shadow_names(folders: StreamFolders) -> Iterable[str]:
    return chain.from_iterable(
        list_tables({folders.stream}, folders.root) for list_tables in load_parts("table_listers")
    )


def _read_shadow_positions(own: StreamFolders, head: Head) -> Mapping[TopicIdPartition, LedgerRow] | None:
    """The positions of a shadow; None if it is a shadow of an earlier table of the stream."""
    head_of_shadow = try_read_head(own)
    if head_of_shadow is None or head_of_shadow.origin is None or head_of_shadow.origin.table_id != head.table_id:
        return None
    return read_positions(own, head_of_shadow)
