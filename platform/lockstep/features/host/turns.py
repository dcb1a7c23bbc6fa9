"""Turns of the streams of a host that start.

A handover stops a stream from its last batch in the old process to its first batch in the new process. If all streams
of a host started at the same time, each gap would be as long as the start of all of them.
"""

from __future__ import annotations

import os
import threading
import time

TURNS_MIN = 2
"""A start waits for the previous writer and for Kafka, while another one computes."""
TURN_SECONDS_MAX = 30.0
"""A stream whose start takes longer, for example because the last batch of the previous writer is long, delays the
others no more."""
POLL_SECONDS = 0.5


class StartTurns:
    """Lets a few streams start at the same time."""

    def __init__(self, turns: int | None = None, seconds_max: float = TURN_SECONDS_MAX) -> None:
        """No stream starts yet.

        Args:
            turns: Streams that start at the same time; by default as many as there are cores, at least two.
            seconds_max: Time after which a start does not count any more.
        """
        self._turns = max(TURNS_MIN, os.cpu_count() or 1) if turns is None else turns
        self._seconds_max = seconds_max
        self._taken_at = dict[str, float]()
        self._changed = threading.Condition()

    def take(self, stream: str, stop: threading.Event) -> None:
        """Wait for a turn, or for the stop."""
        with self._changed:
            # With a timeout: a turn ends by time, too, if its stream never settles.
            while self._count_starts() >= self._turns and not stop.is_set():
                self._changed.wait(POLL_SECONDS)
            self._taken_at[stream] = time.monotonic()

    def end(self, stream: str) -> None:
        """End the turn of a stream, if it has one."""
        with self._changed:
            self._taken_at.pop(stream, None)
            self._changed.notify_all()

    def _count_starts(self) -> int:
        since = time.monotonic() - self._seconds_max
        return sum(taken_at > since for taken_at in self._taken_at.values())
