"""An erasure that kills its process at a named moment: python -m tests.features.erase.dying_erase ..."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lockstep.features.erase import erase
from lockstep.features.erase.erase import EraseContext, EraseRequest
from lockstep.table import side_files, side_tables
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.side_files import commit_replacement

MOMENTS = (
    "before the ledger file",
    "before the commit",
    "before the side tables",
    "before a replaced side file is deleted",
    "before the log checkpoints",
    "before it is finished",
)


def die(*_: Any, **__: Any) -> None:
    """Kill this process without clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Let the process die at a moment."""
    places: dict[str, tuple[Any, str]] = {
        "before the ledger file": (erase, "evolve_side_table"),
        "before the commit": (erase, "commit_erasure"),
        "before the side tables": (erase, "redact_side_tables"),
        "before it is finished": (erase, "finish_erasure"),
        "before the log checkpoints": (erase, "_write_checkpoints"),
    }
    if moment in places:
        setattr(*places[moment], die)
        return

    def commit_and_die(*args: Any) -> bool:
        commit_replacement(*args)
        die()  # immediately after the commit
        return True

    setattr(side_files, "commit_replacement", commit_and_die)  # noqa: B010  # mypy refuses the assignment


def main(root: str, stream: str, moment: str) -> None:
    """Erase a session."""
    folders = StreamFolders(stream, Path(root))
    side_tables.catch_up_alongside_writer(folders, OutputLog(folders.table).base().head)
    arm(moment)
    erase.erase_session(folders, EraseRequest(session="s1"), EraseContext(), who="a test", why="to be killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
