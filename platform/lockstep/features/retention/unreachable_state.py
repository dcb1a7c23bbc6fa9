"""Finds state files that nothing can need any more. By reachability, not by age: an idle partition keeps its state.

Reachable are the segments and chains of every partition ever read, as of its newest batch and of every batch to which
a rewind may go. The rewind floor in the table's head is raised before anything is deleted, so that a process that dies
in between leaves files for the next one to delete, and never a batch without its state.

Files in flight are recognized by the generation, epoch and batch in their names, not by age: a driver may sleep for
days between its tasks and its commit, and clocks differ. No file of a batch that the head still allows to be committed
is deleted; files of a fenced epoch, or of another attempt of a committed batch, can go at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from lockstep.model.position import SegmentRef
from lockstep.operations.inspect.state import find_state_version
from lockstep.operations.stream_table import open_table
from lockstep.state.changelog import read_header
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.commit import raise_rewind_floor
from lockstep.table.delta_log import find_head_of_batch, find_head_since
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.written_by import read_written_by

CLOCK_AHEAD_SECONDS_MAX = 86_400.0
"""The most by which a clock that is ahead, or an idle stream, shortens the time to keep."""
_ORDER = ["batch", "topic_id", "partition"]


def find_unreachable_state(folders: StreamFolders, head: Head) -> list[Path]:
    """State files that nothing can need any more. Safe in parallel with a writer.

    1. Bring the ledger forward to the head: the state of a batch missing in it would seem unreferenced.
    2. Collect the files that are reachable from the ledger.
    3. Take the others, except those of a batch that can be committed after this head: they are in flight.

    Args:
        folders: Folders of the stream.
        head: A head with the raised rewind floor, committed before anything is deleted.

    Raises:
        TableError: Table or ledger does not match the head.
        StateDamaged: A needed file is missing or damaged.
    """
    side_tables.catch_up_alongside_writer(folders, head)  # 1
    live = find_reachable(folders, head)  # 2
    stored = find_storage(folders.state).find_files(folders.state, "*.state")
    unreachable = [path for path in stored if path.name not in live]
    return [path for path in unreachable if _is_over(path.name, head, live)]  # 3


def raise_floor(folders: StreamFolders, keep_seconds: float, *, plan_only: bool = False) -> Head:
    """Raise the rewind floor to the oldest batch of the last `keep_seconds`; returns the head after it.

    They count back from this machine's clock, or from a day after the newest batch if that is earlier: a clock
    that is days ahead would otherwise end every rewind.

    Args:
        folders: Folders of the stream.
        keep_seconds: How far back a rewind may go.
        plan_only: Commit nothing; return the head as it would be.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head.
    """
    output = open_table(folders)
    head = output.base().head
    now = min(time.time(), _newest_batch_at(folders, head) + CLOCK_AHEAD_SECONDS_MAX)
    oldest = find_head_since(folders.table, now - keep_seconds)
    floor = head.batch if oldest is None else oldest.batch
    if floor <= head.rewind_floor:
        return head
    if plan_only:
        return msgspec.structs.replace(head, rewind_floor=floor)
    return output.commit(raise_rewind_floor(head.generation, floor)).head


def _newest_batch_at(folders: StreamFolders, head: Head) -> float:
    """When the newest batch was committed, by the storage's clock; infinity if its entry was cleaned up."""
    entry = delta_log.make_entry_path(folders.table, head.batch_version)
    status = find_storage(entry).get_status(entry)
    return status.modified_at if status is not None else math.inf


def find_reachable(folders: StreamFolders, head: Head) -> frozenset[str]:
    """Names of the state files that the next batch, or a rewind to the floor or to any later batch, may read.

    Files of batches from the floor on are named by their own ledger rows. Before it only the chains of the segments
    in force at the floor count, those to which a rewind since went back, and those of savepoints.
    """
    since = ledger.read_columns(folders.ledger, [*_ORDER, "state_file"], first_batch=head.rewind_floor)
    named = {name for name in since["state_file"].to_pylist() if name is not None}
    in_force = frozenset(_in_force(folders, head))
    named.update(segment.file for segment in in_force)
    # The header of a segment names all files of its chain.
    for header in find_storage(folders.state).map_files(partial(read_header, folders.state), in_force):
        named.update(ref.file for ref in header.chain)
    return frozenset(named)


def _in_force(folders: StreamFolders, head: Head) -> Iterator[SegmentRef]:
    """The segment of every partition ever read, as of the head, the floor, each rewind since and each savepoint.

    As of the first batch of a promotion, too: there a proof starts.

    If the log has no entry of such a batch, the ledger is read from its first batch.
    """
    rows = list(ledger.read_positions(folders, head).values())
    first = 0
    if head.promotion is not None and head.promotion.first > head.rewind_floor:
        first = head.promotion.first
    for batch in {head.rewind_floor, first, *head.kept_versions} - {0}:
        past = find_head_of_batch(folders.table, batch)
        full_batch = 0
        if past is not None:
            full_batch = past.full_ledger_batch
        elif batch == first:
            # The entry is gone, but the first batch of a promotion has a full set of positions.
            full_batch = batch
        rows += ledger.read_positions_at(folders, batch, full_batch=full_batch).values()
    for row in rows:
        if (segment := find_state_version(row).segment) is not None:
            yield segment


def _is_over(name: str, head: Head, live: frozenset[str]) -> bool:
    """Whether no commit after the head can reference a file.

    File names of earlier builds lack the epoch: those are over once the current epoch is seen to
    name its files.
    """
    by = read_written_by(name)
    if by is not None:
        return by.is_over(head)
    return any(other is not None and other.epoch == head.epoch for other in map(read_written_by, live))
