"""Finds state files that nothing can need any more. By reachability, not by age: an idle partition keeps its state.

Reachable are the sections and chains of every partition ever read, as of its newest batch and of every batch that a
rewind may go back to. The floor of rewinding is raised in the table's head before anything is deleted, so that a
process that dies in between leaves files that the next one deletes, and never a batch without its state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from lockstep.operations.opened import opened
from lockstep.operations.state import address_of
from lockstep.state.address import SectionRef
from lockstep.state.durable import read_header
from lockstep.table import demands, ledger, side
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.head import Head
from lockstep.table.history import head_of_batch, head_since
from lockstep.table.layout import StreamFolders

_ORDER = ["batch", "topic_id", "partition"]


def unreachable_state(folders: StreamFolders, head: Head, *, batch_seconds_max: float = 0.0) -> list[Path]:
    """State files that nothing can need any more. Safe beside a writer.

    1. Bring the ledger forward to the head: a batch that it lacks would look as if nobody needed its state.
    2. Collect the files that are reachable from the ledger.
    3. Take the others; but not those so young that a batch under way may be about to name them. A commit names no
       state file that is gone, so a writer that slept for longer starts again from its last commit.

    Args:
        folders: Where the stream lies.
        head: A head whose rewind floor has been raised, and is committed before anything is deleted.
        batch_seconds_max: The longest batch that is allowed.

    Raises:
        TableError: The table or the ledger is not as the head says.
        StateDamaged: A file that is needed is missing or damaged.
    """
    side.SideLogs(folders).forward(head)  # 1
    live = reachable(folders, head)  # 2
    age = max(2 * max(batch_seconds_max, _longest_batch(folders, head)), OLDEST_FILE_SECONDS)
    return [path for path in sorted(folders.state.glob("*.state")) if path.name not in live and _is_older(path, age)]


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
    output = opened(folders)
    head = output.base().head
    oldest = head_since(folders.table, time.time() - keep_seconds)
    floor = head.batch if oldest is None else max(oldest.batch, min(1, head.batch))
    if floor <= head.rewind_floor:
        return head
    if plan_only:
        return msgspec.structs.replace(head, rewind_floor=floor)
    return output.commit(demands.floor(head.generation, floor)).head


def reachable(folders: StreamFolders, head: Head) -> frozenset[str]:
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


def _in_force(folders: StreamFolders, head: Head) -> Iterator[SectionRef]:
    """The section of every partition ever read, as of the head and as of the floor.

    Where the log does not go back to the floor any more, the ledger is read from its first batch.
    """
    at_floor = head_of_batch(folders.table, head.rewind_floor)
    full_batch = at_floor.full_ledger_batch if at_floor is not None else 0
    before = ledger.positions_at(folders, head.rewind_floor, full_batch=full_batch)
    for row in (*ledger.positions(folders, head).values(), *before.values()):
        if (section := address_of(row).section) is not None:
            yield section


def _longest_batch(folders: StreamFolders, head: Head) -> float:
    since = ledger.read_columns(folders.ledger, [*_ORDER, "batch_seconds"], first_batch=head.rewind_floor)
    return pc.max(since["batch_seconds"]).as_py() or 0.0


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return path.stat().st_mtime <= time.time() - seconds
    except FileNotFoundError:
        return False  # another clean-up was faster
