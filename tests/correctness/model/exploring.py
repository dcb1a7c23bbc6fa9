"""Exploration of every interleaving of the model of the commit protocol."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tests.correctness.model.invariants import broken
from tests.correctness.model.protocol import Bounds, Without, World, steps


class Found(NamedTuple):
    """The result of an exploration: the number of worlds, and the path to the first broken world."""

    worlds: int
    broken: str | None = None
    way: tuple[World, ...] = ()


def explore(bounds: Bounds, without: Without = frozenset()) -> Found:
    """Explore every world within bounds, nearest first, up to the first broken invariant."""
    begin = bounds.begin()
    before: dict[World, World | None] = {begin: None}
    waiting = deque([begin])
    while waiting:
        world = waiting.popleft()
        if (problem := broken(world)) is not None:
            return Found(len(before), problem, _way(world, before))
        for following in steps(world, without):
            if following not in before:
                before[following] = world
                waiting.append(following)
    return Found(len(before))


def _way(world: World | None, before: dict[World, World | None]) -> tuple[World, ...]:
    way: list[World] = []
    while world is not None:
        way.append(world)
        world = before[world]
    return tuple(reversed(way))
