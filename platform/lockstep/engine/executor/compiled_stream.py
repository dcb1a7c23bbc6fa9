"""A declared stream compiled for a worker: bound functions, resolved once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from lockstep.declare.decoders.base import Registry, has_null
from lockstep.declare.decoders.schema_registry import build_decode
from lockstep.declare.lookup import Lookup, without_lookups
from lockstep.declare.options import EventTime
from lockstep.declare.rules import InlineRule, check_first_rows, check_rows, find_inline_rules
from lockstep.declare.stream import Stream
from lockstep.declare.transform import Transform, find_migration, is_overridden
from lockstep.engine.executor.column_program import ColumnProgram, compile_columns
from lockstep.engine.executor.difference import Replacement, find_replacement
from lockstep.engine.executor.plain_updates import PlainUpdates, find_plain_updates
from lockstep.engine.executor.row_copies import copy_first_rows, copy_replacement_rows, copy_rows
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.verdict import AnyGate
from lockstep.model.aliases import may_share_objects
from lockstep.model.record import Envelope, KafkaMessage, Record, read_headers
from lockstep.state.codec import StateSchema
from lockstep.table.row_encoder import RowsBuilder


class Hooks(msgspec.Struct, frozen=True):
    """Optional hooks of a transform; None for those it does not override.

    Attributes:
        watermark: See `Transform.watermark`, and so on.
    """

    watermark: Callable[[object, Record], int | None] | None = None
    deadline: Callable[[object], int | None] | None = None
    on_timer: Callable[[object, int], Iterable[msgspec.Struct]] | None = None
    on_late: Callable[[object, object, Record], Iterable[msgspec.Struct]] | None = None
    on_end: Callable[[object], Iterable[msgspec.Struct]] | None = None
    pending: Callable[[object], int] | None = None


STREAMS_MAX = 256
"""Compiled streams kept by a worker: it has the tasks of all streams of its driver's process, and its decoded sessions
are lost with the compiled stream."""
EMITTING = ("on_timer", "on_late", "on_end")
"""The hooks that emit rows."""


def find_hooks(
    transform: Transform[object, object, msgspec.Struct], rules: Sequence[InlineRule], *, copies_rows: bool = False
) -> Hooks:
    """The hooks that a transform overrides; those that emit rows check them, and copy them if necessary."""
    names = [name for name in Hooks.__struct_fields__ if is_overridden(type(transform), name)]
    hooks: dict[str, Any] = {name: getattr(transform, name) for name in names}
    for name in EMITTING:
        if name in hooks:
            hooks[name] = copy_rows(check_rows(rules, hooks[name]), copies=copies_rows)
    return Hooks(**hooks)


class CompiledStream(msgspec.Struct, frozen=True):
    """Functions and settings that the fold uses.

    Attributes:
        decode: Decodes a record's value to a typed message; also takes the headers if `reads_headers`.
        envelope: Extracts the envelope of a message.
        on_snapshot: Creates a state from a snapshot, its record and the state that it replaces.
        on_update: Applies an update to a state; returns rows.
        gate_for: Makes the gate of a partition; see `IntegrityClass.gate_for`.
        hooks: The optional hooks that the transform overrides.
        event_time: Event-time settings.
        integrity: The class, for verdicts on messages that never reach the gate.
        state: State codec.
        rows: Row encoder.
        row_type: Row type that the transform must emit.
        message_bytes_max: Larger messages are undecodable.
        takes_null: A record without a value is the message None; otherwise it is undecodable.
        replacement: The rows of a replaced table; None for a fold by hand, which emits its own.
        reads_headers: The decoder reads the headers.
        columns: A `ColumnFold` for chunks; None where messages are folded one by one.
        plain_updates: The updates that the extension folds; None if it folds none.
        lookups: The lookup tables that the transform reads.
        examines_states: Each state is examined after each message, as a test does.
        has_key_sessions: The session of each message is its key.
    """

    decode: Callable[..., object]
    envelope: Callable[[object, Record], Envelope]
    on_snapshot: Callable[[object, Record, object], object]
    on_update: Callable[[object, object, Record], Iterable[msgspec.Struct]]
    gate_for: Callable[..., AnyGate]
    hooks: Hooks
    event_time: EventTime
    integrity: IntegrityClass
    state: StateSchema[object]
    rows: RowsBuilder
    row_type: type[msgspec.Struct]
    message_bytes_max: int
    takes_null: bool = False
    replacement: Replacement | None = None
    reads_headers: bool = False
    columns: ColumnProgram | None = None
    plain_updates: PlainUpdates | None = None
    lookups: tuple[Lookup[Any], ...] = ()
    examines_states: bool = False
    has_key_sessions: bool = False

    @property
    def uses_extension(self) -> bool:
        """Whether `lockstep-native` encodes its rows or folds its chunks."""
        makes_table = self.columns is not None and self.columns.make_table is not None
        return self.rows.is_native or makes_table or self.plain_updates is not None

    def without_extension(self) -> CompiledStream:
        """The same stream without `lockstep-native`."""
        columns = self.columns
        if columns is not None:
            columns = msgspec.structs.replace(columns, make_table=None)
        rows = RowsBuilder(self.row_type, native=False)
        return msgspec.structs.replace(self, rows=rows, columns=columns, plain_updates=None)

    def decode_again(self, source: KafkaMessage) -> object:
        """The message of a record that was decoded before."""
        value = source.value()
        if value is None:
            return None
        return self.decode_with_headers(value, source)

    def decode_with_headers(self, value: bytes, source: KafkaMessage) -> object:
        """The message of a value, with the headers of its record if the decoder reads them."""
        if self.reads_headers:
            return self.decode(value, read_headers(source))
        return self.decode(value)

    @property
    def is_timed(self) -> bool:
        """Whether every message may advance the watermark past something: otherwise one check per chunk is enough."""
        return self.integrity.is_timed or self.arms_timers or self.hooks.watermark is not None

    @property
    def arms_timers(self) -> bool:
        """Whether a session can have timers."""
        idle = self.event_time.session_idle is not None
        return self.integrity.buffers_messages or self.hooks.deadline is not None or idle


@lru_cache(maxsize=STREAMS_MAX)
def compile_pickled(stream: bytes, registry: Registry | None = None) -> CompiledStream:
    """The compiled stream of a pickled declaration; cached in the worker, because building costs milliseconds."""
    declared = cast("Stream[object, object, msgspec.Struct]", pickle.loads(stream))  # noqa: S301  # our own driver's
    return compile_stream(declared, registry)


def compile_stream(stream: Stream[object, object, msgspec.Struct], registry: Registry | None = None) -> CompiledStream:
    """The compiled stream of a declaration, in an installation with this schema registry."""
    transform = stream.transform
    types = stream.types
    rules = find_inline_rules(stream.rules, transform.removal_column())
    rows = RowsBuilder(types.row)
    copies = may_share_objects(types.state, types.row)
    hooks = find_hooks(transform, rules, copies_rows=copies)
    envelope = transform.envelope
    if stream.lookups:  # a hook that decides on order or time must not depend on the version of a table
        hooks = _refuse_lookups(hooks)
        envelope = without_lookups(envelope)
    decode = build_decode(stream.decoder, registry, types.message)
    on_update = copy_rows(check_rows(rules, transform.on_update), copies=copies)
    return CompiledStream(
        decode=decode,
        envelope=envelope,
        on_snapshot=copy_first_rows(check_first_rows(rules, transform.on_snapshot), copies=copies),
        on_update=on_update,
        gate_for=stream.integrity.gate_for,
        hooks=hooks,
        event_time=stream.event_time,
        integrity=stream.integrity,
        state=StateSchema(types.stored, find_migration(transform), stream.integrity.buffer),
        rows=rows,
        row_type=types.row,
        message_bytes_max=stream.limits.message_bytes,
        takes_null=has_null(types.message),
        replacement=copy_replacement_rows(find_replacement(transform, tuple(rules)), copies=copies),
        reads_headers=stream.decoder.reads_headers,
        columns=None if rules else compile_columns(stream, rows.schema),  # rules check each row when it is emitted
        plain_updates=find_plain_updates(stream, decode, on_update),
        lookups=tuple(stream.lookups),
        has_key_sessions=_has_key_sessions(type(transform)),
    )


def _has_key_sessions(transform: type[Transform[Any, Any, Any]]) -> bool:
    """Whether the declaration tells that the session is the key."""
    if is_overridden(transform, "envelope"):
        return False
    declared = transform.envelope_fields
    return declared is not None and declared.session is None


def _refuse_lookups(hooks: Hooks) -> Hooks:
    """Let the hooks that compute times read no lookup."""
    timing = {name: getattr(hooks, name) for name in ("watermark", "deadline", "pending")}
    refused = {name: without_lookups(hook) for name, hook in timing.items() if hook is not None}
    return msgspec.structs.replace(hooks, **refused)
