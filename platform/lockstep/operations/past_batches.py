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
    past = _find_past_head(folders.table, batch, version)
    if past is not None:
        return past
    promotion = _find_promotion(folders, head, batch)
    if promotion is not None:
        problem = f"batches {promotion.first} to {promotion.batch} are one commit, the promotion of {promotion.shadow}"
        step = f"go back to batch {promotion.to_batch}, from which the shadow started, or to batch {promotion.batch}"
        raise NotRewindable(head.stream, batch, problem, next_step=step)
    step = f"lockstep repair {head.stream}; go back to another batch"
    raise NotRewindable(head.stream, batch, "the log no longer has its entry", next_step=step)


def _find_past_head(table: Path, batch: int, version: int | None) -> Head | None:
    """The head of a batch: at the version of its savepoint, else by a search of the log."""
    if version is not None:
        entry = delta_log.read_entry(table, version)
        if entry is not None:
            return entry.head
    return delta_log.find_head_of_batch(table, batch)


def _make_start(head: Head) -> Head:
    """The head before the first batch; without a version below the rewind floor: then columns stay as they are."""
    version = 0
    if head.rewind_floor != START:
        versions = [savepoint.version for savepoint in head.savepoints if savepoint.batch == START]
        version = max(versions, default=NO_VERSION)
    return Head(stream=head.stream, cluster_id=head.cluster_id, table_id=head.table_id, batch_version=version)


def list_files_of(folders: StreamFolders, target: Head) -> dict[Path, int]:
    """The data files right after a batch, with their bytes."""
    version = target.files_version
    if version is None:
        return {}
    return dict(list_named_files(folders.table, version))


def _find_promotion(folders: StreamFolders, head: Head, batch: int) -> Promotion | None:
    """The promotion in whose middle a batch is, also one that was undone; reads the entries of promotions."""
    promotions = [head.promotion]
    kinds = [kind.name for kind in list_commit_kinds() if kind.skips_batches]
    for version in reversed(delta_log.list_versions(folders.table)):
        # By a search of its text: only few entries are decoded.
        if any(delta_log.is_of_kind(folders.table, version, kind) for kind in kinds):
            entry = delta_log.read_entry(folders.table, version)
            if entry is not None and entry.head is not None:
                promotions.append(entry.head.promotion)
    for promotion in promotions:
        if promotion is not None and promotion.first <= batch < promotion.batch:
            return promotion
    return None


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
        others = "".join(f", or savepoint {savepoint.name}" for savepoint in head.savepoints)
        if head.may_start_over:
            others += ", or to 0, which reads everything again"
        step = f"go back to batch {head.rewind_floor}{others}; the setting rewind_hours moves the floor"
        raise NotRewindable(head.stream, batch, problem, next_step=step)


def _explain_no_start(head: Head) -> str:
    if head.erasure is not None:
        return f"batch {head.erasure.batch} erased a session, whose messages would be read again"
    return "its first batch took over state and positions from another table"
