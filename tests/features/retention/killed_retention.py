"""A retention of quarantine and late table that kills its process at a named moment; run as a program."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from lockstep.features.retention import messages as retain_quarantine
from lockstep.features.retention.commit_kinds import QUARANTINE_RETENTION, SIDE_RETENTION
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders

KINDS = {
    "before the head": QUARANTINE_RETENTION,
    "inside the head": QUARANTINE_RETENTION,
    "before the removal": SIDE_RETENTION,
    "inside the removal": SIDE_RETENTION,
}
"""Kind of the commit at which the process dies, by moment: before its entry is written, or before it is synced."""


def die() -> None:
    """Kill this process without clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Let the process die at a moment."""
    write = delta_log._write  # noqa: SLF001  # killed there

    def dying(path: Path, entry: delta_log.NextEntry, *more: Any) -> Any:
        is_here = entry.kind is KINDS[moment]
        if is_here and moment.startswith("before"):
            die()
        found = write(path, entry, *more)
        return die() if is_here else found

    setattr(delta_log, "_write", dying)  # noqa: B010  # replaces another function


def main(root: str, stream: str, hour: str, keep_hours: str, moment: str) -> None:
    """Drop messages."""
    retain_quarantine.find_current_hour = lambda: hour  # type: ignore[attr-defined]  # the clock of the test
    arm(moment)
    keep = timedelta(hours=int(keep_hours))
    retain_quarantine.drop_old_messages(StreamFolders(stream, Path(root)), keep, cause="to be killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
