"""Encodes and decodes the state of a session, and refuses stored state of another type."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import msgspec

from lockstep.errors import StateError
from lockstep.state.difference import Difference, differences
from lockstep.state.shape import Shape, shape_hash, shape_of

S = TypeVar("S")


class StateTypeChanged(StateError):
    """State was stored by another state type, and the change is not one that old state survives.

    Attributes:
        where: The section that holds the state.
        differences: What differs, field by field.
    """

    def __init__(self, where: str, found: tuple[Difference, ...]) -> None:
        shown = "\n".join(f"  {difference}" for difference in found)
        super().__init__(
            f"{where} was written by another state type:\n{shown}",
            next_step="keep the stored fields and give new ones a default, or run the release of then",
        )
        self.where = where
        self.differences = found


class StateNotOfItsType(StateError):
    """A fold left a state that its declared type cannot hold.

    Attributes:
        session: The session.
        reason: What msgspec says.
    """

    def __init__(self, session: str, reason: str, *, next_step: str) -> None:
        problem = f"the fold left a state of session {session!r} that its type cannot hold: {reason}"
        super().__init__(problem, next_step=next_step)
        self.session = session
        self.reason = reason


class StateSchema(Generic[S]):
    """The state type of a stream, ready to encode and decode. Make one per process and stream.

    Attributes:
        shape: Its shape; kept with every section.
        hash: Short name of the shape.
    """

    def __init__(self, state_type: object) -> None:
        """Build the codec of a state type.

        Raises:
            DeclarationError: The type cannot be saved and recovered.
        """
        self.shape = shape_of(state_type)
        self.hash = shape_hash(self.shape)
        self._encoder = msgspec.msgpack.Encoder()
        # None: the snapshot that opens the session is on its way, in several messages.
        stored = tuple[object, state_type | None]  # type: ignore[valid-type]  # made at run time
        self._decoder = msgspec.msgpack.Decoder(stored)

    def encode(self, session: str, gate: object, state: S) -> bytes:
        """The stored value of a session: msgpack of [gate, state].

        Raises:
            StateNotOfItsType: The state holds something msgpack cannot carry.
        """
        try:
            return self._encoder.encode((gate, state))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            step = "mend the fold; nothing of this batch was committed, the next start folds it again"
            raise StateNotOfItsType(session, str(error), next_step=step) from error

    def decode(self, session: str, stored: bytes) -> tuple[object, S]:
        """The gate and the state of a stored value, as new objects.

        Raises:
            StateNotOfItsType: The value is not of the declared type.
        """
        try:
            return cast("tuple[object, S]", self._decoder.decode(stored))
        except msgspec.ValidationError as error:
            step = "declare the field as what the fold left there, and mend the fold"
            raise StateNotOfItsType(session, str(error), next_step=step) from error

    def accept(self, stored_hash: str, stored: Shape, where: str) -> None:
        """Accept state that was stored as another shape, if this type can read it.

        Raises:
            StateTypeChanged: It cannot.
        """
        if stored_hash == self.hash:
            return
        found = differences(stored, self.shape)
        if found:
            raise StateTypeChanged(where, found)
