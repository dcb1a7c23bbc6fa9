"""Holds messages back and releases them in the producer's order. Pure.

By number, where the producer numbers its messages: the next number passes, a later one waits until what is
missing has come, or until the watermark is `lateness` beyond its own time; then it is released, and the gap is
counted. By event time otherwise: each message waits until the watermark is `lateness` beyond it.
"""

from __future__ import annotations

from bisect import insort
from typing import NotRequired, TypedDict, cast

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.integrity.numbers import out_of_range
from lockstep.integrity.recent import Recent, met_before, remember
from lockstep.integrity.time import PartitionTime, absurd, late, time_of
from lockstep.integrity.verdict import ACCEPT, Gate, GateState, Judgement, Verdict, unknown_session, violation

HELD_MAX = 10_000
"""Messages of one session that wait at once; more are taken for a bound that never passes. Each costs some 30
bytes in the state of its session, which is written again with every batch that touches it."""

Waiting = list[int]
"""[number or event time, offset, watermark from which it is not held any longer]."""


class Order(TypedDict):
    """What is remembered of a session: the last number ("n") or time ("t") released, what waits, what was met."""

    h: list[Waiting]
    w: Recent
    n: NotRequired[int]
    t: NotRequired[int]


class Reordering(Gate):
    """See the module."""

    def __init__(self, lateness_us: int, time: PartitionTime) -> None:
        self._lateness_us, self._time = lateness_us, time

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        happened_us, number = time_of(place, record), place.sequence
        if self._time.is_absurd(happened_us):
            return state, absurd(happened_us)
        if number is not None and (refused := out_of_range(number)) is not None:
            return state, refused
        if state is None:
            return self._opened(place, record, happened_us)
        order = cast("Order", state)
        if ("n" in order) is (number is None):
            return state, violation("no evidence", "messages of a session all numbered, or none", f"sequence={number}")
        if number is None:
            return self._by_time(order, record, happened_us)
        return self._by_number(order, place, record, happened_us)

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`."""
        return state if isinstance(state, dict) and "h" in state else None

    def held(self, state: GateState) -> tuple[int, ...]:
        """See `Gate.held`."""
        return () if state is None else _offsets(cast("Order", state)["h"])

    def due_us(self, state: GateState) -> int | None:
        """See `Gate.due_us`."""
        return None if state is None else min((each[2] for each in cast("Order", state)["h"]), default=None)

    def due(self, state: GateState) -> tuple[GateState, Verdict]:
        """See `Gate.due`: all up to the last one that is due, whatever is missing between them."""
        order = cast("Order", state)
        last_due = max((at for at, each in enumerate(order["h"]) if each[2] <= self._time.watermark_us), default=-1)
        if last_due < 0:
            return state, ACCEPT
        ready = last_due + 1
        if "n" in order:
            ready += _in_a_row(order["h"][ready:], order["h"][last_due][0])
        return _released(order, ready)

    def _opened(self, place: Place, record: Record, happened_us: int) -> tuple[GateState, Verdict]:
        if place.kind is not Kind.SNAPSHOT:
            return None, unknown_session(place, Judgement.SUSPEND)
        recent = self._remember({}, place.sequence, record, happened_us)
        if place.sequence is None:
            return _state(Order(h=[], w=recent, t=happened_us)), ACCEPT
        return _state(Order(h=[], w=recent, n=place.sequence)), ACCEPT

    def _by_number(self, order: Order, place: Place, record: Record, happened_us: int) -> tuple[GateState, Verdict]:
        number, last, held = cast("int", place.sequence), order.get("n", 0), order["h"]
        if place.kind is Kind.SNAPSHOT and place.resets:
            recent = self._remember({}, number, record, happened_us)
            return _state(Order(h=[], w=recent, n=number)), Verdict(Judgement.ACCEPT, before=_offsets(held))
        if place.kind is Kind.SNAPSHOT and number == last:  # real feeds send it with the number of the last update
            return _state(order), ACCEPT
        if (met := met_before(order["w"], number, record)) is not None:
            return _state(order), met
        if number <= last:
            return _state(order), Verdict(Judgement.LATE, "late", f"number {last + 1} or later", str(number))
        recent = self._remember(order["w"], number, record, happened_us)
        if number > last + 1:
            return self._waiting(Order(h=held, w=recent, n=last), number, record, happened_us)
        ready = 0 if place.kind is Kind.END else _in_a_row(held, number)  # what waits behind an end ends with it
        after = Order(h=held[ready:], w=recent, n=number + ready)
        return _state(after), Verdict(Judgement.ACCEPT, after=_offsets(held[:ready])) if ready else ACCEPT

    def _by_time(self, order: Order, record: Record, happened_us: int) -> tuple[GateState, Verdict]:
        floor_us = max(order.get("t", 0), self._time.watermark_us - self._lateness_us)
        if happened_us < floor_us:
            return _state(order), late(happened_us, floor_us)
        return self._waiting(order, happened_us, record, happened_us)

    def _waiting(self, order: Order, rank: int, record: Record, happened_us: int) -> tuple[GateState, Verdict]:
        if len(order["h"]) >= HELD_MAX:
            return _state(order), violation("too many held back", f"at most {HELD_MAX} of a session", HELD_MAX + 1)
        held = list(order["h"])
        insort(held, [rank, record.offset, happened_us + self._lateness_us])
        after = cast("Order", {**order, "h": held})
        return _state(after), Verdict(Judgement.BUFFER, "held back", str(order.get("n", rank - 1) + 1), str(rank))

    def _remember(self, recent: Recent, number: int | None, record: Record, happened_us: int) -> Recent:
        return remember(recent, number, record, happened_us, self._time.watermark_us - self._lateness_us)


def _released(order: Order, ready: int) -> tuple[GateState, Verdict]:
    """The first so many of what waits; a gap in their numbers is noticed."""
    released, rest = order["h"][:ready], order["h"][ready:]
    last, offsets = released[-1][0], _offsets(released)
    if "n" not in order:
        return _state(Order(h=rest, w=order["w"], t=last)), Verdict(Judgement.ACCEPT, after=offsets)
    missing = last - order["n"] - len(released)
    after = _state(Order(h=rest, w=order["w"], n=last))
    found = f"{missing} numbers missing up to {last}"
    return after, Verdict(Judgement.ACCEPT, "gap" if missing else "", str(order["n"] + 1), found, after=offsets)


def _in_a_row(held: list[Waiting], number: int) -> int:
    """How many of what waits follow a number without a gap."""
    return next((at for at, each in enumerate(held) if each[0] != number + at + 1), len(held))


def _offsets(held: list[Waiting]) -> tuple[int, ...]:
    return tuple(each[1] for each in held)


def _state(order: Order) -> GateState:
    return cast("GateState", order)
