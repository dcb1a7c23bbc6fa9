"""Snapshots over several messages, said again: nothing of one is seen before it is complete.

While one is on its way, memory is {"p": offsets that are held back, "g": what the class remembers inside}.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import Memory, Rules, Ruling, What, refuse

PARTS_MAX = 10_000
"""A longer snapshot is taken for one that never ends."""


def ruled(rules: Rules, memory: Memory, place: Place, record: Record) -> Ruling:
    """What a class says of a message, where snapshots may lie over several.

    All that comes between a snapshot's first part and the message that completes it is held back, in order, without
    anything missing; each part counts as a snapshot to the class. One that is interrupted breaks the promise; a class
    that bears all gives it up and goes on.
    """
    if place.kind is not Kind.PART and not is_on_its_way(memory):
        return rules.rule(memory, place, record)
    parts, inner = (memory["p"], memory["g"]) if is_on_its_way(memory) else ([], memory)
    as_snapshot = msgspec.structs.replace(place, kind=Kind.SNAPSHOT) if place.kind is Kind.PART else place
    ruling = rules.rule(inner, as_snapshot, record)
    cause = _unfit(parts, place, ruling)
    if cause is not None and not rules.bears_all:
        return refuse(cause)
    if ruling.what is not What.ACCEPT:
        return ruling
    if cause is not None:
        ruling, parts = ruling._replace(cause=cause, freed=tuple(parts)), []
    if place.kind is Kind.PART or parts:
        if place.kind is Kind.SNAPSHOT:
            return ruling._replace(before=tuple(parts))
        return ruling._replace(what=What.HOLD, memory={"p": [*parts, record.offset], "g": ruling.memory})
    return ruling


def _unfit(parts: list[int], place: Place, ruling: Ruling) -> str | None:
    """Why a message cannot be part of the snapshot that is on its way, whatever the class says of it."""
    if parts and (place.resets or place.kind is Kind.END):
        return "snapshot not complete"
    if ruling.what is What.HOLD or ruling.after or ruling.before or ruling.stale:
        return "snapshot out of order"
    return "snapshot too long" if ruling.what is What.ACCEPT and len(parts) >= PARTS_MAX else None


def is_on_its_way(memory: Memory) -> TypeGuard[dict[str, Any]]:
    """Whether a snapshot has begun and is not complete."""
    return isinstance(memory, dict) and "p" in memory


def held_of(memory: Memory) -> tuple[int, ...]:
    """Offsets of a session's messages that wait: for the rest of a snapshot, or for their turn."""
    if not isinstance(memory, dict):
        return ()
    if "p" in memory:
        return (*memory["p"], *held_of(memory["g"]))
    if "r" in memory:
        return held_of(memory["g"])
    early = tuple(offset for offset, *_ in memory.get("e", ()))
    return early or tuple(offset for _, offset, _ in memory.get("h", ()))
