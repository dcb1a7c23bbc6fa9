"""Several segments as one: the newest change of each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge

from lockstep.state.entry_order import Change, find_prefixes, make_prefix_removal, make_store_key, take_prefixes

_Aged = tuple[bytes, int, Change]


def merge_changes(streams: Iterable[Iterable[Change]]) -> Iterator[Change]:
    """The changes that have the effect of all streams, one after the other; in their order.

    Memory holds the prefix removals, and one change of each stream.

    Args:
        streams: Changes in their order; the oldest stream first.
    """
    removed = dict[bytes, int]()
    aged = list[Iterator[_Aged]]()
    for age, stream in enumerate(streams):
        prefixes, others = take_prefixes(stream)
        removed.update(dict.fromkeys(prefixes, age))
        aged.append(_add_age(others, age))
    yield from map(make_prefix_removal, sorted(removed))
    previous = b""
    for store_key, newest_first, change in merge(*aged):
        if store_key == previous:  # an older change of the key
            continue
        previous = store_key
        if not (removed and _is_removed_later(change[0], -newest_first, removed)):
            yield change


def _add_age(changes: Iterator[Change], age: int) -> Iterator[_Aged]:
    """Changes as they are merged: by key, the newest first."""
    previous = b""
    for change in changes:
        store_key = make_store_key(change[0])
        if store_key <= previous:
            raise ValueError(f"changes out of order at {change[0][:80]!r}")
        previous = store_key
        yield store_key, -age, change


def _is_removed_later(key: bytes, age: int, removed: Mapping[bytes, int]) -> bool:
    return any(removed.get(prefix, age) > age for prefix in find_prefixes(key))
