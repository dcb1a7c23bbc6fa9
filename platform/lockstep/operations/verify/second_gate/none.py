"""NoIntegrity, said again: everything passes, and what looks odd is counted."""

from __future__ import annotations

from functools import partial
from typing import Any

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import Answer, Memory, Rules, Ruling, What
from lockstep.operations.verify.second_gate.numbers import counted_on, may_be_sent


def rules(integrity: Any) -> Rules:
    """The rules of a declared `NoIntegrity`."""
    return Rules(
        rule=partial(by_counting, wraps_at=integrity.wraps_at),
        undecodable=Answer.COUNT,
        raised=Answer.QUARANTINE,
        hole=Answer.COUNT,
        expired=Answer.COUNT,
        grew=Answer.COUNT,
        bears=False,
        passes_unknown=True,
        of_one_partition=False,
        bears_all=True,
    )


def by_counting(memory: Memory, place: Place, record: Record, wraps_at: int | None = None) -> Ruling:
    """Memory is the highest number since the last snapshot; True while none came."""
    del record
    number = place.sequence
    known = True if memory is None else memory
    if number is None or not may_be_sent(number, wraps_at):
        return Ruling(What.ACCEPT, known)
    if known is True or not isinstance(known, int):
        return Ruling(What.ACCEPT, number)
    is_snapshot = place.kind is Kind.SNAPSHOT
    if not (is_snapshot and place.resets):
        number = counted_on(number, known, wraps_at)
    if number == known + 1 or (is_snapshot and (place.resets or number == known)):
        return Ruling(What.ACCEPT, number)
    if number > known:
        return Ruling(What.ACCEPT, number, "gap")
    cause = "repeat" if number == known else "sequence goes back"
    return Ruling(What.ACCEPT, number if is_snapshot else known, cause)
