"""A process that compacts a stream and waits at a gate between the writing and the commit.

Run as `python -m tests.features.compaction.compacting ROOT STREAM GATE`: it creates the file GATE/<pid> after its
files are written, waits until GATE/go exists, and prints the result as JSON.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from lockstep.features.compaction.rewrite import RewriteTask
from lockstep.features.compaction.run import Outcome, Rewriter, compact_in_process, compact_stream
from lockstep.table.layout import StreamFolders

DEADLINE_SECONDS = 120
POLL_SECONDS = 0.01


def gated(gate: Path) -> Rewriter:
    """Return a rewriter that reports the written files and waits for GATE/go."""

    def rewrite(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
        outcomes = compact_in_process().rewrite(tasks)
        (gate / str(os.getpid())).touch()
        wait_for(gate / "go")
        return outcomes

    return Rewriter(rewrite, at_once=100)


def wait_for(path: Path, lives: Callable[[], bool] = lambda: True) -> None:
    """Wait for a file. Raise TimeoutError if its writer is dead or the deadline passes."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not path.exists():
        if not lives() or time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    root, stream, gate = sys.argv[1:]
    result = compact_stream(StreamFolders(stream, Path(root)), rewriter=gated(Path(gate)))
    sys.stdout.write(msgspec.json.encode(result).decode())
