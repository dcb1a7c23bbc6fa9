"""Envelopes and a record for gates, without Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep import Envelope, Kind, Link, Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.integrity.gate_states import GateState
    from lockstep.integrity.verdict import AnyGate, Verdict


class NoMessage:
    """A client's message without content, for gates that read envelopes only."""

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return None

    def headers(self) -> list[tuple[str, bytes]] | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (0, 0)

    def leader_epoch(self) -> int | None:
        return None


RECORD = Record(topic="t", topic_id="id", partition=0, offset=7, source=NoMessage())


def at_offset(offset: int) -> Record:
    """Make a record at an offset."""
    return Record(topic="t", topic_id="id", partition=0, offset=offset, source=NoMessage())


def snapshot(number: int | None = None, *, link: Link | None = None) -> Envelope:
    return Envelope("s", Kind.SNAPSHOT, sequence=number, link=link)


def update(number: int | None = None, *, link: Link | None = None) -> Envelope:
    return Envelope("s", Kind.UPDATE, sequence=number, link=link)


def end(number: int | None = None, *, link: Link | None = None) -> Envelope:
    return Envelope("s", Kind.END, sequence=number, link=link)


def refused_at(gate: AnyGate, envelopes: Iterable[Envelope]) -> tuple[int, Verdict] | None:
    """Return the place and verdict of a gate's first refusal.

    As in the engine, only accepted messages change the state.
    """
    from lockstep.integrity.verdict import Judgement

    state: GateState = None
    for number, envelope in enumerate(envelopes):
        after, verdict = gate.check(state, envelope, RECORD)
        if verdict.judgement is not Judgement.ACCEPT:
            return number, verdict
        state = after
    return None
