"""What a user declared, ready to be called: the only code that the proof shares with the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from lockstep.declare.decoders.registry import Registry
from lockstep.declare.place import Place
from lockstep.declare.record import Record
from lockstep.declare.stream import Stream
from lockstep.declare.transform import Transform, migration_of
from lockstep.state.schema import StateSchema

AnyStream = Stream[Any, Any, Any]
"""A stream whose types do not matter here."""


class Declared(msgspec.Struct, frozen=True):
    """A declaration's functions.

    Attributes:
        decode: A value to a message; raises on what is none.
        place: A message's place.
        open: A snapshot to a state.
        apply: A state and an update to rows.
        on_end: A state to its last rows; None where there are none.
        row_type: What the transform emits.
        state: How states are stored.
        message_bytes_max: Larger values are no messages.
    """

    decode: Callable[[bytes], object]
    place: Callable[[object, Record], Place]
    open: Callable[[object, Record], object]
    apply: Callable[[object, object, Record], Iterable[msgspec.Struct]]
    on_end: Callable[[object], Iterable[msgspec.Struct]] | None
    row_type: type[msgspec.Struct]
    state: StateSchema[object]
    message_bytes_max: int


def declared(stream: AnyStream, registry: Registry | None) -> Declared:
    """The functions of a stream, in an installation with this schema registry."""
    types, transform = stream.types, stream.transform
    return Declared(
        decode=stream.decoder.connected(registry).build(types.message),
        place=transform.place,
        open=transform.open,
        apply=transform.apply,
        on_end=transform.on_end if _has_own(transform, "on_end") else None,
        row_type=types.row,
        state=StateSchema(types.state, migration_of(transform)),
        message_bytes_max=stream.limits.message_bytes,
    )


def without_a_proof(stream: AnyStream) -> str | None:
    """What of a declaration no proof follows yet; None where there is nothing."""
    hooks = [hook for hook in ("watermark", "deadline", "on_timer", "on_late") if _has_own(stream.transform, hook)]
    if hooks:
        return f"a transform with {', '.join(hooks)}"
    return "the end of sessions that fall silent" if stream.event_time.session_idle is not None else None


def _has_own(transform: object, hook: str) -> bool:
    return getattr(type(transform), hook) is not getattr(Transform, hook)
