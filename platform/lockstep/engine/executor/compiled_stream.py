"""A declared stream made ready to run in a worker: bound functions, looked up once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import cast

import msgspec

from lockstep.declare.decoders.base import Registry
from lockstep.declare.options import EventTime
from lockstep.declare.stream import Stream
from lockstep.declare.transform import Transform, find_migration, is_overridden
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.verdict import Gate
from lockstep.model.record import Envelope, Record
from lockstep.state.codec import StateSchema
from lockstep.table.row_encoder import RowsBuilder


class Hooks(msgspec.Struct, frozen=True):
    """What a transform does beside opening and applying; None for what it does not.

    Attributes:
        watermark: See `Transform.watermark`, and so on.
    """

    watermark: Callable[[object, Record], int | None] | None = None
    deadline: Callable[[object], int | None] | None = None
    on_timer: Callable[[object, int], Iterable[msgspec.Struct]] | None = None
    on_late: Callable[[object, object, Record], Iterable[msgspec.Struct]] | None = None
    on_end: Callable[[object], Iterable[msgspec.Struct]] | None = None


def find_hooks(transform: Transform[object, object, msgspec.Struct]) -> Hooks:
    """The hooks that a transform overrides."""
    names = [name for name in Hooks.__struct_fields__ if is_overridden(type(transform), name)]
    return Hooks(**{name: getattr(transform, name) for name in names})


class CompiledStream(msgspec.Struct, frozen=True):
    """What the fold calls.

    Attributes:
        decode: A record's value to a typed message.
        envelope: The message's place.
        on_snapshot: A new state from a snapshot.
        on_update: A state and an update to rows.
        gate_for: The gate of a partition; see `IntegrityClass.gate_for`.
        hooks: What the transform does beside, where it does.
        event_time: How event time is treated.
        integrity: The class, for its verdicts on what the gate never sees.
        state: How states are encoded.
        rows: How rows become Arrow.
        row_type: What the transform must emit.
        message_bytes_max: Larger messages are undecodable.
        holes_max: A range with more holes ends early.
    """

    decode: Callable[[bytes], object]
    envelope: Callable[[object, Record], Envelope]
    on_snapshot: Callable[[object, Record], object]
    on_update: Callable[[object, object, Record], Iterable[msgspec.Struct]]
    gate_for: Callable[..., Gate]
    hooks: Hooks
    event_time: EventTime
    integrity: IntegrityClass
    state: StateSchema[object]
    rows: RowsBuilder
    row_type: type[msgspec.Struct]
    message_bytes_max: int
    holes_max: int

    @property
    def is_timed(self) -> bool:
        """Whether every message may move the watermark past something: else it is enough to see it by the chunk."""
        return self.integrity.is_timed or self.arms_timers or self.hooks.watermark is not None

    @property
    def arms_timers(self) -> bool:
        """Whether something may become due for a session."""
        idle = self.event_time.session_idle is not None
        return self.integrity.buffers_messages or self.hooks.deadline is not None or idle


@lru_cache(maxsize=8)
def compile_pickled(stream: bytes, registry: Registry | None = None) -> CompiledStream:
    """The program of a pickled declaration; kept in the worker, because building costs milliseconds."""
    declared = cast("Stream[object, object, msgspec.Struct]", pickle.loads(stream))  # noqa: S301  # our own driver's
    return compile_stream(declared, registry)


def compile_stream(stream: Stream[object, object, msgspec.Struct], registry: Registry | None = None) -> CompiledStream:
    """The program of a declaration, in an installation with this schema registry."""
    transform, types = stream.transform, stream.types
    return CompiledStream(
        decode=stream.decoder.connected(registry).build(types.message),
        envelope=transform.envelope,
        on_snapshot=transform.on_snapshot,
        on_update=transform.on_update,
        gate_for=stream.integrity.gate_for,
        hooks=find_hooks(transform),
        event_time=stream.event_time,
        integrity=stream.integrity,
        state=StateSchema(types.state, find_migration(transform)),
        rows=RowsBuilder(types.row),
        row_type=types.row,
        message_bytes_max=stream.limits.message_bytes,
        holes_max=stream.limits.holes,
    )
