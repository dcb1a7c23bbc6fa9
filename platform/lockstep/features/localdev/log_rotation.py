"""Rotates the logs of the live platform: a log past its limit is set aside, and the previous log is deleted.

    python -m lockstep.features.localdev.log_rotation FOLDER...

The processes keep their logs open and append to them, so a log is copied and then truncated: lines written between
the two, some milliseconds of a log, are lost.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

LIMIT_BYTES = 10_000_000
"""A log and the rotated one hold a day or two of a live platform (measured: 10 MB a day, all logs together)."""
POLL_SECONDS = 30.0


def rotate(folder: Path, limit_bytes: int = LIMIT_BYTES) -> list[Path]:
    """Rotate the logs of a folder that are too large; returns those."""
    large = [path for path in sorted(folder.glob("*.log")) if path.stat().st_size > limit_bytes]
    for path in large:
        draft = path.with_name(f"{path.name}.draft")
        shutil.copyfile(path, draft)
        draft.replace(path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    return large


def main() -> None:
    """Check the logs until this process is ended."""
    folders = list(map(Path, sys.argv[1:]))
    while True:
        for folder in folders:
            rotate(folder)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
