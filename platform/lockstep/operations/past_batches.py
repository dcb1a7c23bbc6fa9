"""Reads the head right after an earlier batch, and its files."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import TableError
from lockstep.table import delta_log
from lockstep.table.commit_kinds import list_commit_kinds
from lockstep.table.head import NO_VERSION, Head, Promotion
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import list_named_files

START = 0
"""The batch before the first: it has no rows, no state and no positions."""


def read_head_of_batch(folders: StreamFolders, head: Head, batch: int) -> Head:
    """The head right after a batch to which a rewind may go back. Raises NotRewindable for any other."""
    check_rewindable(head, batch)
    if batch == START:
        return _make_start(head)
    version = next((each.version for each in head.savepoints if each.batch == batch), None)
    entry = None if version is None else delta_log.read_entry(folders.table, version)
    found = entry.head if entry is not None else delta_log.find_head_of_batch(folders.table, batch)
    promotion = _find_promotion(folders, head, batch) if found is None else None
    if promotion is not None:
        problem = f"batches {promotion.first} to {promotion.batch} are one commit, the promotion of {promotion.shadow}"
        step = f"go back to batch {promotion.to_batch}, from which the shadow started, or to batch {promotion.batch}"
        raise NotRewindable(head.stream, batch, problem, next_step=step)
    if found is None:
        step = f"lockstep repair {head.stream}; go back to another batch"
        raise NotRewindable(head.stream, batch, "the log no longer has its entry", next_step=step)
    return found


def _make_start(head: Head) -> Head:
    """The head before the first batch; without a version below the rewind floor: then columns stay as they are."""
    kept = [each.version for each in head.savepoints if each.batch == START]
    version = 0 if head.rewind_floor == START else max(kept, default=NO_VERSION)
    return Head(stream=head.stream, cluster_id=head.cluster_id, table_id=head.table_id, batch_version=version)


def list_files_of(folders: StreamFolders, target: Head) -> dict[Path, int]:
    """The data files right after a batch, with their bytes."""
    version = target.files_version
    if version is None:
        return {}
    return dict(list_named_files(folders.table, version))


def _find_promotion(folders: StreamFolders, head: Head, batch: int) -> Promotion | None:
    """The promotion in whose middle a batch is, also one that was undone; reads the entries of promotions."""
    known = [head.promotion]
    kinds = [kind.name for kind in list_commit_kinds() if kind.skips_batches]
    for version in reversed(delta_log.list_versions(folders.table)):
        if any(delta_log.is_of_kind(folders.table, version, kind) for kind in kinds):
            entry = delta_log.read_entry(folders.table, version)
            known.append(None if entry is None or entry.head is None else entry.head.promotion)
    return next((each for each in known if each is not None and each.first <= batch < each.batch), None)


class NotRewindable(TableError):
    """A batch to which a rewind cannot go back, or not any more.

    Attributes:
        stream: Name of the stream.
        batch: The batch.
    """

    def __init__(self, stream: str, batch: int, problem: str, *, next_step: str) -> None:
        super().__init__(f"stream {stream} cannot be rewound to batch {batch}: {problem}", next_step=next_step)
        self.stream = stream
        self.batch = batch


def check_rewindable(head: Head, batch: int) -> None:
    """Refuse a batch of which files may be deleted, or that does not exist. The start of a stream needs no files.

    Raises:
        NotRewindable: Names the oldest batch and the savepoints.
    """
    if batch > head.batch:
        step = f"lockstep history {head.stream} lists the batches"
        raise NotRewindable(head.stream, batch, f"the last batch is {head.batch}", next_step=step)
    if not (head.may_rewind_to(batch) or (batch == START and head.may_start_over)):
        problem = f"the rewind floor is batch {head.rewind_floor}: files of earlier batches may be deleted"
        if batch == START:
            problem = _explain_no_start(head)
        named = "".join(f", or savepoint {each.name}" for each in head.savepoints)
        named += ", or to 0, which reads everything again" if head.may_start_over else ""
        step = f"go back to batch {head.rewind_floor}{named}; the setting rewind_hours moves the floor"
        raise NotRewindable(head.stream, batch, problem, next_step=step)


def _explain_no_start(head: Head) -> str:
    if head.erasure is not None:
        return f"batch {head.erasure.batch} erased a session, whose messages would be read again"
    return "its first batch took over state and positions from another table"
