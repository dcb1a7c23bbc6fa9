"""Samples of messages: only whole sessions, sent again in a form that the stream's gate accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from lockstep import (
    Envelope,
    InitialState,
    Kind,
    Linked,
    LogOnly,
    Once,
    Ordered,
    Record,
    SessionStart,
    Stream,
    Strict,
    Transform,
)
from lockstep.declare.stream import AnyStream
from lockstep.decoders import Bytes
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.features.rehearsal.load_plan import Laps
from lockstep.features.rehearsal.message_copy import CopiedMessage, choose_laps, keep_whole_sessions, name_lap_key
from lockstep.integrity.base import IntegrityClass
from lockstep.model.record import Link
from tests.support.adding_stream import Adding, Snapshot, Update, adding
from tests.support.feed import session, snapshot, update
from tests.support.window_folds import Prompt, Value, a_stream

if TYPE_CHECKING:
    from collections.abc import Iterable


class InPayload(Adding):
    """The session is not in the key."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        envelope = super().envelope(message, record)
        first = None if envelope.kind is Kind.SNAPSHOT else envelope.sequence
        link = Link(last=message.seq, first=first, previous=message.seq - 1)
        return msgspec.structs.replace(envelope, session="one", link=link, id=message.seq)


def in_payload(integrity: IntegrityClass) -> AnyStream:
    return Stream(name="copied", topics=adding("t").topics, transform=InPayload(), integrity=integrity)


def copies(key: str, *values: bytes | None) -> list[CopiedMessage]:
    return [CopiedMessage(key.encode(), value) for value in values]


def kept(stream: AnyStream, messages: list[CopiedMessage]) -> list[tuple[bytes | None, bytes | None]]:
    whole = keep_whole_sessions(compile_stream(stream), "t", messages)
    assert whole.left_out == len(messages) - len(whole.messages)
    return [(message.copied_key, message.copied_value) for message in whole.messages]


def laps_of(stream: AnyStream, messages: list[CopiedMessage]) -> Laps:
    return choose_laps(compile_stream(stream), [("t", messages)])


def test_a_session_begins_with_its_snapshot_and_ends_before_its_first_fault() -> None:
    whole = session(2)
    started = [update(7, a=1), snapshot(8, a=1), update(9, a=1)]
    broken = [snapshot(1, a=1), update(2, a=1), update(4, a=1), update(5, a=1)]
    messages = [*copies("w", *whole), *copies("s", *started), *copies("b", *broken), *copies("g", b"garbage")]
    expected = [*copies("w", *whole), *copies("s", *started[1:]), *copies("b", *broken[:2])]
    assert kept(adding("t"), messages) == [(each.copied_key, each.copied_value) for each in expected]


class Size(msgspec.Struct):
    """The bytes of a value."""

    size: int


class Sizes(Transform[bytes | None, Size, Size]):
    """A record without a value ends the session of its key."""

    def envelope(self, message: bytes | None, record: Record) -> Envelope:
        return Envelope(record.key_text, Kind.END if message is None else Kind.UPDATE)

    def on_snapshot(self, message: bytes | None, record: Record, previous: Size | None) -> InitialState[Size, Size]:
        return InitialState(Size(0))

    def on_update(self, state: Size, message: bytes | None, record: Record) -> Iterable[Size]:
        yield Size(len(message or b""))


def test_a_tombstone_is_a_message_where_the_message_type_has_none() -> None:
    messages = copies("s", *session(2), None)
    assert kept(adding("t"), messages) == [(b"s", value) for value in session(2)]
    integrity = Ordered(session_start=SessionStart.FIRST_MESSAGE)
    sizes = Stream(name="copied", topics=adding("t").topics, transform=Sizes(), decoder=Bytes(), integrity=integrity)
    assert kept(sizes, messages) == [(b"s", value) for value in [*session(2), None]]
    assert laps_of(sizes, messages) is Laps.NEW_KEYS


def test_sessions_of_the_key_get_new_keys() -> None:
    assert laps_of(adding("t"), copies("k", *session(3))) is Laps.NEW_KEYS
    assert [name_lap_key(b"k", 0), name_lap_key(b"k", 2), name_lap_key(None, 2)] == [b"k", b"k~2", None]


def test_sessions_that_are_elsewhere_are_repeated_where_the_class_accepts_that() -> None:
    assert laps_of(in_payload(Strict(evidence=LogOnly())), copies("k", *session(3))) is Laps.SAME_SESSIONS


def test_event_times_whose_timers_would_be_due_at_once_are_sent_once() -> None:
    ordered = Ordered(session_start=SessionStart.FIRST_MESSAGE)
    messages = [CopiedMessage(b"k", msgspec.json.encode(Value(t=second, v=1))) for second in range(100)]
    windows = cast("AnyStream", a_stream(Prompt(), ordered))
    assert laps_of(windows, messages) is Laps.ONCE
    steady = [CopiedMessage(b"k", msgspec.json.encode(Value(t=1, v=1)))] * 3
    assert laps_of(windows, steady) is Laps.NEW_KEYS


def test_what_the_class_refuses_or_drops_the_second_time_is_sent_once() -> None:
    assert laps_of(in_payload(Strict(evidence=Linked())), copies("k", *session(3))) is Laps.ONCE
    assert laps_of(in_payload(Once(keep_ids=10)), copies("k", *session(3))) is Laps.ONCE
