"""Ordered, said again: numbers rise; what is missing is counted, what comes again or late is dropped."""

from __future__ import annotations

from functools import partial
from typing import Any

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import Answer, Memory, Rules, Ruling, What, refuse
from lockstep.operations.verify.second_gate.numbers import counted_on, may_be_sent


def rules(integrity: Any, *, bears: bool, restarts_on_growth: bool) -> Rules:
    """The rules of a declared `Ordered`."""
    return Rules(
        rule=partial(by_number, wraps_at=integrity.wraps_at),
        undecodable=Answer.SUSPEND,
        raised=Answer.SUSPEND,
        hole=Answer.COUNT,
        expired=Answer.SUSPEND,
        grew=Answer.SUSPEND if bears or restarts_on_growth else Answer.STOP,
        bears=bears,
    )


def by_number(memory: Memory, place: Place, record: Record, wraps_at: int | None = None) -> Ruling:
    """The producer's number rises, or the offset does where there is none. A snapshot begins anew."""
    number = record.offset if place.sequence is None else place.sequence
    if not may_be_sent(number, None if place.sequence is None else wraps_at):
        return refuse("number out of range")
    if place.kind is Kind.SNAPSHOT:
        return Ruling(What.ACCEPT, number)
    if not isinstance(memory, int):
        return Ruling(What.WAIT, None, "unknown session")
    if place.sequence is not None:
        number = counted_on(number, memory, wraps_at)
    if number <= memory:
        return Ruling(What.DROP, memory, "repeat" if number == memory else "sequence goes back")
    skips = place.sequence is not None and number - memory > 1
    return Ruling(What.ACCEPT, number, "gap" if skips else "")
