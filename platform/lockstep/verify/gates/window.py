"""Windows and reordering.

Memory is {"h": what waits, in order, each as [number or time, offset, watermark at which it waits no longer], "w":
what came within the bound, and "n": the last number that was applied, or "t": the last time}.

Memory is {"w": content and time of each message within the bound, by its number}.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from lockstep.model.record import Kind, Place, Record
from lockstep.verify.gates.base import (
    Answer,
    Memory,
    Moment,
    Rules,
    Ruling,
    What,
    content_of,
    fits_64_bits,
    happened,
    refuse,
)

Recent = dict[int, Any]
"""By number: [content, event time], oldest first."""


def met(memory: Memory, recent: Recent, number: int | None, record: Record) -> Ruling | None:
    """The ruling on a number that came before, as far back as the bound; None for a new one."""
    if number is None or number not in recent:
        return None
    same = recent[number][0] == content_of(record)
    return Ruling(What.DROP, memory, "repeat") if same else refuse("same number, other content")


def remembered(recent: Recent, number: int | None, record: Record, at_us: int, floor_us: int) -> Recent:
    """One message more; those in front that are behind the bound are forgotten."""
    kept = dict(recent)
    if number is not None:
        kept[number] = [content_of(record), at_us]
    for oldest in list(kept):
        if kept[oldest][1] >= floor_us:
            break
        del kept[oldest]
    return kept


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
        return _begin_in_order(place, record, at_us, floor_us)
    if (number is None) is not ("n" not in memory):
        return refuse("no evidence")
    if number is None:
        is_late = at_us < max(memory["t"], floor_us)
        return Ruling(What.LATE, memory, "late") if is_late else _held(memory, at_us, record, at_us + bound_us)
    return _by_number(memory, number, place, record, (at_us, floor_us, at_us + bound_us))


def _begin_in_order(place: Place, record: Record, at_us: int, floor_us: int) -> Ruling:
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


def release_in_order(memory: Memory, moment: Moment) -> Ruling:
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


def window_rules(integrity: Any, moment: Moment, *, bears: bool, restarts_on_growth: bool) -> Rules:
    """The rules of a declared `FuzzyWindow` in the partition of a watermark."""
    bound_us = integrity.lateness // timedelta(microseconds=1)
    release = partial(release_in_order, moment=moment) if integrity.reorder else None
    return Rules(
        rule=partial(in_order if integrity.reorder else in_any_order, moment=moment, bound_us=bound_us),
        release=release,
        undecodable=Answer.SUSPEND,
        raised=Answer.SUSPEND,
        hole=Answer.COUNT,
        expired=Answer.SUSPEND,
        grew=Answer.SUSPEND if bears or restarts_on_growth else Answer.STOP,
        bears=bears,
        by_time=True,
    )


def in_any_order(memory: Memory, place: Place, record: Record, moment: Moment, bound_us: int) -> Ruling:
    """Whatever is not behind the bound, once."""
    at_us, floor_us = happened(place, record), moment.at_us - bound_us
    if moment.is_absurd(at_us):
        return Ruling(What.ASIDE, memory, "absurd event time")
    if place.sequence is not None and not fits_64_bits(place.sequence):
        return refuse("number out of range")
    if not isinstance(memory, dict):
        return _begin_in_window(place, record, at_us, floor_us)
    recent = {} if place.kind is Kind.SNAPSHOT and place.resets else memory["w"]
    again = met(memory, recent, place.sequence, record)
    if again is not None and not (place.kind is Kind.SNAPSHOT and again.what is What.REFUSE):
        return again
    if at_us < floor_us:
        return Ruling(What.LATE, memory, "late")
    return Ruling(What.ACCEPT, {"w": remembered(recent, place.sequence, record, at_us, floor_us)})


def _begin_in_window(place: Place, record: Record, at_us: int, floor_us: int) -> Ruling:
    if place.kind is not Kind.SNAPSHOT:
        return Ruling(What.WAIT, None, "unknown session")
    return Ruling(What.ACCEPT, {"w": remembered({}, place.sequence, record, at_us, floor_us)})
