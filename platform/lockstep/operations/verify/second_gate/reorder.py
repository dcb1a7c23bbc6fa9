"""FuzzyWindow with reordering, said again: messages wait for their turn, as long as the bound allows.

Memory is {"h": what waits, in order, each as [number or time, offset, watermark at which it waits no longer], "w":
what came within the bound, and "n": the last number that was applied, or "t": the last time}.
"""

from __future__ import annotations

from typing import Any

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import Memory, Ruling, What, refuse
from lockstep.operations.verify.second_gate.moment import Moment, happened
from lockstep.operations.verify.second_gate.numbers import fits_64_bits
from lockstep.operations.verify.second_gate.recent import met, remembered

WAITING_MAX = 10_000
"""More of one session wait for a bound that never passes."""
Waiting = list[list[int]]


def in_order(memory: Memory, place: Place, record: Record, moment: Moment, bound_us: int) -> Ruling:
    """Messages of a session with numbers go by number, others by time."""
    at_us, number = happened(place, record), place.sequence
    if moment.is_absurd(at_us):
        return Ruling(What.ASIDE, memory, "absurd event time")
    if number is not None and not fits_64_bits(number):
        return refuse("number out of range")
    floor_us = moment.at_us - bound_us
    if not isinstance(memory, dict):
        return _begun(place, record, at_us, floor_us)
    if (number is None) is not ("n" not in memory):
        return refuse("no evidence")
    if number is None:
        is_late = at_us < max(memory["t"], floor_us)
        return Ruling(What.LATE, memory, "late") if is_late else _held(memory, at_us, record, at_us + bound_us)
    return _by_number(memory, number, place, record, (at_us, floor_us, at_us + bound_us))


def _begun(place: Place, record: Record, at_us: int, floor_us: int) -> Ruling:
    if place.kind is not Kind.SNAPSHOT:
        return Ruling(What.WAIT, None, "unknown session")
    last = {"t": at_us} if place.sequence is None else {"n": place.sequence}
    return Ruling(What.ACCEPT, {"h": [], "w": remembered({}, place.sequence, record, at_us, floor_us), **last})


def _by_number(
    memory: dict[str, Any], number: int, place: Place, record: Record, times: tuple[int, int, int]
) -> Ruling:
    at_us, floor_us, until_us = times
    is_snapshot, waiting, last = place.kind is Kind.SNAPSHOT, memory["h"], memory["n"]
    if is_snapshot and place.resets:  # what waits goes before it: it cannot come after
        anew = {"h": [], "w": remembered({}, number, record, at_us, floor_us), "n": number}
        return Ruling(What.ACCEPT, anew, before=tuple(each[1] for each in waiting))
    if is_snapshot and number == last:
        return Ruling(What.ACCEPT, memory)
    if (again := met(memory, memory["w"], number, record)) is not None:
        return again
    if number <= last:
        return Ruling(What.LATE, memory, "late")
    now = {**memory, "w": remembered(memory["w"], number, record, at_us, floor_us)}
    if number - last > 1:
        return _held(now, number, record, until_us)
    follow = 0
    while place.kind is not Kind.END and follow < len(waiting) and waiting[follow][0] == number + follow + 1:
        follow += 1
    after = tuple(each[1] for each in waiting[:follow])
    return Ruling(What.ACCEPT, {**now, "h": waiting[follow:], "n": number + follow}, after=after)


def _held(memory: dict[str, Any], rank: int, record: Record, until_us: int) -> Ruling:
    if len(memory["h"]) >= WAITING_MAX:
        return refuse("too many held back")
    return Ruling(What.HOLD, {**memory, "h": sorted([*memory["h"], [rank, record.offset, until_us]])})


def due_at(memory: Memory) -> int | None:
    """The watermark at which something waits no longer."""
    waiting: Waiting = memory.get("h", []) if isinstance(memory, dict) else []
    return min((each[2] for each in waiting), default=None)


def release(memory: Memory, moment: Moment) -> Ruling:
    """What waits no longer: up to the last one whose bound has passed, and what follows it without a gap."""
    if not isinstance(memory, dict):
        raise TypeError(f"nothing waits in {memory!r}")
    waiting: Waiting = memory["h"]
    number = 1 + max((at for at, each in enumerate(waiting) if each[2] <= moment.at_us), default=-1)
    if number == 0:
        return Ruling(What.ACCEPT, memory)
    by_number = "n" in memory
    while by_number and number < len(waiting) and waiting[number][0] == waiting[number - 1][0] + 1:
        number += 1
    last = waiting[number - 1][0]
    now = {**memory, "h": waiting[number:], ("n" if by_number else "t"): last}
    is_gap = by_number and last - memory["n"] != number
    return Ruling(What.ACCEPT, now, "gap" if is_gap else "", after=tuple(each[1] for each in waiting[:number]))
