"""Sessions that another class has left, read by the new class of a stream."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.table.head import PolicyChange
from lockstep.verify.gates.base import Memory, SessionMemory
from lockstep.verify.gates.stored import StoredGate
from lockstep.verify.ledger import LedgerRange
from lockstep.verify.lookups import NotReproducible, may_fold

LINK_PARTS = 2
"""A link is remembered as two numbers, a count of messages as one."""


def find_first_judged(
    ranges: Sequence[LedgerRange], changes: Sequence[PolicyChange], integrity: str
) -> tuple[int, str]:
    """The first range from which on all batches are of today's class, and why those before are not judged.

    Args:
        ranges: The ledger rows of a partition.
        changes: The recorded classes, oldest first.
        integrity: Today's class.
    """
    for index in range(len(ranges), 0, -1):
        row = ranges[index - 1]
        previous = ranges[index - 2] if index > 1 else None
        count = bisect_right(changes, row.batch, key=lambda change: change.first_batch)
        then = changes[count - 1].integrity if count else ""
        if then not in {"", integrity} and may_fold(row, previous):
            return index, f"batches up to {row.batch} are not judged: their class was {then}, today's is {integrity}"
    return 0, ""


class OtherClass:
    """The sessions of a partition, as today's class takes them over."""

    def __init__(self, integrity: Any, *, suspends: Callable[[], bool]) -> None:
        """Take them over for a class.

        Args:
            integrity: Today's class.
            suspends: Whether a session of no use to it is suspended until its next snapshot, or unknown.
        """
        self._integrity = integrity
        self._suspends = suspends
        self._at_first = getattr(getattr(integrity, "session_start", None), "name", "") == "FIRST_MESSAGE"

    def take_over(self, gate: StoredGate | None) -> StoredGate | None:
        """A stored gate as today's class has it.

        Raises:
            NotReproducible: The session was in the middle of a snapshot, or had buffered messages.
        """
        if gate is None or gate.known.waits:
            return gate
        memory = self._adapt(_without_repeats(gate.known.memory))
        if memory is not None:
            return gate._replace(known=gate.known._replace(memory=memory))
        if not self._suspends():
            return None
        return StoredGate(SessionMemory(gate.known.opened_at, None, waits=True), is_wrapped=True)

    def _adapt(self, memory: Memory) -> Memory:
        if isinstance(memory, dict) and "f" in memory:
            return memory
        if isinstance(memory, dict) and memory.keys() & {"p", "q", "e"}:
            raise NotReproducible("a session was in the middle of a snapshot when the class changed")
        kind = type(self._integrity).__name__
        found = self._of_strict(memory) if kind == "Strict" else _ADAPT[kind](self._integrity, memory)
        return {"f": True} if found is None and self._at_first else found

    def _of_strict(self, memory: Memory) -> Memory:
        if self._integrity.repeats.name == "DROP" or self._integrity.buffer_until_snapshot:
            raise NotReproducible("the proof does not know the memory that a class with repeats or a buffer inherits")
        evidence = type(self._integrity.evidence).__name__
        if evidence == "Sequence":
            return memory if _is_number(memory) else None
        size = LINK_PARTS if evidence == "Linked" else 1
        fits = isinstance(memory, list) and len(memory) == size
        if fits:
            return memory
        if evidence == "Linked":
            return None
        return True


def _without_repeats(memory: Memory) -> Memory:
    """The memory of a class that drops repeats, without their contents."""
    return memory["g"] if isinstance(memory, dict) and memory.keys() == {"r", "g"} else memory


def _is_number(memory: Memory) -> bool:
    return isinstance(memory, int) and not isinstance(memory, bool)


def _of_none(integrity: Any, memory: Memory) -> Memory:
    del integrity
    return memory if isinstance(memory, int) else True


def _of_once(integrity: Any, memory: Memory) -> Memory:
    del integrity
    return memory if isinstance(memory, dict) and "ids" in memory else {"n": 0, "ids": {}}


def _of_ordered(integrity: Any, memory: Memory) -> Memory:
    del integrity
    return memory if _is_number(memory) or (isinstance(memory, dict) and "at" in memory) else None


def _of_window(integrity: Any, memory: Memory) -> Memory:
    if integrity.reorder:
        return memory if isinstance(memory, dict) and "h" in memory else None
    return memory if isinstance(memory, dict) and memory.keys() == {"w"} else {"w": {}}


_ADAPT: dict[str, Callable[[Any, Memory], Memory]] = {
    "NoIntegrity": _of_none,
    "Once": _of_once,
    "Ordered": _of_ordered,
    "FuzzyWindow": _of_window,
}
