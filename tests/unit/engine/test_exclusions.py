"""Messages are cut at suspensions, at a cost that hardly grows with the number of suspensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from lockstep.engine.executor.rejects import Exclusions
from lockstep.testing.script import InLog

if TYPE_CHECKING:
    from lockstep.engine.executor.rejects import Message

HOLES = 10_000
COMPARED_MAX = 100
"""Comparisons for each message, at most."""


class Counted(int):
    """An offset that counts its comparisons."""

    compared: ClassVar[int] = 0

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > other


def at(offset: int) -> Message:
    return InLog(offset, None, b"")


def test_no_piece_spans_a_suspension() -> None:
    pieces = Exclusions(suspend_at=(3, 5)).split([at(offset) for offset in range(7)])
    assert [[message.offset() for message in piece] for piece in pieces] == [[0, 1, 2], [3, 4], [5, 6]]


def test_the_holes_of_a_compacted_log_cost_little_a_message() -> None:
    """There may be as many holes as messages, and a plain search would compare each message with each hole."""
    without = Exclusions(suspend_at=tuple(Counted(2 * n + 1) for n in range(HOLES)))
    assert [without.suspended_before(offset) for offset in (0, 1, 2, 3, 2 * HOLES)] == [0, 1, 1, 3, 2 * HOLES - 1]
    Counted.compared, messages = 0, [at(2 * n) for n in range(0, HOLES, 100)]
    assert len(list(without.split(messages))) == len(messages)
    assert 0 < Counted.compared <= COMPARED_MAX * len(messages)
