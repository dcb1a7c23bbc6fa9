"""The adding stream, and one whose fold can be caught in the middle."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import Limits, Sequence, Stream, Strict, Topics
from tests.engine.streams import Adding, Panel, Reading, Snapshot, Update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep import Record

CATCH = 777
"""The first task that folds this value waits in it."""
WAIT_SECONDS_MAX = 300.0


class Catching(Adding):
    """Adds; the first task to meet `CATCH` says so by a file `caught`, and waits for a file `released`."""

    def apply(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        if CATCH in message.values.values():
            self._wait(Path(os.environ["ADDING_TRAP"]))
        return super().apply(state, message, record)

    def _wait(self, trap: Path) -> None:
        try:
            (trap / "caught").open("x").write(str(os.getpid()))
        except FileExistsError:
            return
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (trap / "released").exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def catching(pattern: str, batch_seconds: float) -> Stream[Snapshot | Update, Panel, Reading]:
    """The stream over the topics of one test."""
    return Stream(
        name="adding",
        topics=Topics(pattern=pattern),
        transform=Catching(),
        integrity=Strict(evidence=Sequence()),
        limits=Limits(batch_seconds=batch_seconds),
    )
