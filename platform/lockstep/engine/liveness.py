"""Who writes now, and how one writer passes to the next.

A writer counts up in a file named after its epoch. Observers look for change with their own
monotonic clock; no wall clock of another machine decides anything. Nothing here guards the table:
the epoch in its log does. This only makes a change of writers quick and polite.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

COUNT_SECONDS = 0.4
LOOK_SECONDS = 1.0
LOOKS = 3
"""A counter that stays the same over so many looks belongs to a writer that is gone."""


class Phase(Enum):
    """What a writer says of itself."""

    WRITING = "writing"
    DRAINING = "draining"
    ENDED = "ended"


class Pulse(msgspec.Struct, frozen=True):
    """The content of a liveness file.

    Attributes:
        counter: Changes while the writer lives.
        phase: What the writer says of itself.
        never_ending: Whether the run goes on until somebody stops it.
    """

    counter: int
    phase: Phase
    never_ending: bool = False


class Takeover(Enum):
    """How a new writer found the old one; recorded as the cause of the restart."""

    FIRST = "first start"
    ENDED = "the run before had ended"
    HANDOVER = "handover"
    DEAD = "the writer before was gone"
    SILENT = "the writer before did not answer"


class Heartbeat:
    """Counts for one epoch on a thread of its own, until closed."""

    def __init__(self, control: Path, epoch: int, *, never_ending: bool = False) -> None:
        self._path, self._epoch, self._control = _liveness(control, epoch), epoch, control
        self._never_ending = never_ending
        self._phase, self._counter = Phase.WRITING, 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._count, name=f"liveness-{epoch}", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last word of a writer; a successor need not look three times."""
        self._closing.set()
        self._thread.join()
        self._phase = Phase.ENDED
        with suppress(OSError):  # must not hide what the run ends with
            self._write()
        _request(self._control, self._epoch).unlink(missing_ok=True)
        stop_request(self._control, self._epoch).unlink(missing_ok=True)

    def asked_to_hand_over(self) -> bool:
        """Whether a successor asked this epoch to hand over. Answers it the first time."""
        if not _request(self._control, self._epoch).exists():
            return False
        if self._phase is Phase.WRITING:
            self._phase = Phase.DRAINING
            self._write()
        return True

    def _count(self) -> None:
        while not self._closing.wait(COUNT_SECONDS):
            with suppress(OSError):  # a disk that is full for a moment: the next count says that this writer lives
                self._write()

    def _write(self) -> None:
        self._counter += 1
        publish(self._path, msgspec.json.encode(Pulse(self._counter, self._phase, self._never_ending)))


def writer_lives(control: Path, epoch: int, *, cancelled: Callable[[], bool] = lambda: False) -> bool:
    """Look until the counter of an epoch changes, or has stayed the same long enough."""
    first = pulse(control, epoch)
    if first is None or first.phase is Phase.ENDED:
        return False
    for _ in range(LOOKS):
        time.sleep(LOOK_SECONDS)
        if cancelled() or pulse(control, epoch) != first:
            break
    last = pulse(control, epoch)
    return last is not None and last != first and last.phase is not Phase.ENDED


def ask_to_hand_over(control: Path, epoch: int, timeout_seconds: float, cancelled: Callable[[], bool]) -> Takeover:
    """Ask a living writer to hand over, and wait for its end.

    The timeout runs only while there is no answer: a long last batch is waited for.
    """
    publish(_request(control, epoch), b"{}")
    asked = time.monotonic()
    while not cancelled():
        now = pulse(control, epoch)
        if now is None or now.phase is Phase.ENDED:
            return Takeover.HANDOVER
        if now.phase is Phase.WRITING and time.monotonic() - asked > timeout_seconds:
            return Takeover.SILENT
        if now.phase is Phase.DRAINING and not writer_lives(control, epoch, cancelled=cancelled):
            return Takeover.HANDOVER if _ended(control, epoch) else Takeover.DEAD
        time.sleep(COUNT_SECONDS / 2)
    return Takeover.SILENT


def pulse(control: Path, epoch: int) -> Pulse | None:
    """The newest sign of life of an epoch; None when it never gave one."""
    try:
        return msgspec.json.decode(_liveness(control, epoch).read_bytes(), type=Pulse)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _ended(control: Path, epoch: int) -> bool:
    now = pulse(control, epoch)
    return now is not None and now.phase is Phase.ENDED


def _liveness(control: Path, epoch: int) -> Path:
    return control / f"liveness-{epoch}.json"


def _request(control: Path, epoch: int) -> Path:
    return control / f"handover-{epoch}.json"


def stop_request(control: Path, epoch: int) -> Path:
    """The file by which the writer of an epoch is asked to stop for good (engine/wishes.py)."""
    return control / f"stop-{epoch}.json"


def publish(path: Path, content: bytes) -> None:
    """Replace a small file so that readers see the old or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
