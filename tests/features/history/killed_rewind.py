"""A rewind that kills its process at a named moment: python -m tests.features.history.killed_rewind ..."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.features.history import rewind
from lockstep.features.history.commit_kinds import REWIND
from lockstep.table import delta_log, side_tables
from tests.support.adding_stream import adding
from tests.support.local_runs import LocalRuns

MOMENTS = ("before the commit", "inside the commit", "before the side tables", "before the group offsets")


def die(*_: Any) -> None:
    """Kill this process without clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Let the process die at a moment."""
    if moment == "before the commit":
        _replace(rewind, "commit_rewind", lambda _: die)
    elif moment == "inside the commit":
        _replace(delta_log, "_write", _die_after_restore)
    elif moment == "before the side tables":
        _replace(side_tables.SideLogs, "catch_up", _die_after_rewind)
    else:
        _replace(rewind, "publish_positions", lambda _: die)


def _replace(where: object, name: str, make: Callable[[Any], Any]) -> None:
    setattr(where, name, make(getattr(where, name)))


def _die_after_rewind(catch_up: Any) -> Any:
    """Die before the side tables are brought up to the rewind."""
    return lambda logs, head: die() if head.is_rewound else catch_up(logs, head)


def _die_after_restore(write: Any) -> Any:
    """Die after the entry of a rewind is written and before it is synced."""

    def written(path: Path, entry: delta_log.NextEntry, *more: Any) -> Any:
        found = write(path, entry, *more)
        return die() if entry.kind is REWIND else found

    return written


def main(servers: str, root: str, pattern: str, batch: str, moment: str) -> None:
    """Rewind to a batch."""
    runs = LocalRuns(adding(pattern), servers, Path(root))
    arm(moment)
    rewind.rewind_stream(runs.handle, batch, who="a test", why="to be killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
