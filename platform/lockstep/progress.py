"""Progress of long work, for any display: work reports its items, and knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str, int, int], None]
"""Takes the name of the work, the number of items that are done, and that of all."""
_LISTENERS: list[Listener] = []


@contextmanager
def send_progress(listener: Listener) -> Iterator[None]:
    """Send the progress of this process to a listener while the block lasts."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def report_items(items: Iterable[T], doing: str, total: int) -> Iterator[T]:
    """The items, each reported as done when the next one is asked for."""
    for done, item in enumerate(items, 1):
        yield item
        report_progress(doing, done, total)


def report_progress(doing: str, done: int, total: int) -> None:
    """Tell the listeners how far some work is."""
    for listener in _LISTENERS:
        listener(doing, done, total)
