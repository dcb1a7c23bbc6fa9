"""A process that compacts a stream and kills itself at a phase, as kill -9 does.

Run as `python -m tests.features.compaction.dying ROOT STREAM PHASE OPEN_FILES_MAX`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.features.compaction import rewrite
from lockstep.features.compaction.run import compact_stream
from lockstep.storage import LocalStorage
from lockstep.storage.local import LocalPendingFile
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders

PHASES: dict[str, tuple[Any, str, bool]] = {
    "an input is to be read": (rewrite, "_row_groups", False),
    "the output is begun": (LocalStorage, "open_pending", True),
    "the output is written and not proven": (LocalPendingFile, "finish", True),
    "the output is proven and not committed": (OutputLog, "commit", False),
    "the entry is written and not synced": (delta_log, "_write", True),
    "one hour is committed, the next is not": (OutputLog, "commit", True),
}
"""Owner and name of a function, and whether the process dies after the call instead of before it."""


def dying(act: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """Wrap a function so that the process dies at its call."""

    def call(*arguments: Any, **named: Any) -> Any:
        if after:
            act(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return call


if __name__ == "__main__":
    root, stream, phase, open_files_max = sys.argv[1:]
    owner, name, is_after = PHASES[phase]
    setattr(owner, name, dying(getattr(owner, name), after=is_after))
    compact_stream(StreamFolders(stream, Path(root)), open_files_max=int(open_files_max))
