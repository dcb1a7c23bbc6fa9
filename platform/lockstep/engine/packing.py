"""Packs what costs differently into bins of about equal cost; what was in a bin before stays there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lockstep.kafka.audit import Key

T = TypeVar("T")

MOVE_FOR_SECONDS_RATIO = 0.25
"""A partition leaves its bin only when that bin would take this much longer than the average:
its hot state lies where it was last worked."""
UNEVEN_FILE_RATIO = 0.15
"""Several files at once are planned only when each is so close to the target: it leaves room for what
the sizes of the batches before do not tell."""


def pack(
    items: Sequence[T], key: Callable[[T], Key], costs: Sequence[float], count: int, bins_before: Mapping[Key, int]
) -> tuple[tuple[T, ...], ...]:
    """Put items, in order of their keys, into at most `count` bins, each of which keeps that order."""
    if not items:
        return ()
    target = sum(costs) / count
    bins: list[list[T]] = [[] for _ in range(count)]
    load = [0.0] * count
    for cost, item in sorted(zip(costs, items, strict=True), key=lambda each: (-each[0], key(each[1]))):
        lightest = load.index(min(load))
        before = bins_before.get(key(item), lightest)
        stays = before < count and load[before] + cost <= target * (1 + MOVE_FOR_SECONDS_RATIO)
        chosen = before if stays else lightest
        bins[chosen].append(item)
        load[chosen] += cost
    return tuple(tuple(sorted(group, key=key)) for group in bins if group)


def even(bins: Sequence[Sequence[T]], sizes: Mapping[T, float], target_bytes: int) -> bool:
    """Whether each bin comes close to the size that a file is to have."""
    loads = [sum(sizes[item] for item in group) for group in bins]
    return all(abs(load / target_bytes - 1) <= UNEVEN_FILE_RATIO for load in loads)
