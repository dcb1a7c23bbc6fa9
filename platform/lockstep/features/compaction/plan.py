"""Plans which files to merge. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import groupby
from operator import attrgetter
from pathlib import PurePosixPath

import msgspec

from lockstep.table.head import Head
from lockstep.table.live_files import COMPACTED_PREFIX, TARGET_BYTES, LiveFile, is_closed

LARGE_RATIO = 0.5
"""A file of this share of the target is not rewritten: that could at best halve the number of files."""
OPEN_PREFIX = "minor"
"""Prefix of the output of a minor compaction of the open hour. It is rewritten once more when the hour is closed,
unless it is large by then."""
OPEN_FILES_MAX = 720
"""Small files of the open hour from which on they are compacted: as many as a trigger of 5 s leaves in an hour. With
fewer, a start and a commit, which list them, gain less than a second rewrite of the rows costs."""

CPU_SECONDS_A_FILE = 0.6e-3
CPU_SECONDS_A_ROW = 0.35e-6
CPU_SECONDS_A_BYTE = 14e-9
"""Expected cost of rewriting, proofs included. Measured, in CPU s: 2.7 for 2,000 files with 6.0 million rows of 10
bytes (expected 4.2), 3.4 for 2,000 with 2.0 million of 66 bytes (3.7), 3.8 for 720 with 5.4 million of 11 bytes, mostly
text (3.2)."""


class Bin(msgspec.Struct, frozen=True):
    """Files of one hour that become one file, by one task and one commit.

    Attributes:
        commit_hour: The hour.
        files: The files.
        is_minor: The hour is open: the new file will be rewritten once more.
    """

    commit_hour: str
    files: tuple[LiveFile, ...]
    is_minor: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)


class LeftReason(Enum):
    """Why a file is not compacted."""

    OPEN = "the hour is open, and has few small files"
    COMPACTED = "compacted before"
    LARGE = "large enough"
    ALONE = "no other small file in its part of the hour"


class LeftFiles(msgspec.Struct, frozen=True):
    """The files that a compaction leaves as they are for one reason.

    Attributes:
        reason: Why.
        hours: Number of hours with such files.
        files: Their number.
        bytes: Their bytes.
        oldest_hour: The oldest of the hours, "YYYY-MM-DDTHH" UTC.
        newest_hour: The newest.
    """

    reason: LeftReason
    hours: int
    files: int
    bytes: int
    oldest_hour: str
    newest_hour: str


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a compaction of the output table, its gain and its cost.

    Attributes:
        bins: The rewrites, one commit each: the open hour, then closed hours, oldest first.
        files_before: Files of the bins: the debt.
        files_after: Files that would replace them.
        bytes: Bytes to read; at most as many are written.
        rows: Rows to rewrite.
        cpu_seconds: Expected CPU time, proofs included.
        left: The files that it would leave, by reason.
    """

    bins: tuple[Bin, ...]
    files_before: int
    files_after: int
    bytes: int
    rows: int
    cpu_seconds: float
    left: tuple[LeftFiles, ...]


def plan_table(
    files: Iterable[LiveFile],
    head: Head,
    *,
    target_bytes: int = TARGET_BYTES,
    open_files_max: int = OPEN_FILES_MAX,
) -> CompactionPlan:
    """The plan of one compaction: the bins, and a reason for each file that is in none. Pure."""
    listed = tuple(files)
    bins = (
        *plan_open_hour(listed, head, target_bytes=target_bytes, files_max=open_files_max),
        *plan_bins(listed, head, target_bytes=target_bytes),
    )
    count = sum(len(part.files) for part in bins)
    rows = sum(part.rows for part in bins)
    size = sum(part.size for part in bins)
    return CompactionPlan(
        bins=bins,
        files_before=count,
        files_after=len(bins),
        bytes=size,
        rows=rows,
        cpu_seconds=round(count * CPU_SECONDS_A_FILE + rows * CPU_SECONDS_A_ROW + size * CPU_SECONDS_A_BYTE, 1),
        left=_explain_left(listed, bins, head, target_bytes),
    )


def _explain_left(
    files: tuple[LiveFile, ...], bins: tuple[Bin, ...], head: Head, target_bytes: int
) -> tuple[LeftFiles, ...]:
    chosen = set[str]()
    for part in bins:
        chosen.update(file.path for file in part.files)
    files_by_reason: dict[LeftReason, list[LiveFile]] = {reason: [] for reason in LeftReason}
    for file in files:
        if file.path not in chosen:
            files_by_reason[_explain_file(file, head, target_bytes)].append(file)
    return tuple(_sum_up(reason, of_reason) for reason, of_reason in files_by_reason.items() if of_reason)


def _explain_file(file: LiveFile, head: Head, target_bytes: int) -> LeftReason:
    if not is_closed(file.commit_hour, head):
        return LeftReason.OPEN
    if _is_compacted(file):
        return LeftReason.COMPACTED
    if _is_small(file, target_bytes):
        return LeftReason.ALONE
    return LeftReason.LARGE


def _sum_up(reason: LeftReason, files: list[LiveFile]) -> LeftFiles:
    hours = {file.commit_hour for file in files}
    size = sum(file.size for file in files)
    return LeftFiles(reason, len(hours), len(files), size, min(hours), max(hours))


def plan_bins(files: Iterable[LiveFile], head: Head, *, target_bytes: int = TARGET_BYTES) -> tuple[Bin, ...]:
    """The bins worth rewriting, oldest hour first; none once everything is compacted.

    1. Exclude open hours, and files that are compacted or large already.
    2. Sort the files of an hour by their commit, so that the bins of an hour contain, for each
       partition, consecutive offsets. Rewriting sorts the rows of each bin: if a
       clock went back, only the bins overlap, never the rows inside.
    3. Split the hour into parts of equal size, each at most about the target; a part of one file is not rewritten.
    """
    # 1
    chosen = [file for file in files if is_closed(file.commit_hour, head) and _is_small(file, target_bytes)]
    # 2
    ordered = sorted(chosen, key=lambda file: (file.commit_hour, file.added_ms, file.lowest, file.path))
    # 3
    return tuple(_split_by_hour(ordered, target_bytes))


def plan_open_hour(
    files: Iterable[LiveFile], head: Head, *, target_bytes: int = TARGET_BYTES, files_max: int = OPEN_FILES_MAX
) -> tuple[Bin, ...]:
    """The bins of a minor compaction of the open hour; none up to `files_max` small files. Pure.

    The output of an earlier minor compaction is left alone, so that a row is rewritten once before its hour is closed.
    """
    small = [file for file in files if not is_closed(file.commit_hour, head) and _is_small(file, target_bytes)]
    chosen = [file for file in small if not PurePosixPath(file.path).name.startswith(f"{OPEN_PREFIX}-")]
    if len(chosen) <= files_max:
        return ()
    ordered = sorted(chosen, key=attrgetter("commit_hour", "added_ms", "lowest", "path"))
    return tuple(msgspec.structs.replace(part, is_minor=True) for part in _split_by_hour(ordered, target_bytes))


def _split_by_hour(ordered: Iterable[LiveFile], target_bytes: int) -> Iterator[Bin]:
    """The bins of each hour that are worth rewriting."""
    for hour, group in groupby(ordered, key=attrgetter("commit_hour")):
        yield from filter(_is_worth_it, _split_hour(hour, list(group), target_bytes))


def _is_worth_it(part: Bin) -> bool:
    """Whether files become fewer; marks of rewinds alone have no rows to rewrite."""
    return len(part.files) > 1 and part.rows > 0


def _is_compacted(file: LiveFile) -> bool:
    return PurePosixPath(file.path).name.startswith(f"{COMPACTED_PREFIX}-")


def _is_small(file: LiveFile, target_bytes: int) -> bool:
    return not _is_compacted(file) and file.size < target_bytes * LARGE_RATIO


def _split_hour(hour: str, files: list[LiveFile], target_bytes: int) -> list[Bin]:
    total_bytes = sum(file.size for file in files)
    count = max(1, -(-total_bytes // target_bytes))
    parts: list[list[LiveFile]] = [[] for _ in range(count)]
    bytes_before = 0
    for file in files:
        # By the bytes before it, so that the parts are of equal size and the last one is not a small remainder.
        number = min(bytes_before * count // total_bytes, count - 1) if total_bytes else 0
        parts[number].append(file)
        bytes_before += file.size
    return [Bin(hour, tuple(part)) for part in parts if part]
