"""System keys, timer queue, message buffer of a partition.

They are stored, chained and recovered like any entry. Their keys start with bytes that no session has,
because a session is UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final

import msgspec

from lockstep.errors import StateError
from lockstep.model.record import KafkaMessage, Record, read_headers
from lockstep.state.entry_order import Change

AGENDA: Final = b"\xff"
"""Followed by the deadline and a digest of the session: timers, in order."""
HELD: Final = b"\xfe"
"""Followed by a digest of the session and the offset: a buffered message."""
CLOCK: Final = b"\xfd"
"""Followed by the session: its clock."""


SCANNED: Final = 256
"""Stored entries read at a time: the first timers are seldom many."""

Scan = Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]]
"""Stored entries by key prefix, after a given key, in order, at most so many."""


class SystemEntries:
    """The system entries of one partition while one range is folded."""

    def __init__(self, stored: Callable[[bytes], bytes | None], scan: Scan) -> None:
        """Nothing is read before it is needed.

        Args:
            stored: Returns the stored value of a key.
            scan: Returns stored entries in order.
        """
        self._stored = stored
        self._scan = scan
        self._changed: dict[bytes, bytes | None] = {}
        self._new: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None when it has none."""
        if key in self._changed:
            return self._changed[key]
        return self._stored(key)

    def add(self, key: bytes, value: bytes) -> None:
        """Set the value of a key that was never stored."""
        self._new.add(key)
        self._changed[key] = value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self._changed[key] = value

    def remove(self, key: bytes) -> None:
        """Remove a key, whether it exists or not."""
        if key in self._new:
            self._new.remove(key)
            del self._changed[key]
        else:
            self._changed[key] = None

    def stored_from(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries stored before this range, in the order of keys; changes of this range are not included."""
        after = prefix
        while entries := self._scan(prefix, after, SCANNED):
            yield from entries
            after = entries[-1][0]

    def changes(self) -> list[Change]:
        """Entries that differ from the stored ones, in the order of keys."""
        changes = list[Change]()
        for key, value in sorted(self._changed.items()):
            if key in self._new or value != self._stored(key):
                changes.append((key, value))
        return changes


NEVER: Final = 2**63 - 1
_OFFSET: Final = 2**63
"""Added to a deadline, so that negative deadlines are first in the order of bytes."""


class TimerQueue:
    """Sessions by the watermark at which something is due for them.

    A session may be in it more than once; the taker of an entry checks its real due time.

    Attributes:
        next_us: The first deadline, in microseconds since 1970 (UTC); `NEVER` without any.
    """

    def __init__(self, reserved: SystemEntries) -> None:
        self._reserved = reserved
        self._stored = self._read()
        self._first_stored = next(self._stored, None)
        self._added: list[tuple[int, str, bytes]] = []
        self.next_us = self._earliest()

    def add(self, deadline_us: int, session: str) -> None:
        """Add a due time of a session."""
        key = _timer_key(deadline_us, session)
        self._reserved.put(key, session.encode("utf-8", "surrogatepass"))
        heappush(self._added, (deadline_us, session, key))
        self.next_us = min(self.next_us, deadline_us)

    def take(self, watermark_us: int) -> list[tuple[int, str]]:
        """Remove and return all entries of the first deadline up to a watermark: (deadline, session), by session."""
        deadline_us = self.next_us
        if deadline_us > watermark_us:
            return []
        sessions: set[str] = set()
        while self._first_stored is not None and self._first_stored[0] == deadline_us:
            sessions.add(self._taken(self._first_stored))
            self._first_stored = next(self._stored, None)
        while self._added and self._added[0][0] == deadline_us:
            sessions.add(self._taken(heappop(self._added)))
        self.next_us = self._earliest()
        # Sorted: the order of a set differs from process to process, and a retried task must return the same rows.
        return [(deadline_us, session) for session in sorted(sessions)]

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
        added = self._added[0][0] if self._added else NEVER
        return min(stored, added)


def _timer_key(deadline_us: int, session: str) -> bytes:
    digest = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return AGENDA + (deadline_us + _OFFSET).to_bytes(8, "big") + digest


class BufferedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A buffered message (`KafkaMessage`), with its offset."""

    at: int
    sent_key: bytes | None
    sent_value: bytes | None
    sent_headers: list[tuple[str, bytes | None]] | None
    sent_timestamp: tuple[int, int]
    sent_epoch: int | None

    def offset(self) -> int:
        """Its offset."""
        return self.at

    def key(self) -> bytes | None:
        """The key."""
        return self.sent_key

    def value(self) -> bytes | None:
        """The value."""
        return self.sent_value

    def headers(self) -> object:
        """Pairs of name and value, or None."""
        return self.sent_headers

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        return self.sent_timestamp

    def leader_epoch(self) -> int | None:
        """Leader epoch, if the broker sent it."""
        return self.sent_epoch


_ENCODER = msgspec.msgpack.Encoder()
_MESSAGES = msgspec.msgpack.Decoder(BufferedMessage)


class MessageBuffer:
    """The buffered messages of one partition."""

    def __init__(self, reserved: SystemEntries) -> None:
        self._reserved = reserved

    def put(self, session: str, record: Record) -> None:
        """Buffer a message."""
        source: KafkaMessage = record.source
        headers = list(read_headers(source)) or None
        message = BufferedMessage(
            record.offset, source.key(), source.value(), headers, source.timestamp(), source.leader_epoch()
        )
        self._reserved.add(_buffer_key(session, record.offset), _ENCODER.encode(message))

    def take(self, session: str, offset: int) -> BufferedMessage:
        """Remove and return a message.

        Raises:
            StateError: It is missing, although the session's state refers to it.
        """
        key = _buffer_key(session, offset)
        stored = self._reserved.get(key)
        if stored is None:
            problem = f"the message at offset {offset} of session {session!r} is buffered, but not stored"
            raise StateError(problem, next_step="restore the stream's `state` folder from a copy")
        self._reserved.remove(key)
        return _MESSAGES.decode(stored)


def _buffer_key(session: str, offset: int) -> bytes:
    return HELD + blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).digest() + offset.to_bytes(8, "big")
