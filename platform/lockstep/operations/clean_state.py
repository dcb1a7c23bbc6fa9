"""Deletes state files that nothing can need any more. By reachability, not by age: an idle partition keeps its state.

Reachable are the sections and chains of every partition ever read, as of its newest batch and of every batch that a
rewind may go back to. The floor of rewinding is raised in the table's head before anything is deleted, so that a
process that dies in between leaves files that the next one deletes, and never a batch without its state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lockstep.engine.committer import FULL_LEDGER_BATCHES
from lockstep.operations.opened import opened
from lockstep.operations.state import address_of
from lockstep.state.address import SectionRef
from lockstep.state.durable import read_header
from lockstep.table import demands, ledger, side
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

KEEP_SECONDS = 3 * 24 * 3600.0
"""A rewind may go back so far: as long as the table keeps removed data files."""
_COLUMNS = ["topic_id", "partition", "batch", "state_file", "state_start", "state_length"]


class CleanedState(msgspec.Struct, frozen=True, kw_only=True):
    """What a clean-up did.

    Attributes:
        rewind_floor: Oldest batch whose state is kept.
        files_kept: State files that stay: reachable, or too young to tell.
        files_deleted: State files deleted.
        bytes_deleted: Their bytes.
    """

    rewind_floor: int
    files_kept: int
    files_deleted: int
    bytes_deleted: int


def clean_state(
    folders: StreamFolders, *, keep_seconds: float = KEEP_SECONDS, batch_seconds_max: float = 0.0
) -> CleanedState:
    """Delete the unreachable state files of a stream. Runs beside a writer, and beside another clean-up.

    1. Raise the rewind floor in the head to the oldest batch of the time that is kept.
    2. Bring the ledger forward to that head: a batch that it lacks would look as if nobody needed its state.
    3. Collect the files that are reachable from the ledger.
    4. Delete the others; but not those so young that a batch under way may be about to name them.

    Args:
        folders: Where the stream lies.
        keep_seconds: How far back in time a rewind may go.
        batch_seconds_max: The longest batch that is allowed.

    Raises:
        NoTable: The stream has never run.
        TableError: The table or the ledger is not as the head says; nothing was deleted.
        StateDamaged: A file that is needed is missing or damaged; nothing was deleted.
    """
    head = raise_floor(folders, keep_seconds)  # 1
    side.SideLogs(folders).forward(head)  # 2
    live = reachable(folders, head)  # 3
    # A writer that was asleep for longer cannot commit: the commit refuses data files as old as these.
    age = max(2 * max(batch_seconds_max, _longest_batch(folders)), OLDEST_FILE_SECONDS)
    kept = files = size = 0
    for path in sorted(folders.state.glob("*.state")):  # 4
        found = _unreachable_bytes(path, live, time.time() - age)
        kept, files, size = kept + (found is None), files + (found is not None), size + (found or 0)
    return CleanedState(rewind_floor=head.rewind_floor, files_kept=kept, files_deleted=files, bytes_deleted=size)


def raise_floor(folders: StreamFolders, keep_seconds: float) -> Head:
    """Raise the rewind floor to the oldest batch of the last `keep_seconds`; gives the head after it."""
    log = opened(folders)
    head = log.base().head
    since = pa.scalar(int((time.time() - keep_seconds) * 1e6), pa.timestamp("us", tz="UTC"))
    committed = _dataset(folders, ["batch", "committed_at"], pc.field("committed_at") >= since)
    floor = min(head.batch, pc.min(committed["batch"]).as_py() or head.batch)
    if floor <= head.rewind_floor:
        return head
    return log.commit(demands.floor(head.generation, floor)).head


def reachable(folders: StreamFolders, head: Head) -> frozenset[str]:
    """Names of the state files that a rewind to the floor or to any later batch, or the next batch, may read.

    What a batch from the floor on wrote, its own ledger row names. Before that lie only the chains of the sections
    that are in force at the floor.
    """
    since = _dataset(folders, ["state_file"], pc.field("batch") >= head.rewind_floor)
    named = {name for name in since["state_file"].to_pylist() if name is not None}
    for section in _in_force(folders, head):
        named.add(section.file)
        named.update(ref.file for ref in read_header(folders.state, section).chain)
    return frozenset(named)


def _in_force(folders: StreamFolders, head: Head) -> Iterator[SectionRef]:
    """The section of every partition ever read, as of the head and as of the floor.

    There the ledger is read as far back as the newest full set lies; where that does not tell of all partitions (one
    has begun after the floor), as far back as it goes.
    """
    known = ledger.positions(folders.ledger, head)
    yield from (section for row in known.values() if (section := address_of(row).section) is not None)
    at_floor = pc.field("batch") <= head.rewind_floor
    recent = pc.field("batch") >= head.rewind_floor - FULL_LEDGER_BATCHES
    before = _dataset(folders, _COLUMNS, at_floor & recent)
    if known.keys() - _partitions(before):
        before = _dataset(folders, _COLUMNS, at_floor)
    newest = {(row["topic_id"], row["partition"]): row for row in before.sort_by("batch").to_pylist()}
    for row in newest.values():
        if row["state_file"] is not None:
            yield SectionRef(row["state_file"], row["state_start"], row["state_length"])


def _partitions(rows: pa.Table) -> set[tuple[str, int]]:
    return {(row["topic_id"], row["partition"]) for row in rows.select(["topic_id", "partition"]).to_pylist()}


def _longest_batch(folders: StreamFolders) -> float:
    return pc.max(_dataset(folders, ["batch_seconds"], None)["batch_seconds"]).as_py() or 0.0


def _dataset(folders: StreamFolders, columns: list[str], wanted: pc.Expression | None) -> pa.Table:
    return DeltaTable(folders.ledger).to_pyarrow_dataset().to_table(columns=columns, filter=wanted)


def _unreachable_bytes(path: Path, live: frozenset[str], before: float) -> int | None:
    """Delete a file that is unreachable and old enough; its size, or None where it stays."""
    if path.name in live:
        return None
    try:
        status = path.stat()
        if status.st_mtime > before:
            return None
        path.unlink()
    except FileNotFoundError:
        return None  # another clean-up was faster
    return status.st_size
