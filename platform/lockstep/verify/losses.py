"""Counts the states that the replay discards, from the sessions in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lockstep.errors import EnvironmentProblem, StateError
from lockstep.verify.gates.base import SessionMemory, find_buffered

LOST_SESSIONS = "lost_sessions"
LOST_MESSAGES = "lost_messages"
"""Names of the counts."""
ENDED = frozenset({"deleted", "forgotten"})
"""Changes of a topic after which its sessions would have ended anyway."""
LIFE_ENDS = ENDED | {"re-created"}
"""Changes of a topic after which none of its sessions can continue."""


class LosingSession(NamedTuple):
    """One session: its memory and its state, None while it has none."""

    known: SessionMemory
    state: object


class ReplayLosses:
    """The losses of one partition.

    Attributes:
        before: The suspended sessions that started before this offset are counted.
        begun: Sessions that started since all were last compared with a suspension; None before the first time.
    """

    def __init__(self, add: Callable[[str, int], None], pending: Callable[[object], int] | None) -> None:
        """Start without a loss.

        Args:
            add: Adds to a count of the current range.
            pending: The transform's hook, if it has one.
        """
        self._add = add
        self._pending = pending
        self.before = 0
        self.begun: set[str] | None = None

    def note(self, state: object, buffered: int = 0) -> None:
        """Count a discarded state, unless nothing is lost with it."""
        messages: int | None = 0
        if state is not None:
            messages = self._count_messages(state)
        if messages == 0 and not buffered:
            return
        self._add(LOST_SESSIONS, 1)
        self._add(LOST_MESSAGES, (messages or 0) + buffered)

    def note_end(self, state: object) -> None:
        """Count the messages of a session that ends without `on_end`; without the hook they are not known."""
        if self._pending is not None:
            self.note(state)

    def suspend_before(self, offset: int, sessions: Iterable[LosingSession]) -> None:
        """Count the sessions that a suspension of the partition makes lose their states.

        Args:
            offset: Sessions that started before it are suspended.
            sessions: The sessions that may have begun since the last suspension.
        """
        for known, state in sessions:
            if not known.waits and self.before <= known.opened_at < offset:
                self.note(state)
        self.before = offset
        # From now on only sessions that start again may lose a state by the next suspension.
        self.begun = set()

    def end_topic(
        self, change: str, before: int, sessions: Iterable[LosingSession], *, may_replace: bool, has_buffer: bool
    ) -> None:
        """Count the sessions of a topic that has ended.

        Args:
            change: What happened to it.
            before: Sessions that started before it are counted.
            sessions: All sessions of the partition.
            may_replace: A session may start without a snapshot.
            has_buffer: The class buffers messages.
        """
        loses = self._pending is not None or (change not in ENDED and may_replace)
        if not loses and not has_buffer:
            return
        for memory, state in sessions:
            if memory.waits:
                is_left = not memory.lost
                buffered = 0
            else:
                # Earlier sessions were counted when the partition was suspended.
                is_left = memory.opened_at >= before
                buffered = len(find_buffered(memory.memory))
            self.note(state if loses and is_left else None, buffered)

    def _count_messages(self, state: object) -> int | None:
        """The messages of a state; None if unknown."""
        if self._pending is None:
            return None
        try:
            messages = self._pending(state)
        except (EnvironmentProblem, StateError, MemoryError):
            raise
        except Exception:  # noqa: BLE001  # the user's code: the state is counted without its messages
            return None
        return messages if type(messages) is int and messages >= 0 else None
