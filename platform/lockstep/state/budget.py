"""Bounds the memory of the states that a task has decoded: past the bound the largest partition lets go of its own."""

from __future__ import annotations

from typing import Protocol

BYTES_MAX = 96_000_000
"""Encoded bytes of sessions in memory, in one task. As Python objects they are some three to six times as much: about
the memory that Spark's own documentation gives a Python worker (spark.executor.pyspark.memory is often 512 MB to
1 GB). Far lower bounds make ranges that touch many sessions twice spill again and again; higher ones end on a small
executor in a kill."""
ENTRY_BYTES = 250
"""Objects, keys and dict slots around an entry, whatever it holds: 1 million empty sessions take a quarter of a GB."""


class Spilling(Protocol):
    """A partition's state that can let go of what it has decoded."""

    def spill(self) -> None:
        """Move what changed to the local disk and forget the rest."""
        ...


class Budget:
    """Counts what the states of a task have decoded."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max, self._held = bytes_max, 0
        self._by: dict[Spilling, int] = {}

    def note(self, state: Spilling, size: int) -> None:
        """Note that a state has decoded an entry of so many bytes, or begun one."""
        self._held += size + ENTRY_BYTES
        self._by[state] = self._by.get(state, 0) + size + ENTRY_BYTES

    def keep(self) -> None:
        """Let the largest states spill while too much is held. Only between messages: states in use are let go of."""
        while self._held > self._bytes_max:
            largest = max(self._by, key=lambda state: self._by[state])
            largest.spill()
            self.release(largest)

    def release(self, state: Spilling) -> None:
        """Note that a state holds nothing any more."""
        self._held -= self._by.pop(state, 0)
