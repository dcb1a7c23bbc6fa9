"""A process that exports, and dies or waits at a step.

`python -m tests.features.export.exporting ROOT STEP` kills itself at STEP of its first hour, or of the withdrawal of
hours that a rewind has undone. With a third argument GATE it creates the file GATE/<pid> instead, waits for GATE/go,
continues, and prints its result as JSON.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from lockstep.derived import Export, OnRewind
from lockstep.features.export import dataset
from lockstep.features.export.export import export_stream
from lockstep.storage import LocalStorage
from lockstep.table.layout import StreamFolders
from tests.features.compaction.compacting import wait_for
from tests.features.export.declared import make_stream

STEPS = ("files written", "manifest written", "published")
WITHDRAWAL_STEPS = ("before an hour is withdrawn", "after an hour is withdrawn", "before the batches are recorded")


def interrupt(step: str, act: Callable[[], None]) -> None:
    """Call a function once at a step of the next hour: before the manifest, before the rename or after it."""
    storage = LocalStorage
    done = list[bool]()
    move = storage.move
    replace = storage.replace

    def once() -> None:
        if not done:
            done.append(True)
            act()

    def replacing(self: LocalStorage, path: Path, content: bytes) -> None:
        is_due = {STEPS[0]: dataset.MANIFEST_FILE, WITHDRAWAL_STEPS[2]: dataset.SOURCE_FILE}.get(step) == path.name
        if is_due:
            once()
        replace(self, path, content)

    def moving(self: LocalStorage, path: Path, target: Path) -> None:
        before = {target.name: STEPS[1], path.name: WITHDRAWAL_STEPS[0]}
        after = {target.name: STEPS[2], path.name: WITHDRAWAL_STEPS[1]}
        hours = [name for name in before if name.startswith(dataset.HOUR_PREFIX)]
        if step in [before[name] for name in hours]:
            once()
        move(self, path, target)
        if step in [after[name] for name in hours]:
            once()

    storage.move = moving  # type: ignore[method-assign]  # this process is killed
    storage.replace = replacing  # type: ignore[method-assign]  # the same


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_at(gate: Path) -> None:
    """Report that the step is reached and wait for GATE/go."""
    (gate / str(os.getpid())).touch()
    wait_for(gate / "go")


if __name__ == "__main__":
    root, at, *gates = sys.argv[1:]
    interrupt(at, (lambda: wait_at(Path(gates[0]))) if gates else die)
    declared = Export(on_rewind=OnRewind.REWRITE if at in WITHDRAWAL_STEPS else OnRewind.WAIT)
    result = export_stream(make_stream(declared), StreamFolders("readings", Path(root)))
    sys.stdout.write(msgspec.json.encode(result).decode())
