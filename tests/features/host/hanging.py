"""A storage in which the commit of one stream hangs, for a host in another process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.features.host import keeper
from lockstep.storage.local import LocalStorage
from lockstep.table.commit import OutputLog

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.table.commit import Committed, Proposal

HANG = "hang"
"""The next entry of the log is not created: the call does not return."""
HANGS = "hangs"
"""The call hangs. From now on the stream's thread has a short limit, too short for a start of Spark."""
RELEASE = "release"
"""The call continues."""
ENDED = "ended"
"""The file with the name of the error that ended the commit."""
HANG_SECONDS = 5.0
POLL_SECONDS = 0.05


def hang_commits(folder: Path, stream: str) -> None:
    """Let a commit of a stream hang in this process, from the file `hang` until the file `release`."""
    create_whole = LocalStorage.create_whole
    commit = OutputLog.commit

    def hang(storage: LocalStorage, path: Path, content: bytes) -> None:
        if path.parent == folder / "tables" / stream / "table" / "_delta_log" and (folder / HANG).exists():
            (folder / HANG).rename(folder / HANGS)
            while not (folder / RELEASE).exists():
                time.sleep(POLL_SECONDS)
        create_whole(storage, path, content)

    def record(output: OutputLog, proposal: Proposal) -> Committed:
        try:
            return commit(output, proposal)
        except BaseException as error:
            if output.folder == folder / "tables" / stream / "table":
                (folder / ENDED).write_text(type(error).__name__)
            raise

    def compute_hang_seconds(watched: AnyStream) -> float:
        is_hanging = watched.name == stream and (folder / HANGS).exists() and not (folder / RELEASE).exists()
        return HANG_SECONDS if is_hanging else keeper.HANG_SECONDS_MIN

    vars(keeper)["compute_hang_seconds"] = compute_hang_seconds
    setattr(LocalStorage, "create_whole", hang)  # noqa: B010  # only in this process
    setattr(OutputLog, "commit", record)  # noqa: B010  # only in this process
