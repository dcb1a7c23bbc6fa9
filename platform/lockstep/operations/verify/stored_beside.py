"""What a partition's state holds beside the states of its sessions, compared with the fold.

Messages held back, the agenda, the clocks of sessions, and the rows of tables that are stored one by one: their keys
begin with bytes that no session has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import TypeVar

import msgspec

from lockstep.declare.record import Record
from lockstep.declare.rows import Rows
from lockstep.errors import StateError
from lockstep.operations.verify.applying import Session
from lockstep.operations.verify.due import NEVER
from lockstep.operations.verify.waiting import Held
from lockstep.state.held import HeldMessage
from lockstep.state.reserved import AGENDA, CLOCK, HELD
from lockstep.state.rowstore import RowStore
from lockstep.state.schema import StateSchema
from lockstep.state.shape import Shape
from lockstep.state.versions import ROWS, parted

K = TypeVar("K")
_MESSAGES = msgspec.msgpack.Decoder(HeldMessage)
_CLOCKS = msgspec.msgpack.Decoder(tuple[int, int, int])
_DIGEST_BYTES = 16
_BEFORE_1970 = 2**63
"""Added to the deadlines in keys."""


class StoredBeside:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[bytes, dict[int, bytes]] = {}
        self._agenda: dict[str, set[int]] = {}
        self._clocks: dict[str, bytes] = {}
        self._rows: dict[bytes, dict[bytes, bytes]] = {}

    def put(self, key: bytes, value: bytes | None) -> bool:
        """Take up an entry; False where it is of no known kind."""
        kind, rest = key[:1], key[1:]
        if kind == HELD:
            _put(self._held.setdefault(rest[:_DIGEST_BYTES], {}), int.from_bytes(rest[_DIGEST_BYTES:], "big"), value)
        elif kind == CLOCK:
            _put(self._clocks, rest.decode("utf-8", "surrogatepass"), value)
        elif kind == AGENDA:
            self._put_on_agenda(rest, value)
        elif kind == bytes([ROWS]):
            session, _, row = rest.partition(b"\xff")
            _put(self._rows.setdefault(session, {}), row, value)
        else:
            return False
        return True

    def held(self, session: str, offset: int) -> HeldMessage:
        """A message that is held back.

        Raises:
            StateError: It is not there.
        """
        stored = self._held.get(_digest(session), {}).get(offset)
        if stored is None:
            problem = f"the message at offset {offset} of session {session!r} is held back, but not stored"
            raise StateError(problem, next_step="restore the stream's `state` folder from a copy")
        return _MESSAGES.decode(stored)

    def clock(self, session: str) -> tuple[int, int]:
        """The newest event time of a session, and the offset of its last message."""
        stored = self._clocks.get(session)
        return (0, 0) if stored is None else _CLOCKS.decode(stored)[1:]

    def fill(self, session: str, state: object, schema: StateSchema[object]) -> None:
        """Put its rows into the empty tables of a state."""
        rows = self._rows.get(session.encode("utf-8", "surrogatepass"), {})
        for field in schema.tables:
            table, prefix = field.of(state), field.name.encode() + b"\xff"
            if isinstance(table, Rows):
                for key, value in rows.items():
                    if key.startswith(prefix):
                        table[field.key_of(key[len(prefix) :])] = field.row_of(parted(value)[1])

    def old_rows(self, session: str, name: str, shape: Shape) -> dict[object, object]:
        """The rows of a table of an older state type, without types."""
        return RowStore((), self).old_rows(session.encode("utf-8", "surrogatepass"), name, shape)

    def get(self, key: bytes) -> bytes | None:
        """The value of a row's entry."""
        session, _, row = key[1:].partition(b"\xff")
        return self._rows.get(session, {}).get(row)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries of one session's rows whose keys begin so."""
        session, _, begin = prefix[1:].partition(b"\xff")
        for row, value in sorted(self._rows.get(session, {}).items()):
            if row.startswith(begin):
                yield prefix[: -len(begin) or None] + row, value

    def differences(self, session: str, waiting: Mapping[int, Held]) -> Iterator[str]:
        """What is not as the fold says of the messages that a session holds back.

        Args:
            session: The session.
            waiting: The messages that wait in it, by offset.
        """
        stored = self._held.get(_digest(session), {})
        for offset in sorted(stored.keys() ^ waiting.keys()):
            words = ("held back", "not held back")
            yield f"offset {offset} is {words[offset in waiting]} in the state, {words[offset in stored]} in the fold"
        for offset in sorted(stored.keys() & waiting.keys()):
            if _content(_MESSAGES.decode(stored[offset])) != _content(waiting[offset][2].source):
                yield f"the message held back at offset {offset} has another content in the state"

    def late_agenda(self, session: str, held: Session, due_us: int) -> Iterator[str]:
        """What is not as the fold says of when something is due for a session that waits for nothing."""
        clock = self.clock(session)
        if clock != (held.seen_us, held.at):
            yield f"its newest message at {clock} (event time, offset), in the fold {(held.seen_us, held.at)}"
        noted = min(self._agenda.get(session, ()), default=NEVER)
        if noted > due_us:
            yield f"something due at {due_us}, on the agenda {'nothing' if noted == NEVER else noted}"

    def of_nobody(self, sessions: Mapping[str, object]) -> Iterator[str]:
        """Entries that belong to no session of the fold."""
        known = {_digest(session) for session in sessions}
        for digest in self._held.keys() - known:
            yield from (f"offset {offset} held back in no session" for offset in sorted(self._held[digest]))
        for session in sorted(self._clocks.keys() - sessions.keys()):
            if not self._agenda.get(session):  # else it goes with what is on the agenda
                yield f"a clock of session {session!r}"
        names = {session.encode("utf-8", "surrogatepass") for session in sessions}
        for name in sorted(self._rows.keys() - names):
            yield from (f"rows of session {name!r}" for _ in list(self._rows[name])[:1])

    def _put_on_agenda(self, rest: bytes, value: bytes | None) -> None:
        """Its keys hold a digest of the session, its values the session: what is removed is found by its key."""
        due_us = int.from_bytes(rest[:8], "big") - _BEFORE_1970
        if value is not None:
            self._agenda.setdefault(value.decode("utf-8", "surrogatepass"), set()).add(due_us)
            return
        for session, noted in self._agenda.items():
            if due_us in noted and _digest(session) == rest[8:]:
                noted.remove(due_us)


def _put(entries: dict[K, bytes], key: K, value: bytes | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value


def _digest(session: str) -> bytes:
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def _content(source: object) -> tuple[object, ...]:
    record = Record("", "", 0, 0, source)  # type: ignore[arg-type]  # a message of either kind
    return record.key, record.value, record.headers, record.timestamp_ms
