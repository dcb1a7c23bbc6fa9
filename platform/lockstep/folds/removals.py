"""Counts removals of keys that are not there: they may be normal, or keys that a producer spells in two ways."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar


class AbsentRemovals:
    """Removals of absent keys while a range is folded.

    Attributes:
        count: How many.
    """

    def __init__(self) -> None:
        self.count = 0


_COUNTING: ContextVar[AbsentRemovals | None] = ContextVar("absent removals", default=None)


@contextmanager
def count_removals(removals: AbsentRemovals) -> Generator[None]:
    """Count the findings of the ready folds, in the work of this context."""
    token = _COUNTING.set(removals)
    try:
        yield
    finally:
        _COUNTING.reset(token)


def add_absent(removals: int) -> None:
    """Add the removals of one message to the count; outside of a range there is none."""
    counting = _COUNTING.get()
    if counting is not None:
        counting.count += removals
