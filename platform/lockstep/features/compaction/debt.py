"""The work that waits for compaction."""

from __future__ import annotations

from lockstep.features.compaction.plan import plan_bins
from lockstep.model.commit_hour import parse_hour
from lockstep.operations.alarms import CompactionDebt
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.live_files import LiveFiles


def compute_debt(folders: StreamFolders, head: Head, now: float, target_bytes: int) -> CompactionDebt:
    """Measure the files that the next compaction would rewrite, from the log of the table."""
    bins = plan_bins(LiveFiles(folders.table).at(head.batch_version), head, target_bytes=target_bytes)
    if not bins:
        return CompactionDebt()
    oldest = bins[0].commit_hour
    ended_at = parse_hour(oldest).timestamp() + 3_600
    hours = {part.commit_hour for part in bins}
    files = sum(len(part.files) for part in bins)
    return CompactionDebt(len(hours), files, oldest, max(0.0, now - ended_at))
