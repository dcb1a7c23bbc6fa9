"""A process that folds batches until it is killed, and checks all values that it reads.

    python -m tests.unit.state.worker FOLDER SESSIONS

Batch n sets every session s with (s + n) % 3 == 0 to n; the version is committed by a rename.
The exit code is 3 if the value of a session differs from the committed batches.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from lockstep.state.changelog import StateVersion
from tests.unit.state.home import Home, put


def committed(folder: Path, home: Home) -> StateVersion:
    """Return the newest committed version."""
    path = folder / "version"
    return msgspec.json.decode(path.read_bytes(), type=StateVersion) if path.exists() else home.start()


def commit(folder: Path, version: StateVersion) -> None:
    """Commit a version atomically."""
    new = folder / "version.new"
    new.write_bytes(msgspec.json.encode(version))
    new.rename(folder / "version")


def values_after(batches: int, sessions: int) -> dict[str, int]:
    """Return the values of the sessions after so many batches, by the rule alone."""
    touched = ((f"s{s}", [n for n in range(batches) if (s + n) % 3 == 0]) for s in range(sessions))
    return {session: numbers[-1] for session, numbers in touched if numbers}


def run(folder: Path, sessions: int) -> int:
    """Fold until killed; return 3 after a wrong value."""
    home = Home(folder / "state", folder / "hot")
    names = [f"s{s}" for s in range(sessions)]
    version = committed(folder, home)
    while True:
        batch = version.next_offset
        if home.values(version, names) != values_after(batch, sessions):
            return 3
        version = home.batch(version, put({f"s{s}": batch for s in range(sessions) if (s + batch) % 3 == 0}))
        commit(folder, version)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), int(sys.argv[2])))
