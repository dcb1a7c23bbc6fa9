"""Finds state files that nothing can need any more. By reachability, not by age: an idle partition keeps its state.

Reachable are the sections and chains of every partition ever read, as of its newest batch and of every batch that a
rewind may go back to. The floor of rewinding is raised in the table's head before anything is deleted, so that a
process that dies in between leaves files that the next one deletes, and never a batch without its state.

What is in flight is told by the generation, epoch and batch in a file's name, not by its age: a driver may sleep for
days between its tasks and its commit, and clocks differ. Of a batch that the head allows to be committed yet nothing
is deleted; what a fenced epoch wrote, or another attempt of a committed batch, can go at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lockstep.operations.inspect.state import find_state_version
from lockstep.operations.tables import open_table
from lockstep.state.changelog import SegmentRef, read_header
from lockstep.table import ledger, side_tables
from lockstep.table.commit import raise_rewind_floor
from lockstep.table.delta_log import Head, find_head_of_batch, find_head_since
from lockstep.table.layout import StreamFolders
from lockstep.table.written_by import read_written_by

_ORDER = ["batch", "topic_id", "partition"]


def find_unreachable_state(folders: StreamFolders, head: Head) -> list[Path]:
    """State files that nothing can need any more. Safe beside a writer.

    1. Bring the ledger forward to the head: a batch that it lacks would look as if nobody needed its state.
    2. Collect the files that are reachable from the ledger.
    3. Take the others, but for those of a batch that can be committed after this head: they are in flight.

    Args:
        folders: Where the stream lies.
        head: A head whose rewind floor has been raised, and is committed before anything is deleted.

    Raises:
        TableError: The table or the ledger is not as the head says.
        StateDamaged: A file that is needed is missing or damaged.
    """
    side_tables.catch_up_beside_writer(folders, head)  # 1
    live = find_reachable(folders, head)  # 2
    found = (path for path in sorted(folders.state.glob("*.state")) if path.name not in live)
    return [path for path in found if _is_over(path.name, head, live)]  # 3


def raise_floor(folders: StreamFolders, keep_seconds: float, *, plan_only: bool = False) -> Head:
    """Raise the rewind floor to the oldest batch of the last `keep_seconds`; gives the head after it.

    Args:
        folders: Where the stream lies.
        keep_seconds: How far back a rewind may go.
        plan_only: Commit nothing; the head is as it would be.

    Raises:
        NoTable: The stream has never run.
        TableError: The table is not as its head says.
    """
    output = open_table(folders)
    head = output.base().head
    oldest = find_head_since(folders.table, time.time() - keep_seconds)
    floor = head.batch if oldest is None else max(oldest.batch, min(1, head.batch))
    if floor <= head.rewind_floor:
        return head
    if plan_only:
        return msgspec.structs.replace(head, rewind_floor=floor)
    return output.commit(raise_rewind_floor(head.generation, floor)).head


def find_reachable(folders: StreamFolders, head: Head) -> frozenset[str]:
    """Names of the state files that a rewind to the floor or to any later batch, or the next batch, may read.

    What a batch from the floor on wrote, its own ledger row names. Before that lie only the chains of the sections
    that are in force at the floor.
    """
    since = ledger.read_columns(folders.ledger, [*_ORDER, "state_file"], first_batch=head.rewind_floor)
    named = {name for name in since["state_file"].to_pylist() if name is not None}
    for section in _in_force(folders, head):
        named.add(section.file)
        named.update(ref.file for ref in read_header(folders.state, section).chain)
    return frozenset(named)


def _in_force(folders: StreamFolders, head: Head) -> Iterator[SegmentRef]:
    """The section of every partition ever read, as of the head and as of the floor.

    Where the log does not go back to the floor any more, the ledger is read from its first batch.
    """
    at_floor = find_head_of_batch(folders.table, head.rewind_floor)
    full_batch = at_floor.full_ledger_batch if at_floor is not None else 0
    before = ledger.read_positions_at(folders, head.rewind_floor, full_batch=full_batch)
    for row in (*ledger.read_positions(folders, head).values(), *before.values()):
        if (section := find_state_version(row).section) is not None:
            yield section


def _is_over(name: str, head: Head, live: frozenset[str]) -> bool:
    """Whether no commit after the head can name a file.

    Names of earlier builds do not say who wrote them: those are over once the epoch that holds the table is seen to
    name its files.
    """
    by = read_written_by(name)
    if by is not None:
        return by.is_over(head)
    return any(other is not None and other.epoch == head.epoch for other in map(read_written_by, live))
