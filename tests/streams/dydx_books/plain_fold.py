"""The levels of all markets of one connection, by the plainest fold there is. Never imports lockstep.

The rule of a row: each level that a message sets gives one row, in the order of the message, bids first; a message
that sets none gives one row that names only its market, so that every message is seen in the table.

A level carries the `offset` of the exchange at which it was set: its own in a whole book, that of its message
otherwise. Who keeps the highest `offset` of a level has the right book in whatever order messages come; who takes
levels as they come does not.
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
    """What came of some messages; the levels are those of the connection that spoke last."""

    rows: list[Row]
    levels: dict[Key, Level]


def fold(values: Iterable[bytes], *, newest: bool) -> Folded:
    """Fold raw messages in the order in which they are given.

    Args:
        values: The messages.
        newest: Keep the level of the highest offset; else the one that came last.
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
    """The levels that a parsed message sets."""
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
    """The levels that the rows of a table leave."""
    levels: dict[Key, Level] = {}
    for _, market, side, price, size, offset, _ in rows:
        if market is not None and side is not None and price is not None and size is not None and offset is not None:
            levels[market, side, price] = offset, size
    return levels


def wrong(levels: dict[Key, Level], right: dict[Key, Level]) -> list[Key]:
    """The levels that are not what they should be."""
    return sorted(key for key in levels.keys() | right.keys() if levels.get(key) != right.get(key))


def _stands(levels: dict[Key, Level], key: Key, level: Level) -> bool:
    """Whether the level that is there was set later by the exchange."""
    return key in levels and levels[key][0] >= level[0]
