"""Samples of real messages that can be sent again: whole sessions, in order, legal in every lap. Pure.

A payload cannot be rewritten for an arbitrary decoder. Three ways are tried, in the order of `Laps`: other keys,
if the transform takes its sessions from them; the same sessions from their snapshots on, if the class accepts
that; a single lap otherwise. Which one holds is decided by the stream's own `envelope` and gate on two laps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.fold import decode_message
from lockstep.features.rehearsal.load_plan import Laps
from lockstep.integrity.base import PartitionTime, find_event_time
from lockstep.integrity.gate_states import GateState
from lockstep.integrity.verdict import Judgement, Verdict
from lockstep.model.record import Envelope, Kind, Record, TimestampType


class CopiedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message to send again; a `KafkaMessage` for the stream's own functions.

    Attributes:
        copied_key: Its key.
        copied_value: Its value; None for a tombstone.
        copied_headers: Its headers.
    """

    copied_key: bytes | None
    copied_value: bytes | None
    copied_headers: list[tuple[str, bytes | None]] = []

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.copied_headers)
        return len(self.copied_key or b"") + len(self.copied_value or b"") + headers


class SentCopy(msgspec.Struct, frozen=True):
    """A copy as the stream will see it.

    Attributes:
        message: The copied message.
        lap_key: Its key in this lap.
        at_ms: Kafka's timestamp: that of its sending, so that it rises from copy to copy.
    """

    message: CopiedMessage
    lap_key: bytes | None
    at_ms: int

    def key(self) -> bytes | None:
        """The key of this lap."""
        return self.lap_key

    def value(self) -> bytes | None:
        """The value."""
        return self.message.copied_value

    def headers(self) -> object:
        """The headers."""
        return self.message.copied_headers

    def timestamp(self) -> tuple[int, int]:
        """The time of sending."""
        return TimestampType.CREATE_TIME.value, self.at_ms

    def leader_epoch(self) -> int | None:
        """None: it was not read from a broker."""
        return None


def name_lap_key(key: bytes | None, lap: int) -> bytes | None:
    """The key of a message in a lap; the first lap is unchanged."""
    return key if key is None or not lap else b"%b~%d" % (key, lap)


class WholeSessions(msgspec.Struct, frozen=True):
    """The part of some messages that a new table can read without a fault.

    Attributes:
        messages: Each session from its first snapshot on, up to its first fault, in order.
        left_out: Messages left out.
    """

    messages: tuple[CopiedMessage, ...]
    left_out: int


class JudgedCopy(msgspec.Struct, frozen=True):
    """A message as the stream's own functions see it.

    Attributes:
        envelope: Its envelope.
        verdict: The verdict of the gate.
        behind_us: How far its event time is behind the watermark.
    """

    envelope: Envelope
    verdict: Verdict
    behind_us: int


def keep_whole_sessions(compiled: CompiledStream, topic: str, messages: Sequence[CopiedMessage]) -> WholeSessions:
    """Cut messages of one partition, read from anywhere in its log, to sessions that are whole from their beginning.

    Args:
        compiled: The compiled stream.
        topic: Name of the topic, for the transform.
        messages: The messages, in order.
    """
    kept: list[CopiedMessage] = []
    broken: set[str] = set()
    for message, judged in zip(messages, _judge_laps(compiled, topic, messages, laps=1, joined=True), strict=True):
        if judged is None:
            continue  # undecodable: which sessions it belongs to is unknown
        judgement = judged.verdict.judgement
        session = judged.envelope.session
        if judgement in _BROKEN:
            broken.add(session)
        if judgement in _READ and session not in broken:
            kept.append(message)
    return WholeSessions(tuple(kept), len(messages) - len(kept))


def choose_laps(compiled: CompiledStream, samples: Sequence[tuple[str, Sequence[CopiedMessage]]]) -> Laps:
    """The first way of sending these samples twice in which the second lap is judged as the first.

    Args:
        compiled: The compiled stream.
        samples: Topic and messages of each partition, whole sessions.
    """
    for laps, renames in ((Laps.NEW_KEYS, True), (Laps.SAME_SESSIONS, False)):
        if all(_is_repeatable(compiled, topic, messages, renames=renames) for topic, messages in samples):
            return laps
    return Laps.ONCE


_BROKEN = (Judgement.VIOLATION, Judgement.SUSPEND, Judgement.QUARANTINE, Judgement.GAP)
_READ = (Judgement.ACCEPT, Judgement.BUFFER, Judgement.DUPLICATE, Judgement.LATE)


def _is_repeatable(compiled: CompiledStream, topic: str, messages: Sequence[CopiedMessage], *, renames: bool) -> bool:
    judged = list(_judge_laps(compiled, topic, messages, laps=2, renames=renames))
    first = judged[: len(messages)]
    second = judged[len(messages) :]
    sessions: dict[str, str] = {}
    behind_us = max((each.behind_us for each in first if each is not None), default=0)
    for before, after in zip(first, second, strict=True):
        if before is None or after is None:
            return False
        envelope = before.envelope
        again = after.envelope
        if compiled.arms_timers and after.behind_us > behind_us:
            return False  # its timers would be due at once
        if (
            before.verdict.judgement is not after.verdict.judgement
            or sessions.setdefault(envelope.session, again.session) != again.session
        ):
            return False
        same = msgspec.structs.replace(again, session=envelope.session, event_time_us=envelope.event_time_us)
        if same != envelope:
            return False
    if not renames:
        return all(old == new for old, new in sessions.items())
    return len(set(sessions.values())) == len(sessions) and not set(sessions) & set(sessions.values())


def _judge_laps(
    compiled: CompiledStream,
    topic: str,
    messages: Sequence[CopiedMessage],
    *,
    laps: int,
    renames: bool = False,
    joined: bool = False,
) -> Iterator[JudgedCopy | None]:
    """Envelope and verdict of each message of each lap; None for one that has no envelope."""
    clock = PartitionTime()
    gate = compiled.gate_for(0, clock, spread=True, joined=joined)
    states: dict[str, GateState] = {}
    for lap in range(laps):
        for number, message in enumerate(messages, lap * len(messages)):
            copy = SentCopy(message, name_lap_key(message.copied_key, lap) if renames else message.copied_key, number)
            record = Record(topic, "copy", 0, number, copy)
            envelope = _extract(compiled.envelope, compiled, record)
            if envelope is None:
                yield None
                continue
            time_us = find_event_time(envelope, record)
            clock.advance(time_us)
            yield JudgedCopy(envelope, _check(gate.check, states, envelope, record), clock.watermark_us - time_us)


def _check(
    check: Callable[[GateState, Envelope, Record], tuple[GateState, Verdict]],
    states: dict[str, GateState],
    envelope: Envelope,
    record: Record,
) -> Verdict:
    if envelope.kind is Kind.SKIP:
        return Verdict(Judgement.ACCEPT, "skipped by the transform")
    after, verdict = check(states.get(envelope.session), envelope, record)
    if verdict.judgement in {Judgement.ACCEPT, Judgement.BUFFER, Judgement.SUSPEND, Judgement.QUARANTINE}:
        states[envelope.session] = after
    if envelope.kind is Kind.END and verdict.judgement is Judgement.ACCEPT:
        states.pop(envelope.session, None)
    return verdict


def _extract(
    envelope: Callable[[object, Record], Envelope], compiled: CompiledStream, record: Record
) -> Envelope | None:
    try:
        return envelope(decode_message(record.source, compiled), record)
    except Exception:  # noqa: BLE001  # the user's decoder and `envelope`: on any error of theirs, it cannot be copied
        return None
