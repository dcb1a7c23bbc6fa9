"""Messages for gates that read more than envelopes: content, time, offset."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep import Envelope, Kind, Record
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.gate_states import GateState
from lockstep.integrity.verdict import AnyGate, Judgement


@dataclass(frozen=True)
class Content:
    """A client's message with the given content."""

    content: bytes

    def key(self) -> bytes | None:
        return b"s"

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> list[tuple[str, bytes]] | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)

    def leader_epoch(self) -> int | None:
        return None


@dataclass(frozen=True)
class Sent:
    """A message: its kind, number, second of event time, content, and whether it restarts the numbers."""

    kind: Kind
    number: int | None
    second: int
    content: bytes = b""
    restarts_sequence: bool = False

    def at(self, offset: int) -> tuple[Envelope, Record]:
        event_time_us = self.second * 1_000_000
        envelope = Envelope(
            "s", self.kind, sequence=self.number, event_time_us=event_time_us, restarts_sequence=self.restarts_sequence
        )
        content = self.content or f"{self.kind.value} {self.number} {self.second}".encode()
        return envelope, Record(topic="t", topic_id="id", partition=0, offset=offset, source=Content(content))


def snapshot(number: int | None, second: int, content: bytes = b"") -> Sent:
    return Sent(Kind.SNAPSHOT, number, second, content)


def anew(number: int | None, second: int, content: bytes = b"") -> Sent:
    """Make a snapshot that restarts the producer's numbers."""
    return Sent(Kind.SNAPSHOT, number, second, content, restarts_sequence=True)


def update(number: int | None, second: int, content: bytes = b"") -> Sent:
    return Sent(Kind.UPDATE, number, second, content)


KEPT = (Judgement.ACCEPT, Judgement.BUFFER, Judgement.SUSPEND)
Told = tuple[str, str, tuple[int, ...]]
"""Judgement, cause, and the offsets that follow."""


def judged(gate: AnyGate, time: PartitionTime, messages: list[Sent]) -> list[Told]:
    """Return a gate's judgements of messages at offsets from 0, driven as the engine drives it."""
    state: GateState = None
    told: list[Told] = []
    for offset, sent in enumerate(messages):
        envelope, record = sent.at(offset)
        time.advance(envelope.event_time_us or 0)
        while (due_us := gate.due_us(state)) is not None and due_us <= time.watermark_us:
            state, verdict = gate.release_due(state, due_us)
            told.append(("due", verdict.cause, verdict.after))
        after, verdict = gate.check(state, envelope, record)
        if verdict.judgement in KEPT:
            state = after
        told.append((verdict.judgement.value, verdict.cause, verdict.before + verdict.after))
    return told
