"""Waits until streams write, all at the same time, and reports each; one that is slow holds up no other one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lockstep.control.heartbeat import HeartbeatRecord, Phase
from lockstep.errors import LockstepError
from lockstep.time_limit import SLOW, describe_silence

PATIENCE_SECONDS = 600.0
"""Without any progress: a stream writes after half a minute, and ten times as late on a machine full of other work."""
POLL_SECONDS = 2.0
PROGRESS_SECONDS = 15.0


class StreamState(msgspec.Struct, frozen=True):
    """The observed state of a stream.

    Attributes:
        epoch: The epoch that holds the table; 0 without a table.
        pulse: Its heartbeat; None without one.
        failure: The newest failure of a run, empty without one; the supervisor starts another run.
    """

    epoch: int
    pulse: HeartbeatRecord | None = None
    failure: str = ""


class StreamWaits:
    """Streams that are to write, and the first state of each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.left = list(names)
        self._first: dict[str, StreamState] = {}
        self._reported: dict[str, str] = {}

    def note(self, name: str, state: StreamState) -> Iterator[str]:
        """Note the state of a stream; yields a line for each change that a person wants to know."""
        first = self._first.setdefault(name, state)
        if _writes(first, state):
            self.left.remove(name)
            yield f"{name} writes"
        elif state.failure and state.failure != self._reported.get(name, first.failure):
            self._reported[name] = state.failure
            yield f"{name}: a run failed, its supervisor starts another run: {state.failure}"

    def describe_left(self) -> str:
        """The streams that do not write yet, with the last failure of each."""
        failures = {name: f" ({text})" for name, text in self._reported.items()}
        return ", ".join(f"{name}{failures.get(name, '')}" for name in self.left)


def _writes(first: StreamState, now: StreamState) -> bool:
    """Whether a writer is seen to send heartbeats: one of a new epoch, or one whose counter has moved."""
    if now.pulse is None or now.pulse.phase is not Phase.WRITING:
        return False
    return first.pulse is None or first.epoch != now.epoch or first.pulse.counter != now.pulse.counter


def await_streams(
    names: Sequence[str],
    look: Callable[[str], StreamState],
    check: Callable[[], None] = lambda: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Wait for streams; yields a line for each that writes, and a line now and then for those that do not.

    Args:
        names: The streams.
        look: Reads the state of one of them.
        check: Raises if the wait is in vain, for example because a server has ended.
        clock: Monotonic seconds.
        sleep: Waits.

    Raises:
        LockstepError: Some did not write within a time without progress. Nothing is ended.
    """
    waits = StreamWaits(names)
    began = clock()
    reported = moved = began
    while waits.left:
        check()
        for name in list(waits.left):
            for line in waits.note(name, look(name)):
                reported = moved = clock()
                yield line
        now = clock()
        if waits.left and now - moved > PATIENCE_SECONDS:
            silence = describe_silence(waits.describe_left(), PATIENCE_SECONDS, verb="write")
            step = f"{SLOW}: running processes stay, and supervisors continue; make up waits again, make down ends it"
            raise LockstepError(silence, next_step=step)
        if waits.left and now - reported >= PROGRESS_SECONDS:
            reported = now
            yield f"waiting for {waits.describe_left()} ({now - began:.0f} s)"
        if waits.left:
            sleep(POLL_SECONDS)
