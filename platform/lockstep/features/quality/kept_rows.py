"""Results of checks after an erasure."""

from __future__ import annotations

from lockstep.features.quality.check import forget_sessions
from lockstep.features.quality.report import make_report_path
from lockstep.storage import find_storage
from lockstep.table.layout import StreamFolders


def forget_results(folders: StreamFolders) -> None:
    """Forget the sessions that the last check has stored, and delete its report."""
    forget_sessions(folders)
    report = make_report_path(folders)
    find_storage(report).delete(report)
