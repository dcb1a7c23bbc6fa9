"""Shows the progress of a command on the error stream: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from lockstep.cli.output import print_note
from lockstep.operations.durations import format_duration
from lockstep.progress import send_progress

QUIET_SECONDS = 2.0
LINE_SECONDS = 15.0
"""Work that ends before shows nothing; then a line each so often without a terminal."""


def format_progress(doing: str, done: int, total: int, seconds: float) -> str:
    """A line about work that has taken so long: counts, rate, and time left at this rate."""
    rate = done / seconds if seconds > 0 else 0.0
    duration: str | None = "unknown time"
    if rate > 0:
        duration = format_duration((total - done) / rate)
    return f"{doing}: {done:,} of {total:,}, {rate:.1f}/s, {duration} left"


class ProgressLines:
    """Prints lines."""

    def __init__(self, write: Callable[[str], None] = print_note, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._doing = ""
        self._began = 0.0
        self._printed = 0.0

    def note(self, doing: str, done: int, total: int) -> None:
        """Take the progress of some work."""
        now = self._clock()
        if doing != self._doing:
            self._doing = doing
            self._began = now
            self._printed = now
        if now - self._printed >= LINE_SECONDS:
            self._printed = now
            self._write(format_progress(doing, done, total, now - self._began))


class ProgressBar:
    """Shows a bar on a terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._began = time.monotonic()
        self._tasks = dict[str, TaskID]()
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._bars.stop()

    def note(self, doing: str, done: int, total: int) -> None:
        """Take the progress of some work."""
        if doing not in self._tasks:
            self._tasks[doing] = self._bars.add_task(doing, total=total, rate="")
        speed = self._bars.tasks[self._tasks[doing]].speed
        self._bars.update(self._tasks[doing], completed=done, rate="" if speed is None else f"{speed:.1f}/s")
        if not self._is_shown and time.monotonic() - self._began >= QUIET_SECONDS:
            self._is_shown = True
            self._bars.start()


@contextmanager
def show_progress() -> Iterator[None]:
    """Show the progress of all work in the block; Ctrl-C ends it as it would without."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        with send_progress(ProgressLines().note):
            yield
        return
    with ProgressBar(console) as bar, send_progress(bar.note):
        yield
