"""FuzzyWindow without reordering, said again: any order within the bound; what is later is late.

Memory is {"w": content and time of each message within the bound, by its number}.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate import reorder
from lockstep.operations.verify.second_gate.contract import Answer, Memory, Rules, Ruling, What, refuse
from lockstep.operations.verify.second_gate.moment import Moment, happened
from lockstep.operations.verify.second_gate.numbers import fits_64_bits
from lockstep.operations.verify.second_gate.recent import met, remembered


def rules(integrity: Any, moment: Moment, *, bears: bool, restarts_on_growth: bool) -> Rules:
    """The rules of a declared `FuzzyWindow` in the partition of a watermark."""
    bound_us = integrity.lateness // timedelta(microseconds=1)
    release = partial(reorder.release, moment=moment) if integrity.reorder else None
    return Rules(
        rule=partial(reorder.in_order if integrity.reorder else in_any_order, moment=moment, bound_us=bound_us),
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
        return _begun(place, record, at_us, floor_us)
    recent = {} if place.kind is Kind.SNAPSHOT and place.resets else memory["w"]
    again = met(memory, recent, place.sequence, record)
    if again is not None and not (place.kind is Kind.SNAPSHOT and again.what is What.REFUSE):
        return again
    if at_us < floor_us:
        return Ruling(What.LATE, memory, "late")
    return Ruling(What.ACCEPT, {"w": remembered(recent, place.sequence, record, at_us, floor_us)})


def _begun(place: Place, record: Record, at_us: int, floor_us: int) -> Ruling:
    if place.kind is not Kind.SNAPSHOT:
        return Ruling(What.WAIT, None, "unknown session")
    return Ruling(What.ACCEPT, {"w": remembered({}, place.sequence, record, at_us, floor_us)})
