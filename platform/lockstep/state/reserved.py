"""Entries of a partition's state that belong to no session's state: what is held back, and what is due.

They are stored, chained and recovered like any entry. Their keys begin with bytes that no session has,
because a session is UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lockstep.state.section import Change

AGENDA: Final = b"\xff"
"""Then the deadline and a digest of the session: what is due, in order."""
HELD: Final = b"\xfe"
"""Then a digest of the session and the offset: a message held back."""
CLOCK: Final = b"\xfd"
"""Then the session: what is known of its time."""


def is_reserved(key: bytes) -> bool:
    """Whether a stored key is none of a session."""
    return key[:1] in {AGENDA, HELD, CLOCK}


SCANNED: Final = 256
"""Stored entries read at a time: who asks for what is due first seldom needs many."""

Scan = Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]]
"""Stored entries whose keys begin with some bytes and come after others, in order, at most so many."""


class Reserved:
    """The reserved entries of one partition while one range is folded."""

    def __init__(self, stored: Callable[[bytes], bytes | None], scan: Scan) -> None:
        """Nothing is read before it is asked for.

        Args:
            stored: Gives the stored value of a key.
            scan: Gives stored entries in order.
        """
        self._stored, self._scan = stored, scan
        self._changed: dict[bytes, bytes | None] = {}
        self._new: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None when it has none."""
        return self._changed[key] if key in self._changed else self._stored(key)

    def add(self, key: bytes, value: bytes) -> None:
        """Set the value of a key that was never stored."""
        self._new.add(key)
        self._changed[key] = value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self._changed[key] = value

    def remove(self, key: bytes) -> None:
        """Remove a key, whether it is there or not."""
        if key in self._new:
            self._new.remove(key)
            del self._changed[key]
        else:
            self._changed[key] = None

    def stored_from(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What was stored before this range, in the order of keys; changes of this range are not seen."""
        after = prefix
        while found := self._scan(prefix, after, SCANNED):
            yield from found
            after = found[-1][0]

    def changes(self) -> list[Change]:
        """What differs from what was stored, in the order of keys."""
        return [
            (key, value)
            for key, value in sorted(self._changed.items())
            if key in self._new or value != self._stored(key)
        ]

    def forget(self) -> None:
        """Undo everything since the state was opened."""
        self._changed.clear()
        self._new.clear()
