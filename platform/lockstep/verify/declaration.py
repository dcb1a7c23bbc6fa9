"""The functions of a declaration, ready to call; docs/verify.md lists the code that the proof and the engine share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import msgspec

from lockstep.declare.decoders.base import Registry, has_null
from lockstep.declare.decoders.schema_registry import build_decode
from lockstep.declare.options import EventTime
from lockstep.declare.replay import ReplayKey
from lockstep.declare.stream import Stream
from lockstep.declare.transform import InitialState, Transform, find_migration
from lockstep.model.aliases import may_share_objects
from lockstep.model.record import Envelope, Record
from lockstep.state.codec import StateNotOfItsType, StateSchema
from lockstep.verify.inline_rules import read_inline_rules
from lockstep.verify.stored_form import is_storable
from lockstep.verify.table_difference import TableDifference, find_table_difference

AnyStream = Stream[Any, Any, Any]
"""A stream whose types do not matter here."""


class Declared(msgspec.Struct, frozen=True):
    """A declaration's functions.

    Attributes:
        decode: A value to a message; raises if it is none. Also takes the headers if `reads_headers`.
        envelope: A message to its envelope.
        on_snapshot: A snapshot, and the state that it replaces, to a state.
        on_update: A state and an update to rows.
        on_update_unchecked: The same without the inline rules, for rows that do not count.
        on_end: A state to its last rows; None without that hook. The same holds for the hooks that follow.
        watermark: A message to the event time up to which its partition is complete.
        deadline: A state to the event time of its timer.
        on_timer: A state and that time to rows.
        on_late: A state and a late message to rows.
        replay_key: The columns by which rows replay to states; None if they do not.
        difference: The rows of a replaced table; None for a fold by hand.
        event_time: The event-time options.
        row_type: The type of emitted rows.
        state: The codec of stored states.
        whole: The codec of states as the fold has them: the table of a ready fold is a dict there.
        state_type: The type of states.
        message_bytes_max: Larger values are refused.
        list_rows: A state to its rows, as (key, value); only with `replay_key`.
        takes_null: A record without a value is the message None.
        reads_headers: The decoder reads the headers.
    """

    decode: Callable[..., object]
    envelope: Callable[[object, Record], Envelope]
    on_snapshot: Callable[[object, Record, object], object]
    on_update: Callable[[object, object, Record], Iterable[msgspec.Struct]]
    on_update_unchecked: Callable[[object, object, Record], Iterable[msgspec.Struct]]
    event_time: EventTime
    row_type: type[msgspec.Struct]
    state: StateSchema[object]
    whole: StateSchema[object]
    state_type: object
    message_bytes_max: int
    list_rows: Callable[[object], Iterable[tuple[object, object]]]
    takes_null: bool = False
    reads_headers: bool = False
    on_end: Callable[[object], Iterable[msgspec.Struct]] | None = None
    watermark: Callable[[object, Record], int | None] | None = None
    deadline: Callable[[object], int | None] | None = None
    on_timer: Callable[[object, int], Iterable[msgspec.Struct]] | None = None
    on_late: Callable[[object, object, Record], Iterable[msgspec.Struct]] | None = None
    replay_key: ReplayKey | None = None
    difference: TableDifference | None = None
    pending: Callable[[object], int] | None = None

    @property
    def idle_us(self) -> int | None:
        """Idle timeout of a session; None without one."""
        return _microseconds(self.event_time.session_idle)

    @property
    def advance_us(self) -> int | None:
        """Idle time of a partition after which the clock advances its watermark; None without it."""
        return _microseconds(self.event_time.idle_advance)

    @property
    def skew_us(self) -> int:
        """How far event times may be ahead of the planning time."""
        return self.event_time.max_skew // timedelta(microseconds=1)

    def is_storable(self, state: object) -> bool:
        """Whether a state is loaded as it was stored."""
        return is_storable(state, self.state_type)

    def saved(self, state: object) -> bytes | object:
        """Save a copy of a state; a deep copy if it cannot be stored, since a later message of its batch changed it."""
        try:
            if self.whole.tables:
                return copy.deepcopy(state)
            return self.whole.encode("", None, state)
        except StateNotOfItsType:
            return copy.deepcopy(state)

    def recovered(self, saved: bytes | object) -> object:
        """The state of a saved copy, as a new object."""
        if isinstance(saved, bytes):
            return self.whole.decode("", saved)[1]
        return copy.deepcopy(saved)


def find_declaration(stream: AnyStream, registry: Registry | None) -> Declared:
    """The functions of a stream, with the installation's schema registry."""
    return _declare(stream, build_decode(stream.decoder, registry, stream.types.message))


def find_state_declaration(stream: AnyStream) -> Declared:
    """The functions of a stream for readers of its states, which read no message."""

    def decode(*_: object) -> object:
        raise AssertionError(f"no message of {stream.name} is read here")

    return _declare(stream, decode)


def _declare(stream: AnyStream, decode: Callable[..., object]) -> Declared:
    types = stream.types
    transform = stream.transform
    rules = read_inline_rules(stream.rules, transform.removal_column())
    hooks: dict[str, Any] = {name: getattr(transform, name) for name in _HOOKS if _has_own(transform, name)}
    hooks |= {name: rules.guard(hooks[name]) for name in _EMITTING if name in hooks}
    declared = Declared(
        decode=decode,
        envelope=transform.envelope,
        on_snapshot=rules.guard_snapshot(transform.on_snapshot),
        on_update=rules.guard(transform.on_update),
        on_update_unchecked=transform.on_update,
        **hooks,
        row_type=types.row,
        state=StateSchema(types.stored, find_migration(transform)),
        whole=StateSchema(types.state),
        state_type=types.state,
        message_bytes_max=stream.limits.message_bytes,
        takes_null=has_null(types.message),
        reads_headers=stream.decoder.reads_headers,
        event_time=stream.event_time,
        replay_key=stream.replay_key,
        difference=find_table_difference(transform, rules),
        list_rows=transform.list_rows if _has_own(transform, "list_rows") else _list_items,
    )
    if may_share_objects(types.state, types.row):
        return _with_own_rows(declared)
    return declared


def _with_own_rows(declared: Declared) -> Declared:
    """A declaration whose rows stay as they were emitted, even if the state changes later."""
    hooks = {name: getattr(declared, name) for name in ("on_update", *_EMITTING)}
    copied = {name: _copying(hook) for name, hook in hooks.items() if hook is not None}

    def on_snapshot(*arguments: Any) -> object:
        opened: Any = declared.on_snapshot(*arguments)
        if not isinstance(opened, InitialState):
            return opened
        rows = copy.deepcopy(list(opened.rows))
        if rows:
            return InitialState(opened.state, rows)
        return opened

    difference = declared.difference
    if difference is not None:
        emit = difference.emit
        difference = msgspec.structs.replace(difference, emit=lambda *arguments: copy.deepcopy(emit(*arguments)))
    return msgspec.structs.replace(declared, on_snapshot=on_snapshot, difference=difference, **copied)


def _copying(hook: Callable[..., Iterable[msgspec.Struct]]) -> Callable[..., Iterable[msgspec.Struct]]:
    return lambda *arguments: [copy.deepcopy(row) for row in hook(*arguments)]


_EMITTING = ("on_end", "on_timer", "on_late")
_HOOKS = (*_EMITTING, "watermark", "deadline", "pending")


def _list_items(state: object) -> Iterable[tuple[object, object]]:
    """The rows of a state that is a table itself."""
    return cast("Mapping[object, object]", state).items()


def _has_own(transform: object, hook: str) -> bool:
    return getattr(type(transform), hook) is not getattr(Transform, hook)


def _microseconds(duration: timedelta | None) -> int | None:
    if duration is None:
        return None
    return duration // timedelta(microseconds=1)
