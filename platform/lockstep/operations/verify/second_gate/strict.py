"""Strict, said again: in order, none missing, none repeated, by the producer's own evidence."""

from __future__ import annotations

from functools import partial
from typing import Any

from lockstep.declare.place import Kind, Link, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import (
    Answer,
    Memory,
    Rule,
    Rules,
    Ruling,
    What,
    not_provable,
    refuse,
)
from lockstep.operations.verify.second_gate.numbers import LARGEST, content_of, counted_on, fits_64_bits, may_be_sent

REMEMBERED = 64
"""So many contents of a session are kept where repeats are dropped."""
WAITING_MAX = 10_000
"""So many updates of a session wait for its snapshot."""


def rules(integrity: Any, *, bears: bool, restarts_on_growth: bool) -> Rules:
    """The rules of a declared `Strict`."""
    answer = Answer.SUSPEND if bears else Answer.STOP
    return Rules(
        rule=_rule(integrity),
        undecodable=answer,
        raised=answer,
        hole=answer,
        expired=answer,
        grew=Answer.SUSPEND if restarts_on_growth else answer,
        bears=bears,
    )


def _rule(integrity: Any) -> Rule:
    evidence, repeats = integrity.evidence, integrity.repeats
    name = type(evidence).__name__
    if name not in _RULES:
        not_provable(f"Strict by {name}")
    rule = _RULES[name]
    if name == "Sequence":
        rule = partial(by_sequence, wraps_at=evidence.wraps_at)
    if integrity.buffer_until_snapshot:
        rule = partial(until_snapshot, rule, getattr(evidence, "wraps_at", None))
    if repeats.name == "DROP":
        return partial(without_repeats, rule)
    return rule


def by_sequence(memory: Memory, place: Place, record: Record, wraps_at: int | None = None) -> Ruling:
    """Each number is one more than the last; a snapshot may carry the last one again, or begin to count anew."""
    del record
    number, is_snapshot = place.sequence, place.kind is Kind.SNAPSHOT
    if number is None:
        return refuse("no evidence")
    if memory is None or (is_snapshot and _resets(place)):
        return _begun(place, number, number, wraps_at)
    last = _number(memory)
    if number != last + 1 and not (is_snapshot and number == last):
        if wraps_at is not None and not may_be_sent(number, wraps_at):
            return refuse("number out of range")
        number = counted_on(number, last, wraps_at)
    if number - last == 1 or (is_snapshot and number == last):
        return Ruling(What.ACCEPT, number)
    if number > last:
        return refuse("gap")
    return refuse("repeat" if number == last else "sequence goes back")


def by_link(memory: Memory, place: Place, record: Record) -> Ruling:
    """Each message names the one before it, or ids that follow on; memory is [last id, 1 before any update]."""
    del record
    link, is_snapshot = place.link, place.kind is Kind.SNAPSHOT
    if link is None:
        return refuse("no evidence")
    if not isinstance(memory, list) or (is_snapshot and _resets(place)):
        return _begun(place, link.last, [link.last, 1])
    last, untouched = memory
    if is_snapshot:
        return Ruling(What.ACCEPT, [last, untouched]) if link.last == last else refuse(_why(link, last, link.last))
    fits = _follows(link, last) or (untouched == 1 and _reaches_over(link, last))
    if not _runs_forward(link):
        return refuse("broken link")
    named = link.first - 1 if link.first is not None else None
    before = named if link.previous is None else link.previous
    return Ruling(What.ACCEPT, [link.last, 0]) if fits else refuse(_why(link, last, before))


def by_count(memory: Memory, place: Place, record: Record) -> Ruling:
    """The fold checks what it can; here that a session begins with a snapshot, and how many messages it had.

    Memory is their number; True where it is not known.
    """
    del record
    if memory is None:
        if place.kind is Kind.END and place.count not in {None, 1}:
            return refuse("count")
        return Ruling(What.ACCEPT, 1) if place.kind is Kind.SNAPSHOT else refuse("unknown session")
    if memory is True or not isinstance(memory, int):
        return Ruling(What.ACCEPT, memory=True)
    said = place.count if place.kind is Kind.END else None
    return refuse("count") if said not in {None, memory + 1} else Ruling(What.ACCEPT, memory + 1)


def without_repeats(rule: Rule, memory: Memory, place: Place, record: Record) -> Ruling:
    """A message that came before with the same content is dropped; memory is {"r": contents, "g": the rule's}."""
    known: dict[str, Any] = memory if isinstance(memory, dict) else {"r": {}, "g": memory}
    number = place.sequence if place.link is None else place.link.last
    content = content_of(record)
    if number is not None and known["r"].get(number) == content:
        return Ruling(What.DROP, memory, "repeat")
    ruling = rule(known["g"], place, record)
    if ruling.what not in {What.ACCEPT, What.HOLD}:
        return ruling._replace(memory=memory)
    contents = {} if _resets(place) else {held: each for held, each in known["r"].items() if held != number}
    if number is not None:
        contents[number] = content
    newest = dict(list(contents.items())[-REMEMBERED:])
    return ruling._replace(memory={"r": newest, "g": ruling.memory})


def until_snapshot(rule: Rule, wraps_at: int | None, memory: Memory, place: Place, record: Record) -> Ruling:
    """Updates wait for the snapshot of their session; it drops what it covers, and what follows it goes on.

    Memory is {"e": what waits, each with offset, number, first and previous} before the snapshot, {"q": its number,
    "g": the rule's} up to the next message that it does not cover, and the rule's from there on.
    """
    parts: dict[str, Any] = memory if isinstance(memory, dict) else {}
    early, known = parts.get("e", []), memory if not parts else parts.get("g")
    number = place.sequence if place.link is None else place.link.last
    is_snapshot = place.kind is Kind.SNAPSHOT
    if number is None or place.kind is Kind.END:
        return rule(known, place, record)
    if known is None and not is_snapshot:
        return _waits(early, wraps_at, number, place, record)
    if is_snapshot and (known is None or place.resets):
        ruling = _begun_with_early(rule, wraps_at, early, place, record)
        return ruling if ruling.what is What.ACCEPT else ruling._replace(memory=memory)
    if "q" in parts and not is_snapshot and counted_on(number, parts["q"], wraps_at) <= parts["q"]:
        return Ruling(What.DROP, memory, "stale")
    ruling = rule(known, place, record)
    if "q" in parts and is_snapshot and ruling.what is What.ACCEPT:
        return ruling._replace(memory={"q": number, "g": ruling.memory})
    return ruling


def _waits(early: list[list[Any]], wraps_at: int | None, number: int, place: Place, record: Record) -> Ruling:
    first, previous = (None, None) if place.link is None else (place.link.first, place.link.previous)
    if not all(fits_64_bits(each) for each in (number, first, previous) if each is not None):
        return refuse("number out of range")
    if not may_be_sent(number, wraps_at):
        return refuse("number out of range")
    if early and wraps_at is not None and (number - early[0][1]) % wraps_at >= wraps_at // 2:
        return refuse("no snapshot")
    if len(early) == WAITING_MAX:
        return refuse("no snapshot")
    if early and counted_on(number, early[-1][1], wraps_at) <= early[-1][1]:
        return refuse("repeat" if number == early[-1][1] else "sequence goes back")
    return Ruling(What.HOLD, {"e": [*early, [record.offset, number, first, previous]]}, "held back")


def _begun_with_early(rule: Rule, wraps_at: int | None, early: list[list[Any]], place: Place, record: Record) -> Ruling:
    """A snapshot; what waited for it is covered by it, or follows it one by one."""
    begun = rule(None, place, record)
    number = place.sequence if place.link is None else place.link.last
    if begun.what is not What.ACCEPT or number is None:
        return begun
    memory, stale, after = begun.memory, list[int](), list[int]()
    for offset, each, first, previous in early:
        if counted_on(each, number, wraps_at) <= number:
            stale.append(offset)
            continue
        link = None if place.link is None else Link(each, first=first, previous=previous)
        ruling = rule(memory, Place(place.session, sequence=each if link is None else None, link=link), record)
        if ruling.what is not What.ACCEPT:
            return ruling
        after.append(offset)
        memory = ruling.memory
    memory = memory if after else {"q": number, "g": memory}
    return Ruling(What.ACCEPT, memory, after=tuple(after), stale=tuple(stale))


_RULES: dict[str, Rule] = {"Sequence": by_sequence, "Linked": by_link, "Checksum": by_count, "LogOnly": by_count}


def _resets(place: Place) -> bool:
    return place.resets


def _begun(place: Place, number: int, memory: Memory, wraps_at: int | None = None) -> Ruling:
    if place.kind is not Kind.SNAPSHOT:
        return refuse("unknown session")
    return Ruling(What.ACCEPT, memory) if may_be_sent(number, wraps_at) else refuse("number out of range")


def _follows(link: Link, last: int) -> bool:
    return link.previous == last if link.previous is not None else link.first == last + 1


def _reaches_over(link: Link, last: int) -> bool:
    """A snapshot taken beside the stream: the first update after it may begin before the snapshot's end."""
    if link.first is None:
        return False
    needed = last if link.previous is not None else last + 1
    return link.first <= needed <= link.last


def _why(link: Link, last: int, before: int | None) -> str:
    """Why a message does not follow, by the newest id that must have come before it."""
    if link.last <= last:
        return "repeat" if link.last == last else "sequence goes back"
    return "gap" if before is not None and before > last else "broken link"


def _runs_forward(link: Link) -> bool:
    begins = [number for number in (link.first,) if number is not None and number > link.last]
    behind = link.previous is not None and link.previous >= link.last
    return not begins and not behind and link.last <= LARGEST


def _number(memory: Memory) -> int:
    if not isinstance(memory, int):
        raise TypeError(f"a session's last number, not {memory!r}")
    return memory
