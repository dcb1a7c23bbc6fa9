"""FlatMap: rows from each message by itself, without state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic

import msgspec
from typing_extensions import override

from lockstep.declare.transform import InitialState, M, R, Transform, require_first_message
from lockstep.integrity.base import IntegrityClass
from lockstep.model.record import Envelope, Record


class NoState(msgspec.Struct, frozen=True):
    """The state of a session that has none."""


_NONE = NoState()


class FlatMap(Transform[M, NoState, R], Generic[M, R]):
    """Emits zero or more rows for each message, in order; keeps no state.

    The session is the partition. Override `envelope` if the integrity class needs more: a session for each key, ids for
    `Once`, an event time.
    """

    @abstractmethod
    def flat_map(self, message: M, record: Record) -> Iterable[R]:
        """Rows of one message, in order.

        Raises:
            Violation: The message is wrong. Any other exception is a verdict on it, too.
        """

    @override
    def check_integrity(self, integrity: IntegrityClass) -> None:
        """Refuse a class under which no session would start."""
        require_first_message(integrity, f"{type(self).__name__} has none: each message is on its own")

    @override
    def envelope(self, message: M, record: Record) -> Envelope:
        """One session a partition."""
        return Envelope(str(record.partition))

    @override
    def on_snapshot(self, message: M, record: Record, previous: NoState | None) -> InitialState[NoState, R]:
        """Start with the first message that is read."""
        return InitialState(_NONE, self.flat_map(message, record))

    @override
    def on_update(self, state: NoState, message: M, record: Record) -> Iterable[R]:
        """Return the rows of a message."""
        return self.flat_map(message, record)
