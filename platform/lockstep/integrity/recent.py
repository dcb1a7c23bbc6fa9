"""The newest messages of a session by number: what tells a repeat from another message. Pure."""

from __future__ import annotations

from lockstep.declare.record import Record
from lockstep.integrity.numbers import digest
from lockstep.integrity.verdict import Judgement, Verdict, violation

Recent = dict[int, list[bytes | int]]
"""By number: [digest of the content, event time in microseconds], oldest first."""


def met_before(recent: Recent, number: int | None, record: Record) -> Verdict | None:
    """The verdict on a number that came before; None for a new one, or where there is no number."""
    known = recent.get(number) if number is not None else None
    if known is None:
        return None
    if known[0] == digest(record):
        return Verdict(Judgement.DUPLICATE, "repeat", "each message once", str(number))
    return violation("same number, other content", "the content it had before", number)


def remember(recent: Recent, number: int | None, record: Record, happened_us: int, floor_us: int) -> Recent:
    """Remember one message more, and forget what is older than the bound."""
    if number is not None:
        recent[number] = [digest(record), happened_us]
    while recent:
        oldest = next(iter(recent))
        if recent[oldest][1] >= floor_us:  # type: ignore[operator]  # the second part is an int
            break
        del recent[oldest]
    return recent
