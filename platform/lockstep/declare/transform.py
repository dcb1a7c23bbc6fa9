"""The contract between a user's fold and the engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

from lockstep.declare.envelope_fields import EnvelopeFields
from lockstep.errors import DeclarationError
from lockstep.integrity.base import IntegrityClass, SessionStart
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import mark_extension_point
from lockstep.model.record import Envelope, Record

M = TypeVar("M")
S = TypeVar("S")
R = TypeVar("R", bound=msgspec.Struct)


class InitialState(msgspec.Struct, Generic[S, R], frozen=True):
    """A new state and rows to emit, for a snapshot that emits rows.

    Attributes:
        state: The session's whole state.
        rows: Rows emitted for the snapshot, in order.
    """

    state: S
    rows: Iterable[R] = ()


@mark_extension_point
class Transform(Declaration, Generic[M, S, R]):
    """Folds messages of type M into a state of type S per session and emits rows of type R.

    M is the decoder's result, and None in it a tombstone; S is a type whose values are loaded exactly as they were
    stored (docs/state.md); R is a Struct of columns. A transform is deterministic: no clock, no random number and no
    order of a set may reach a row. An exception in any of these methods is a verdict about the message: its state and
    rows are undone.

    A fold whose rows replay to its state declares `key` and `removed`; `lockstep verify` proves it.

    Attributes:
        envelope_fields: The fields of a message that make its envelope; None for a class with a method `envelope`.
        key: Fields of R that spell the key of a row; None if the rows do not replay to the state.
        removed: Field of R that is null exactly in the row of a removed key.
    """

    envelope_fields: ClassVar[EnvelopeFields | None] = None
    key: ClassVar[tuple[str, ...] | None] = None
    removed: ClassVar[str | None] = None

    def __eq__(self, other: object) -> bool:
        # By value, so that a stream that was sent to an executor and back equals the declared one.
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @classmethod
    def find_stored_type(cls, state: object) -> object:
        """The type that stores the states: the type of states itself, but for the tables of ready folds."""
        return state

    def check_integrity(self, integrity: IntegrityClass) -> None:
        """Refuse integrity classes under which the transform cannot work.

        Raises:
            DeclarationError: It cannot work under this class.
        """

    def envelope(self, message: M, record: Record) -> Envelope:
        """Extract the envelope of a message. Must not change anything.

        By default from `envelope_fields`.
        """
        declared = type(self).envelope_fields
        if declared is None:
            raise _not_overridden("envelope")
        return declared.read(message, record)

    @abstractmethod
    def on_snapshot(self, message: M, record: Record, previous: S | None) -> S | InitialState[S, R]:
        """Make the session's whole state from a snapshot.

        If a session may start at its first message, its first update is passed here too.

        Args:
            message: The snapshot.
            record: Its Kafka record.
            previous: The state that the snapshot replaces; None if the session is new. It may be returned.
        """

    @abstractmethod
    def on_update(self, state: S, message: M, record: Record) -> Iterable[R]:
        """Change `state` in place and return the rows to emit, in order.

        Raises:
            Violation: A result differs from the value in the message (a checksum).
        """

    def watermark(self, message: M, record: Record) -> int | None:
        """Event time in microseconds up to which the partition is complete; None to leave the watermark unchanged.

        By default the largest event time that the partition has seen (`Envelope.event_time_us`, else Kafka's
        timestamp).
        """
        raise _not_overridden("watermark")

    def deadline(self, state: S) -> int | None:
        """The session's timer, in event time (microseconds since 1970 UTC); None without a timer.

        Called after every message of the session, and after `on_timer`, which must move it on.
        """
        raise _not_overridden("deadline")

    def on_timer(self, state: S, deadline_us: int) -> Iterable[R]:
        """Change `state` and return rows: the partition's watermark has passed the session's timer.

        Runs before the message that advanced the watermark, in the order of (deadline, session). An error stops the
        stream under every class.
        """
        raise _not_overridden("on_timer")

    def on_late(self, state: S, message: M, record: Record) -> Iterable[R]:
        """Rows for a late message, in addition to its row in the late table."""
        raise _not_overridden("on_late")

    def on_end(self, state: S) -> Iterable[R]:
        """Rows when a session ends: by a message of kind END, or by its idle timeout."""
        raise _not_overridden("on_end")

    def list_rows(self, state: S) -> Iterable[tuple[object, object]]:
        """List the rows of a state as (key, value), for the proof that the rows of the table replay to it.

        Needed only with `key`, and only if the state is neither a dict nor a `MapState`. Annotate the result as
        `Iterable[tuple[K, V]]`.
        """
        raise _not_overridden("list_rows")

    def replay_columns(self) -> tuple[tuple[str, ...], str] | None:
        """`key` and `removed`; None if the rows do not replay to the state.

        Raises:
            DeclarationError: One of them is set without the other.
        """
        key = type(self).key
        removed = type(self).removed
        if not key and removed is None:
            return None
        if not key or removed is None:
            missing = "key" if not key else "removed"
            instead = "set both, or neither if the rows do not replay to the state"
            raise DeclarationError(f"{type(self).__name__}.{missing}", getattr(self, missing), "is not set", instead)
        return key, removed

    def removal_column(self) -> str | None:
        """The field of R that is null exactly in the row of a removed key; None without such a field."""
        return type(self).removed

    def pending(self, state: S) -> int:
        """Number of messages that are in the state and in no row yet.

        Called when a state is discarded that no snapshot replaces: the loss is then counted by messages. Must not
        change anything.
        """
        raise _not_overridden("pending")

    def migrate(self, old: Mapping[str, object]) -> S:
        """Convert a state written by an older release of the stream to the current type.

        Override it when the state type has changed incompatibly (a field renamed, retyped or without a default). It is
        called when such a session is touched, so keep it as long as any session of the old type may be left. It is
        pure: the same state may be migrated more than once.

        Args:
            old: The stored state: structs and tables as dicts, enums as their values, Decimal, UUID, date, time,
                timedelta, and datetime without a zone as text. A field with a default may be missing. A state that was
                neither struct nor table is under "state".

        Raises:
            Exception: Any error ends the run with `MigrationFailed`; no message is judged.
        """
        raise _not_overridden("migrate")


def is_overridden(transform: type, hook: str) -> bool:
    """Whether a transform class overrides a hook."""
    return getattr(transform, hook) is not getattr(Transform, hook)


def find_migration(transform: Transform[M, S, R]) -> Callable[[Mapping[str, object]], S] | None:
    """The transform's `migrate`; None if it is not overridden."""
    return transform.migrate if is_overridden(type(transform), "migrate") else None


def _not_overridden(hook: str) -> TypeError:
    return TypeError(f"Transform.{hook} has no default; lockstep calls it only if it is overridden")


def require_first_message(integrity: IntegrityClass, missing: str) -> None:
    """Refuse a class under which sessions wait for snapshots, for a transform that has none.

    Args:
        integrity: The class of the stream.
        missing: The transform without snapshots and its replacement for them, for the error.

    Raises:
        DeclarationError: A session would never start.
    """
    if not integrity.passes_unknown_sessions and integrity.session_start is not SessionStart.FIRST_MESSAGE:
        problem = f"waits for snapshots, and {missing}"
        right = "session_start=SessionStart.FIRST_MESSAGE"
        raise DeclarationError("Stream.integrity.session_start", integrity.session_start, problem, right)
