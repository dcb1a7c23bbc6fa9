"""The streams of the fault tests. Executors import them by name."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import Every, Ordered, Stream, Topics
from tests.support.adding_stream import Adding, Panel, Reading, Snapshot, Update

if TYPE_CHECKING:
    from lockstep import Limits, Record
    from lockstep.declare.options import Trigger
    from lockstep.integrity.base import IntegrityClass

DEADLY = 555
"""A value that ends the worker that folds it."""
LITTLE_MEMORY_BYTES = 64 << 20
"""Memory that a starved worker may still allocate; it requests four times as much."""


def faulty(
    pattern: str, limits: Limits, trigger: Trigger | None = None, integrity: IntegrityClass | None = None
) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return a stream that adds; messages of unopened sessions go to quarantine, so that each batch has some."""
    return _stream(Adding(), pattern, limits, trigger, integrity)


def deadly(
    way: str, trap: Path, deaths: int, pattern: str, limits: Limits, integrity: IntegrityClass | None = None
) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return a stream that adds; the first `deaths` workers that meet `DEADLY` die (see `Deadly`)."""
    return _stream(Deadly(way, str(trap), deaths), pattern, limits, None, integrity)


class Deadly(Adding):
    """Adds values; a worker that meets `DEADLY` records it in a separate file, and dies.

    Attributes:
        way: "killed" (by -9), "starved" (of memory), or "stopped" (it does not die).
        trap: Folder of the files.
        deaths: Number of workers that die.
    """

    def __init__(self, way: str, trap: str, deaths: int) -> None:
        self.way = way
        self.trap = trap
        self.deaths = deaths

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Add values, or die of the deadly value."""
        if DEADLY in message.values.values() and len(list(Path(self.trap).iterdir())) < self.deaths:
            (Path(self.trap) / f"{self.way}-{os.getpid()}-{uuid.uuid4().hex}").touch()
            self._die()
        return super().on_update(state, message, record)

    def _die(self) -> None:
        if self.way == "starved":
            _starve()
        os.kill(os.getpid(), signal.SIGSTOP if self.way == "stopped" else signal.SIGKILL)


def _starve() -> None:
    """Request more memory than is left, as a fold does whose state outgrew its machine."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + LITTLE_MEMORY_BYTES, before[1]))
    try:
        bytearray(4 * LITTLE_MEMORY_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _stream(
    transform: Adding, pattern: str, limits: Limits, trigger: Trigger | None, integrity: IntegrityClass | None
) -> Stream[Snapshot | Update, Panel, Reading]:
    return Stream(
        name="faulty",
        topics=Topics(pattern=pattern),
        transform=transform,
        integrity=integrity or Ordered(),
        limits=limits,
        trigger=trigger or Every(),
    )
