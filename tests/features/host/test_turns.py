"""Turns of the streams that start in a host: a few at a time, and no stream waits for a long start."""

from __future__ import annotations

import threading
import time

import pytest

from lockstep.features.host.turns import StartTurns

SECONDS_MAX = 30.0


class Starts:
    """Threads that take a turn, start for a moment, and end the turn.

    Attributes:
        most: The highest number of simultaneous starts.
        ended: Streams whose start has ended.
    """

    def __init__(self, turns: StartTurns) -> None:
        self.most = 0
        self.ended = list[str]()
        self._turns = turns
        self._running = 0
        self._lock = threading.Lock()

    def run(self, streams: int) -> None:
        """Start a number of streams at the same time."""
        threads = [threading.Thread(target=self._start, args=(f"s{number}",)) for number in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)

    def _start(self, stream: str) -> None:
        self._turns.take(stream, threading.Event())
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        time.sleep(0.1)
        with self._lock:
            self._running -= 1
            self.ended.append(stream)
        self._turns.end(stream)
        self._turns.end(stream)  # after the first batch and at the end of the run


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_more_streams_than_turns_start_at_the_same_time(count: int) -> None:
    starts = Starts(StartTurns(count))
    starts.run(12)
    assert starts.most == count
    assert len(starts.ended) == 12


def test_a_long_start_delays_the_others_for_a_limited_time() -> None:
    turns = StartTurns(1, seconds_max=0.1)
    turns.take("long", threading.Event())
    Starts(turns).run(3)  # ends


def test_a_stop_ends_the_wait_for_a_turn() -> None:
    turns = StartTurns(1, seconds_max=SECONDS_MAX)
    stop = threading.Event()
    turns.take("long", stop)
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    turns.take("other", stop)
    assert time.monotonic() - began < SECONDS_MAX / 2
