"""Windows and reordering.

Memory in order: {"h": buffered messages, in order, each [number or time, offset, watermark of its release], "w":
messages within the bound, and "n": the last number that was applied, or "t": the last time; without "t" the session
waits for its first message}.

Memory in any order: {"w": content and time of each message within the bound, by its number}.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from lockstep.model.record import Envelope, Kind, Record
from lockstep.verify.gates.base import (
    Action,
    GateAnswer,
    GateRules,
    Memory,
    ReplayWatermark,
    Ruling,
    find_event_time,
    hash_content,
    is_64_bit,
    name_absurd_time,
    refuse_proof,
)

Recent = dict[int, Any]
"""By number: [content, event time], oldest first."""


def check_met(memory: Memory, recent: Recent, number: int | None, record: Record) -> Ruling | None:
    """The ruling on a number seen before, within the bound; None for a new number."""
    if number is None or number not in recent:
        return None
    same = recent[number][0] == hash_content(record)
    if same:
        return Ruling(Action.DROP, memory, "repeat")
    return refuse_proof("same number, other content")


def remember_message(recent: Recent, number: int | None, record: Record, at_us: int, floor_us: int) -> Recent:
    """Remember one more message; the oldest ones beyond the bound are forgotten."""
    kept = dict(recent)
    if number is not None:
        kept[number] = [hash_content(record), at_us]
    for oldest in list(kept):
        # In order of arrival: the first one within the bound ends the search.
        if kept[oldest][1] >= floor_us:
            break
        del kept[oldest]
    return kept


WAITING_MAX = 10_000
"""With more buffered messages of one session, the bound is considered never to pass."""
ReplayBuffer = list[list[int]]


def accept_in_order(
    memory: Memory, envelope: Envelope, record: Record, moment: ReplayWatermark, bound_us: int
) -> Ruling:
    """Messages of a session with numbers are ordered by number, others by time."""
    at_us = find_event_time(envelope, record)
    number = envelope.sequence
    if moment.is_implausible(at_us):
        return Ruling(Action.ASIDE, memory, name_absurd_time(envelope))
    if number is not None and not is_64_bit(number):
        return refuse_proof("number out of range")
    floor_us = moment.at_us - bound_us
    if not isinstance(memory, dict):
        return _begin_in_order(envelope, record, at_us, floor_us)
    if (number is None) is not ("n" not in memory):
        return refuse_proof("no evidence")
    if number is None:
        return _by_time(memory, record, (at_us, floor_us, at_us + bound_us))
    return _by_number(memory, number, envelope, record, (at_us, floor_us, at_us + bound_us))


def _by_time(memory: dict[str, Any], record: Record, times_us: tuple[int, int, int]) -> Ruling:
    at_us, floor_us, due_us = times_us
    if at_us < max(memory.get("t", 0), floor_us):
        return Ruling(Action.LATE, memory, "late")
    return _held(memory, at_us, record, due_us)


def begin_later(envelope: Envelope, record: Record, bound_us: int) -> Ruling | None:
    """The first message of a session without snapshots waits like the others; a message with a number starts it."""
    if envelope.sequence is not None:
        return None
    at_us = find_event_time(envelope, record)
    return _held({"h": [], "w": {}}, at_us, record, at_us + bound_us)


def _begin_in_order(envelope: Envelope, record: Record, at_us: int, floor_us: int) -> Ruling:
    if envelope.kind is not Kind.SNAPSHOT:
        return Ruling(Action.WAIT, None, "unknown session")
    last = {"t": at_us} if envelope.sequence is None else {"n": envelope.sequence}
    return Ruling(
        Action.ACCEPT, {"h": [], "w": remember_message({}, envelope.sequence, record, at_us, floor_us), **last}
    )


def _by_number(
    memory: dict[str, Any], number: int, envelope: Envelope, record: Record, times: tuple[int, int, int]
) -> Ruling:
    at_us, floor_us, until_us = times
    is_snapshot = envelope.kind is Kind.SNAPSHOT
    waiting = memory["h"]
    last = memory["n"]
    if is_snapshot and envelope.restarts_sequence:  # buffered messages are applied before it, never after
        opened = {"h": [], "w": remember_message({}, number, record, at_us, floor_us), "n": number}
        return Ruling(Action.ACCEPT, opened, before=tuple(each[1] for each in waiting))
    if is_snapshot and number == last:
        return Ruling(Action.ACCEPT, memory)
    if (again := check_met(memory, memory["w"], number, record)) is not None:
        return again
    if number <= last:
        return Ruling(Action.LATE, memory, "late")
    now = {**memory, "w": remember_message(memory["w"], number, record, at_us, floor_us)}
    if number - last > 1:
        return _held(now, number, record, until_us)
    follow = 0
    while envelope.kind is not Kind.END and follow < len(waiting) and waiting[follow][0] == number + follow + 1:
        follow += 1
    after = tuple(each[1] for each in waiting[:follow])
    return Ruling(Action.ACCEPT, {**now, "h": waiting[follow:], "n": number + follow}, after=after)


def _held(memory: dict[str, Any], rank: int, record: Record, until_us: int) -> Ruling:
    if len(memory["h"]) >= WAITING_MAX:
        return refuse_proof("buffer limit exceeded")
    return Ruling(Action.HOLD, {**memory, "h": sorted([*memory["h"], [rank, record.offset, until_us]])})


def find_due(memory: Memory) -> int | None:
    """The watermark at which something is released."""
    waiting: ReplayBuffer = memory.get("h", []) if isinstance(memory, dict) else []
    return min((each[2] for each in waiting), default=None)


def release_in_order(memory: Memory, until_us: int) -> Ruling:
    """Release up to the last message whose bound a watermark passes, and those that follow it without a gap."""
    if not isinstance(memory, dict):
        raise TypeError(f"nothing is buffered in {memory!r}")
    waiting: ReplayBuffer = memory["h"]
    number = 1 + max((at for at, each in enumerate(waiting) if each[2] <= until_us), default=-1)
    if number == 0:
        return Ruling(Action.ACCEPT, memory)
    by_number = "n" in memory
    while by_number and number < len(waiting) and waiting[number][0] == waiting[number - 1][0] + 1:
        number += 1
    last = waiting[number - 1][0]
    key = "n" if by_number else "t"
    now = {**memory, "h": waiting[number:], key: last}
    cause = ""
    if by_number and last - memory["n"] != number:
        cause = "gap"
    return Ruling(Action.ACCEPT, now, cause, after=tuple(each[1] for each in waiting[:number]))


def make_window_rules(
    integrity: Any, moment: ReplayWatermark, *, tolerates_violations: bool, restarts_on_growth: bool
) -> GateRules:
    """The rules of a declared `FuzzyWindow` for the partition of a watermark."""
    bound_us = integrity.lateness // timedelta(microseconds=1)
    rule = accept_in_order if integrity.reorder else accept_in_any_order
    begins_later = None
    if integrity.reorder:
        begins_later = partial(begin_later, bound_us=bound_us)
    return GateRules(
        rule=partial(rule, moment=moment, bound_us=bound_us),
        release=release_in_order if integrity.reorder else None,
        undecodable=GateAnswer.SUSPEND,
        raised=GateAnswer.SUSPEND,
        hole=GateAnswer.COUNT,
        expired=GateAnswer.SUSPEND,
        grew=GateAnswer.SUSPEND if tolerates_violations or restarts_on_growth else GateAnswer.STOP,
        tolerates_violations=tolerates_violations,
        by_time=True,
        is_late=partial(is_beyond_bound, moment=moment, bound_us=bound_us),
        begins_later=begins_later,
    )


def is_beyond_bound(envelope: Envelope, record: Record, moment: ReplayWatermark, bound_us: int) -> bool:
    """Whether a message is late; its session does not matter."""
    return find_event_time(envelope, record) < moment.at_us - bound_us


def accept_in_any_order(
    memory: Memory, envelope: Envelope, record: Record, moment: ReplayWatermark, bound_us: int
) -> Ruling:
    """Every message within the bound, once."""
    at_us = find_event_time(envelope, record)
    floor_us = moment.at_us - bound_us
    if moment.is_implausible(at_us):
        return Ruling(Action.ASIDE, memory, name_absurd_time(envelope))
    if envelope.sequence is not None and not is_64_bit(envelope.sequence):
        return refuse_proof("number out of range")
    if not isinstance(memory, dict):
        return _begin_in_window(envelope, record, at_us, floor_us)
    recent = {} if envelope.kind is Kind.SNAPSHOT and envelope.restarts_sequence else memory["w"]
    again = check_met(memory, recent, envelope.sequence, record)
    if again is not None and not (envelope.kind is Kind.SNAPSHOT and again.what is Action.REFUSE):
        return again
    if at_us < floor_us:
        return Ruling(Action.LATE, memory, "late")
    return Ruling(Action.ACCEPT, {"w": remember_message(recent, envelope.sequence, record, at_us, floor_us)})


def _begin_in_window(envelope: Envelope, record: Record, at_us: int, floor_us: int) -> Ruling:
    if envelope.kind is not Kind.SNAPSHOT:
        return Ruling(Action.WAIT, None, "unknown session")
    return Ruling(Action.ACCEPT, {"w": remember_message({}, envelope.sequence, record, at_us, floor_us)})
