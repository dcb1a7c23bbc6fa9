"""Checks of states between messages: which message left a state that cannot be stored."""

from __future__ import annotations

from lockstep.errors import Violation
from lockstep.state.codec import StateNotOfItsType
from lockstep.state.store import PartitionState
from lockstep.table.quarantine import NOT_STORABLE

BYTES_PER_MESSAGE = 1024
"""A check encodes a whole state: 1 KiB takes 0.2 ms, or 2 ms as a table with keys of decimals."""


class StateChecks:
    """Checks the state of a session after its messages.

    A session in `unstorable` is checked after each message. With `examines_all`, each other session is too, while its
    state has less than `BYTES_PER_MESSAGE` bytes; a larger one after proportionally more messages.
    """

    def __init__(self, state: PartitionState[object], unstorable: frozenset[str], *, examines_all: bool) -> None:
        self._state = state
        self._unstorable = unstorable
        self._examines_all = examines_all
        self._pauses: dict[str, int] = {}
        self._remaining: dict[str, int] = {}

    def check(self, session: str) -> None:
        """Refuse the message that has just been applied to a session, if the state cannot be stored after it.

        Raises:
            Violation: A value of the state is beyond what can be stored.
            StateNotOfItsType: The fold left an object of another type there: no message is to blame. Or an unchecked
                message may be: fold again with its `sessions` in `unstorable`.
        """
        if session in self._unstorable:
            self._check(session)
        elif self._examines_all:
            self._examine(session)

    def finish(self) -> None:
        """Check the states that later messages have changed since their last check. Raises as `check` does."""
        changed = [session for session, messages in self._remaining.items() if messages < self._pauses[session]]
        for session in changed:  # a list: `_pause` changes the dictionary
            self._pause(session, self._state.check_storable(session))

    def _examine(self, session: str) -> None:
        remaining = self._remaining.get(session, 0)
        if remaining:
            self._remaining[session] = remaining - 1
        elif self._pauses.get(session, 0):
            self._pause(session, self._state.check_storable(session))
        else:
            self._pause(session, self._check(session))

    def _pause(self, session: str, size: int) -> None:
        self._pauses[session] = size // BYTES_PER_MESSAGE
        self._remaining[session] = self._pauses[session]

    def _check(self, session: str) -> int:
        try:
            return self._state.check_storable(session)
        except StateNotOfItsType as error:
            if not error.is_of_value:
                raise
            raise Violation("a state that can be stored", error.reason, NOT_STORABLE) from error
