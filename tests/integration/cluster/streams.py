"""Adding streams whose fold can be caught, is late, or hoards memory."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import Limits, Sequence, Stream, Strict, Topics
from tests.support.adding_stream import Adding, Panel, Reading, Snapshot, Update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep import Record

CATCH = 777
"""The first task that folds this value waits in it."""
WAIT_SECONDS_MAX = 300.0


class Catching(Adding):
    """Adds; the first task that reads `CATCH` writes a file `caught` and waits for a file `released`.

    Attributes:
        trap: Folder of these files, and of one file for each task that read `CATCH`.
    """

    def __init__(self, trap: str) -> None:
        self.trap = trap

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        if CATCH in message.values.values():
            self._wait(Path(self.trap))
        return super().on_update(state, message, record)

    def _wait(self, trap: Path) -> None:
        (trap / f"task-{uuid.uuid4().hex}").touch()
        try:
            with (trap / "caught").open("x") as caught:
                caught.write(str(os.getpid()))
        except FileExistsError:
            return
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (trap / "released").exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def catching(pattern: str, trap: Path, batch_seconds: float) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return the stream of one test's topics."""
    return Stream(
        name="adding",
        topics=Topics(pattern=pattern),
        transform=Catching(str(trap)),
        integrity=Strict(evidence=Sequence()),
        limits=Limits(batch_seconds=batch_seconds),
    )


LATE_SECONDS = 0.5


class Late(Adding):
    """Adds; each update takes longer than the interval between checks of a batch's deadline."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        time.sleep(LATE_SECONDS)
        return super().on_update(state, message, record)


HOARD_BYTES = 100_000_000
HOARD_SECONDS = 0.5
"""Several polls of the worker's memory."""
_HOARD: list[bytes] = []


class Hoarding(Adding):
    """Adds; each update leaks memory of the worker."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        _HOARD.append(b"x" * HOARD_BYTES)
        time.sleep(HOARD_SECONDS)
        return super().on_update(state, message, record)


def hoarding(pattern: str) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return the stream of one test's topics."""
    return Stream(
        name="hoarding",
        topics=Topics(pattern=pattern),
        transform=Hoarding(),
        integrity=Strict(evidence=Sequence()),
    )
