"""What is due in a partition, in the order of (deadline, session); kept with its state."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final

from lockstep.state.reserved import AGENDA, Reserved

NEVER: Final = 2**63 - 1
_OFFSET: Final = 2**63
"""Added to a deadline, so that negative ones come first in the order of bytes."""


class Agenda:
    """Sessions by the watermark at which something is due for them.

    A session may stand in it more than once; whoever takes an entry looks at what really is due.

    Attributes:
        next_us: The first deadline, in microseconds since 1970 (UTC); `NEVER` without any.
    """

    def __init__(self, reserved: Reserved) -> None:
        self._reserved = reserved
        self._stored = self._read()
        self._first_stored = next(self._stored, None)
        self._added: list[tuple[int, str, bytes]] = []
        self.next_us = self._earliest()

    def add(self, deadline_us: int, session: str) -> None:
        """Note that something is due for a session."""
        key = _key(deadline_us, session)
        self._reserved.put(key, session.encode("utf-8", "surrogatepass"))
        heappush(self._added, (deadline_us, session, key))
        self.next_us = min(self.next_us, deadline_us)

    def take(self, watermark_us: int) -> list[tuple[int, str]]:
        """Take out all that is due at the first deadline up to a watermark: (deadline, session), by session."""
        deadline_us = self.next_us
        if deadline_us > watermark_us:
            return []
        taken: set[str] = set()
        while self._first_stored is not None and self._first_stored[0] == deadline_us:
            taken.add(self._taken(self._first_stored))
            self._first_stored = next(self._stored, None)
        while self._added and self._added[0][0] == deadline_us:
            taken.add(self._taken(heappop(self._added)))
        self.next_us = self._earliest()
        return [(deadline_us, session) for session in sorted(taken)]

    def _taken(self, entry: tuple[int, str, bytes]) -> str:
        _, session, key = entry
        self._reserved.remove(key)
        return session

    def _read(self) -> Iterator[tuple[int, str, bytes]]:
        for key, value in self._reserved.stored_from(AGENDA):
            deadline_us = int.from_bytes(key[1:9], "big") - _OFFSET
            yield deadline_us, value.decode("utf-8", "surrogatepass"), key

    def _earliest(self) -> int:
        stored = NEVER if self._first_stored is None else self._first_stored[0]
        return min(stored, self._added[0][0] if self._added else NEVER)


def _key(deadline_us: int, session: str) -> bytes:
    digest = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return AGENDA + (deadline_us + _OFFSET).to_bytes(8, "big") + digest
