"""Strict, said again: in order, none missing, none repeated, by the producer's own evidence."""

from __future__ import annotations

from typing import Any

from lockstep.declare.place import Kind, Link, Place
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

LARGEST = 2**63 - 1


def rules(integrity: Any, *, bears: bool, restarts_on_growth: bool) -> Rules:
    """The rules of a declared `Strict`."""
    evidence = type(integrity.evidence).__name__
    if evidence not in _RULES:
        not_provable(f"Strict by {evidence}")
    if getattr(getattr(integrity, "repeats", None), "name", "VIOLATION") not in {"VIOLATION", "REFUSE", "HALT"}:
        not_provable(f"Strict(repeats={integrity.repeats})")
    answer = Answer.SUSPEND if bears else Answer.STOP
    return Rules(
        rule=_RULES[evidence],
        undecodable=answer,
        raised=answer,
        hole=answer,
        expired=answer,
        grew=Answer.SUSPEND if restarts_on_growth else answer,
        bears=bears,
    )


def by_sequence(memory: Memory, place: Place, offset: int) -> Ruling:
    """Each number is one more than the last; a snapshot may carry the last one again."""
    del offset
    number = place.sequence
    if number is None:
        return refuse("no evidence")
    if memory is None:
        return _begun(place, number, number)
    last = _number(memory)
    if number - last == 1 or (place.kind is Kind.SNAPSHOT and number == last):
        return Ruling(What.ACCEPT, number)
    if number > last:
        return refuse("gap")
    return refuse("repeat" if number == last else "sequence goes back")


def by_link(memory: Memory, place: Place, offset: int) -> Ruling:
    """Each message names the one before it, or ids that follow on; memory is [last id, 1 before any update]."""
    del offset
    link = place.link
    if link is None:
        return refuse("no evidence")
    if not isinstance(memory, list):
        return _begun(place, link.last, [link.last, 1])
    last, untouched = memory
    if place.kind is Kind.SNAPSHOT:
        return Ruling(What.ACCEPT, [last, untouched]) if link.last == last else refuse("broken link")
    fits = _follows(link, last) or (untouched == 1 and _reaches_over(link, last))
    return Ruling(What.ACCEPT, [link.last, 0]) if fits and _runs_forward(link) else refuse("broken link")


def by_checksum(memory: Memory, place: Place, offset: int) -> Ruling:
    """The fold checks what it can; here only that a session begins with a snapshot."""
    del offset
    if memory is None and place.kind is not Kind.SNAPSHOT:
        return refuse("unknown session")
    return Ruling(What.ACCEPT, memory=True)


_RULES: dict[str, Rule] = {
    "Sequence": by_sequence,
    "Linked": by_link,
    "Checksum": by_checksum,
    "LogOnly": by_checksum,
}


def fits_64_bits(number: int) -> bool:
    """Whether state and table can hold a producer's number."""
    return abs(number) <= LARGEST


def _begun(place: Place, number: int, memory: Memory) -> Ruling:
    if place.kind is not Kind.SNAPSHOT:
        return refuse("unknown session")
    return Ruling(What.ACCEPT, memory) if fits_64_bits(number) else refuse("number out of range")


def _follows(link: Link, last: int) -> bool:
    return link.previous == last if link.previous is not None else link.first == last + 1


def _reaches_over(link: Link, last: int) -> bool:
    """A snapshot taken beside the stream: the first update after it may begin before the snapshot's end."""
    if link.first is None:
        return False
    needed = last if link.previous is not None else last + 1
    return link.first <= needed <= link.last


def _runs_forward(link: Link) -> bool:
    begins = [number for number in (link.first,) if number is not None and number > link.last]
    behind = link.previous is not None and link.previous >= link.last
    return not begins and not behind and link.last <= LARGEST


def _number(memory: Memory) -> int:
    if not isinstance(memory, int):
        raise TypeError(f"a session's last number, not {memory!r}")
    return memory
