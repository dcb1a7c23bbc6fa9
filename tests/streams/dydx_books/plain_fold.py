"""The levels of all markets of one connection, by the plainest fold. It never imports lockstep.

The rule of a row: each level that a message sets emits one row, in the order of the message, bids first. A message
without levels emits one row that names only its market, so that the table shows every message.

A level has the `offset` of the exchange at which it was set: its own in a whole book, otherwise that of its message. A
fold that keeps the highest `offset` of a level has the right book for any order of messages; a fold that keeps the last
level received does not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Key = tuple[str, str, str]
"""(market, side, price)."""
Level = tuple[int, str]
"""(offset, size)."""
Row = tuple[int, "str | None", "str | None", "str | None", "str | None", "int | None", "str | None"]
"""(message_id, market, side, price, size, offset, size before)."""


class Folded(NamedTuple):
    """The rows of some messages, and the levels of the connection that sent last."""

    rows: list[Row]
    levels: dict[Key, Level]


def fold(values: Iterable[bytes], *, newest: bool) -> Folded:
    """Fold raw messages in the given order.

    Args:
        values: The messages.
        newest: Whether to keep the level of the highest offset; otherwise the last received level.
    """
    rows: list[Row] = []
    connections: dict[str, dict[Key, Level]] = {}
    levels: dict[Key, Level] = {}
    for value in values:
        message = json.loads(value)
        levels = connections.setdefault(message["connection_id"], {})
        if message["type"] == "connected":
            levels.clear()
        emitted = len(rows)
        for key, level in levels_of(message):
            if newest and _stands(levels, key, level):
                continue
            before = levels[key][1] if key in levels else None
            levels[key] = level
            rows.append((message["message_id"], *key, level[1], level[0], before))
        if len(rows) == emitted:
            rows.append((message["message_id"], message.get("id"), None, None, None, None, None))
    return Folded(rows, levels)


def levels_of(message: dict[str, object]) -> Iterator[tuple[Key, Level]]:
    """Return the levels that a parsed message sets."""
    contents = message.get("contents")
    if not isinstance(contents, dict):
        return
    market = str(message["id"])
    for side in ("bids", "asks"):
        for told in contents.get(side, ()):
            if isinstance(told, dict):
                yield (market, side, told["price"]), (int(told["offset"]), told["size"])
            else:
                price, size = told
                yield (market, side, price), (int(contents["offset"]), size)


def last_of(rows: Iterable[Row]) -> dict[Key, Level]:
    """Return the final levels by the rows of a table."""
    levels: dict[Key, Level] = {}
    for _, market, side, price, size, offset, _ in rows:
        if market is not None and side is not None and price is not None and size is not None and offset is not None:
            levels[market, side, price] = offset, size
    return levels


def wrong(levels: dict[Key, Level], right: dict[Key, Level]) -> list[Key]:
    """List the keys whose levels differ from the right levels."""
    return sorted(key for key in levels.keys() | right.keys() if levels.get(key) != right.get(key))


def _stands(levels: dict[Key, Level], key: Key, level: Level) -> bool:
    """Whether the exchange set the existing level at the same offset or later."""
    return key in levels and levels[key][0] >= level[0]
