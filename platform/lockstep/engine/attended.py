"""A run on a thread of its own, so that whoever attends it can always end it.

All Spark work, its start included, happens on that thread: a signal that arrives while the main
thread is inside the JVM bridge would hang there, and batches would go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lockstep.engine.loop import Outcome

ABANDON_SECONDS = 5.0
"""After cancelling the Spark jobs of an abandoned batch, the run needs a moment to end."""


class AttendedRun:
    """One run. Start it, wait in the main thread, end it from any thread or signal handler.

    Attributes:
        stop: Set when the run was asked to end.
    """

    def __init__(self, work: Callable[[threading.Event], Outcome], *, abandon: Callable[[], None]) -> None:
        """Prepare a run.

        Args:
            work: Runs the stream until the event is set or it ends by itself.
            abandon: Cancels the batch in progress; safe, because nothing of it is committed.
        """
        self.stop = threading.Event()
        self._work, self._abandon = work, abandon
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end; True when it is there."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def end(self, timeout_seconds: float) -> bool:
        """Ask for the end at the batch boundary; abandon the batch when that takes too long."""
        self.stop.set()
        if self.wait(timeout_seconds):
            return True
        self._abandon()
        return self.wait(ABANDON_SECONDS)

    def outcome(self) -> Outcome:
        """How the run ended.

        Raises:
            BaseException: Whatever ended it; not what came from abandoning a batch.
        """
        if self._error is not None and not self.stop.is_set():
            raise self._error
        return self._outcome or Outcome.STOPPED

    def _run(self) -> None:
        try:
            self._outcome = self._work(self.stop)
        except BaseException as error:  # noqa: BLE001  # the thread's outermost edge: kept for whoever attends
            self._error = error
