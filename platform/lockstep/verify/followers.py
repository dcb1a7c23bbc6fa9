"""The claims of followers, such as derived tables: each compared with the log and the lineage of the table.

The rows of a follower are not read. Being behind is not a violation; a claim that the table contradicts is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.table import delta_log
from lockstep.table.follower_positions import FollowerPosition, FollowerPositions, SourceHistory
from lockstep.table.head import Head
from lockstep.verify.report import FollowerProof, InvariantStatus

Verdict = tuple[InvariantStatus, str]


def check_followers(positions: FollowerPositions, table: Path, head: Head, version: int) -> Iterator[FollowerProof]:
    """Compare the position of each follower of a stream with its table.

    Args:
        positions: The positions, read before the head: a follower may read on during the proof.
        table: Folder of the table.
        head: Its head.
        version: Its version.
    """
    for position in positions.read:
        for read in position.sources:
            if read.stream == head.stream:
                entry = None
                if read.version >= 0:
                    entry = delta_log.read_entry(table, read.version)
                yield _make_proof(position, read, *judge_claim(read, head, version, entry))
    for name in positions.damaged:
        yield FollowerProof(
            kind=name.kind,
            name=name.name,
            status=InvariantStatus.NOT_PROVEN,
            claim="unknown",
            reason="its position cannot be read, so it may follow this stream",
            next_step=f"run it, which writes the position; if its declaration was removed: lockstep forget {name}",
        )


def judge_claim(read: SourceHistory, head: Head, version: int, entry: delta_log.LogEntry | None) -> Verdict:
    """Judge the history that a follower claims to have read. Pure.

    Args:
        read: The claim.
        head: The head of the table.
        version: Its version.
        entry: The log entry of the claimed version; None if it is not in the log.
    """
    if read.version < 0:
        return InvariantStatus.NOT_CLAIMED, "it has read nothing yet"
    if read.table_id != head.table_id:
        return InvariantStatus.NOT_PROVEN, f"it has read the table with id {read.table_id}, not this one"
    false = _find_false_claim(read, head, version, entry)
    if false:
        return InvariantStatus.VIOLATED, false
    if read.batch and read.batch not in list_batches(head, read.batch_generation):
        undone = f"batch {read.batch} of generation {read.batch_generation} was undone: it may hold rows that are gone"
        return InvariantStatus.NOT_PROVEN, undone
    if head.erasure is not None and read.erasure < head.erasure.batch:
        return InvariantStatus.NOT_PROVEN, f"it may hold rows of the session that batch {head.erasure.batch} erased"
    return InvariantStatus.PROVEN, ""


def _find_false_claim(read: SourceHistory, head: Head, version: int, entry: delta_log.LogEntry | None) -> str:
    """Find a contradiction between a claim and the table; empty if there is none."""
    if read.version > version:
        return f"it claims version {read.version}, and the table has {version}"
    # The version may have been written again: after a torn entry or a restore from a copy.
    if entry is not None and (entry.token or "") != read.token:
        return f"version {read.version} of the table is not the version that it has read"
    newest = max(read.generation, read.batch_generation)
    if newest > head.generation:
        return f"it claims generation {newest}, and the table has {head.generation}"
    if read.batch_generation == head.generation and read.batch > head.batch:
        return f"it claims batch {read.batch}, and the table ends with batch {head.batch}"
    if entry is not None and entry.head is not None and read.batch > entry.head.batch:
        return f"it claims batch {read.batch} at version {read.version}, which has {entry.head.batch}"
    return _find_false_erasure(read, head)


def _find_false_erasure(read: SourceHistory, head: Head) -> str:
    newest = 0 if head.erasure is None else head.erasure.batch
    if read.erasure > newest:
        return f"it claims an erasure by batch {read.erasure}, and the newest is {newest}"
    return ""


def list_batches(head: Head, generation: int) -> range:
    """The batches that count of a generation, by the lineage: it continues the generation before it."""
    first = 1
    for ended in sorted(head.lineage, key=lambda ended: ended.generation):
        if ended.generation == generation:
            return range(first, ended.last_batch + 1)
        first = ended.last_batch + 1
    if generation == head.generation:
        return range(first, head.batch + 1)
    return range(0)


def _make_proof(position: FollowerPosition, read: SourceHistory, status: InvariantStatus, reason: str) -> FollowerProof:
    holds = status in {InvariantStatus.PROVEN, InvariantStatus.NOT_CLAIMED}
    return FollowerProof(
        kind=position.kind,
        name=position.name,
        status=status,
        claim=f"read up to batch {read.batch}, version {read.version}",
        reason=reason,
        next_step="" if holds else position.command,
    )
