"""The proof's own reading of the stored state of a gate, `[tag, field, ...]`, and its way back.

| tag | fields | a session |
|---|---|---|
| -1 | | known, without numbers |
| -2 | messages | of which messages are counted |
| -3 | last id, whether no update has followed the snapshot | with links |
| -4 | offset of the newest message | in order, without numbers |
| -5 | messages, contents by id | with ids |
| -6 | recent messages | in a window: by number, content and event time |
| -7 | waiting, recent, last number | in order of numbers; waiting: number, offset, watermark of the release |
| -8 | waiting, last time | in order of times; waiting: time, offset, watermark of the release |
| -9 | updates | before its snapshot: offset, number, first, previous |
| -10 | number of the snapshot, inner state | up to the first update after its snapshot |
| -11 | contents by number, inner state | without repeats |
| -12 | | of another class |
| -13 | offsets, inner state | in the middle of a snapshot |
| -14 | first offset, inner state | that may be suspended |
| -15 | first offset, first lost offset, whether it is broken, whether it is lost | suspended |

An integer without a tag is the newest number of a session, nil an unknown session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from lockstep.verify.gates.base import Memory, SessionMemory, is_same_memory, is_waiting

KNOWN: Final = -1
COUNT: Final = -2
LINK: Final = -3
OFFSET: Final = -4
IDS: Final = -5
WINDOW: Final = -6
BY_NUMBER: Final = -7
BY_TIME: Final = -8
EARLY: Final = -9
SNAPSHOT: Final = -10
REPEATS: Final = -11
LEFT: Final = -12
OPEN: Final = -13
ACTIVE: Final = -14
SUSPENDED: Final = -15


class StoredGate(NamedTuple):
    """The stored gate of a session.

    Attributes:
        known: The session.
        is_wrapped: Its first offset is stored with it.
    """

    known: SessionMemory
    is_wrapped: bool = False


def read_gate(encoded: bytes) -> StoredGate | None:
    """Read an encoded gate; None for that of an unknown session.

    Raises:
        ValueError: It has none of the forms of this module.
    """
    stored = msgspec.msgpack.decode(encoded)
    if stored is None:
        return None
    try:
        return _read_session(stored)
    except (TypeError, LookupError) as error:
        raise ValueError(f"not a state of a gate: {stored!r}") from error


def _read_session(stored: Any) -> StoredGate:
    if isinstance(stored, list) and stored[0] == ACTIVE:
        _, opened_at, inner = stored
        return StoredGate(SessionMemory(opened_at, _read_memory(inner)), is_wrapped=True)
    if isinstance(stored, list) and stored[0] == SUSPENDED:
        _, opened_at, _, broken, lost = stored
        return StoredGate(SessionMemory(opened_at, None, waits=True, broken=broken, lost=lost), is_wrapped=True)
    return StoredGate(SessionMemory(0, _read_memory(stored)))


def _read_memory(stored: Any) -> Memory:
    if stored is None or type(stored) is int:
        return stored
    tag, *fields = stored
    return _READERS[tag](*fields)


_READERS: dict[int, Callable[..., Memory]] = {
    KNOWN: lambda: True,
    COUNT: lambda messages: [messages],
    LINK: lambda last, is_fresh: [last, int(is_fresh)],
    OFFSET: lambda offset: {"at": offset},
    IDS: lambda messages, ids: {"n": messages, "ids": ids},
    WINDOW: lambda recent: {"w": recent},
    BY_NUMBER: lambda waiting, recent, last: {"h": waiting, "w": recent, "n": last},
    BY_TIME: lambda waiting, last_us: {"h": waiting, "w": {}} | ({} if last_us is None else {"t": last_us}),
    EARLY: lambda updates: {"e": updates},
    SNAPSHOT: lambda number, inner: {"q": number, "g": _read_memory(inner)},
    REPEATS: lambda contents, inner: {"r": contents, "g": _read_memory(inner)},
    LEFT: lambda: {"f": True},
    OPEN: lambda offsets, inner: {"p": offsets, "g": _read_memory(inner)},
}


def is_same_state(stored: StoredGate | None, known: SessionMemory, before: int) -> bool:
    """Whether a stored gate equals the proof's session, under the policy of that time or of today.

    Args:
        stored: The stored gate.
        known: The proof's session.
        before: Older sessions are suspended, marked or not.
    """
    memory = SessionMemory(0, None) if stored is None else stored.known
    if stored is None or not stored.is_wrapped:  # stored before the suspension: suspended when next read
        return not known.waits and is_same_memory(memory.memory, known.memory)
    began_alike = memory.opened_at in {0, known.opened_at}  # 0: stored before the policy recorded it
    if not is_waiting(known, before):
        return began_alike and not memory.waits and is_same_memory(memory.memory, known.memory)
    if memory.waits and known.waits and (memory.broken, memory.lost) != (known.broken, known.lost):
        return False
    return began_alike and is_waiting(memory, before)


def to_stored_form(known: SessionMemory, *, suspends: bool) -> object:
    """A session in the form of a state file; that of a suspended one differs in its first lost offset."""
    if not suspends:
        return _write_memory(known.memory)
    if known.waits:
        return [SUSPENDED, known.opened_at, 0, known.broken, known.lost]
    return [ACTIVE, known.opened_at, _write_memory(known.memory)]


def _write_memory(memory: Memory) -> object:
    """The inverse of `_read_memory`."""
    if memory is True:
        return [KNOWN]
    if isinstance(memory, list):
        if len(memory) == 1:
            return [COUNT, *memory]
        return [LINK, memory[0], memory[1] == 1]
    if not isinstance(memory, dict):
        return memory
    if "g" in memory:
        return _write_nested(memory)
    for name, tag in _TAGS.items():
        if name in memory:
            return _write_fields(tag, memory)
    raise TypeError(f"a memory without a stored form: {memory!r}")


def _write_nested(memory: dict[str, Any]) -> object:
    name, tag = next(each for each in (("q", SNAPSHOT), ("r", REPEATS), ("p", OPEN)) if each[0] in memory)
    return [tag, memory[name], _write_memory(memory["g"])]


_TAGS = {"f": LEFT, "e": EARLY, "at": OFFSET, "ids": IDS, "n": BY_NUMBER, "h": BY_TIME, "w": WINDOW}
"""The first name that a memory has tells its form."""


def _write_fields(tag: int, memory: dict[str, Any]) -> object:
    fields = {
        LEFT: (),
        EARLY: ("e",),
        OFFSET: ("at",),
        IDS: ("n", "ids"),
        BY_NUMBER: ("h", "w", "n"),
        BY_TIME: ("h", "t"),
        WINDOW: ("w",),
    }
    return [tag, *(memory.get(name) for name in fields[tag])]
