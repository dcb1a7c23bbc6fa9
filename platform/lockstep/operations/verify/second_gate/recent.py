"""The newest messages of a session by number, as windows remember them. Pure."""

from __future__ import annotations

from typing import Any

from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import Memory, Ruling, What, refuse
from lockstep.operations.verify.second_gate.numbers import content_of

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
