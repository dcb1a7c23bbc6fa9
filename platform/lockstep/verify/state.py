"""Stored state compared.

System entries are buffered messages, timers, clocks of sessions, and map entries that are stored one by one: their keys
start with bytes that no session has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

from lockstep.errors import StateError
from lockstep.model.map_state import MapState, TableState
from lockstep.model.position import SegmentRef
from lockstep.model.record import Record, read_headers
from lockstep.model.state_types import StateTypeSchema
from lockstep.state.changelog import Segment, StateDamaged, StateVersion, read_segment
from lockstep.state.codec import CurrentValue, StateMigrator, StateNotOfItsType, StateSchema
from lockstep.state.timers import AGENDA, CLOCK, HELD, BufferedMessage
from lockstep.state.values import ROWS, MapStateStore, is_session, read_versions, split_type_tag
from lockstep.table.commit import OutputLog
from lockstep.table.head import Head
from lockstep.verify.declaration import Declared
from lockstep.verify.event_time import NEVER, Held
from lockstep.verify.gates.base import (
    UNKNOWN_US,
    SessionMemory,
    Suspension,
    find_buffered,
    is_waiting,
)
from lockstep.verify.gates.other_class import OtherClass
from lockstep.verify.gates.stored import StoredGate, is_same_state, read_gate, to_stored_form
from lockstep.verify.ledger import LedgerRange
from lockstep.verify.lookups import NotReproducible
from lockstep.verify.replay import Replay
from lockstep.verify.report import ViolationKind, Violations
from lockstep.verify.sessions import NO_MESSAGE_US, Session

K = TypeVar("K")
_MESSAGES = msgspec.msgpack.Decoder(BufferedMessage)
_CLOCKS = msgspec.msgpack.Decoder(tuple[int, int, int])
_DIGEST_BYTES = 16
_PREFIX_REMOVED = b"\xf8"
_BEFORE_1970 = 2**63
"""Added to the deadlines in keys."""


class StoredSystemEntries:
    """See the module."""

    def __init__(self) -> None:
        self._held: dict[bytes, dict[int, bytes]] = {}
        self._agenda: dict[str, set[int]] = {}
        self._clocks: dict[str, bytes] = {}
        self._rows: dict[bytes, dict[bytes, bytes]] = {}

    def put(self, key: bytes, value: bytes | None) -> bool:
        """Add an entry; False if its kind is unknown."""
        kind = key[:1]
        suffix = key[1:]
        if kind == HELD:
            _put(
                self._held.setdefault(suffix[:_DIGEST_BYTES], {}), int.from_bytes(suffix[_DIGEST_BYTES:], "big"), value
            )
        elif kind == CLOCK:
            _put(self._clocks, suffix.decode("utf-8", "surrogatepass"), value)
        elif kind == AGENDA:
            self._put_on_agenda(suffix, value)
        elif kind == _PREFIX_REMOVED and value is None:
            self._remove_rows(suffix)
        elif kind == bytes([ROWS]):
            session, _, row = suffix.partition(b"\xff")
            _put(self._rows.setdefault(session, {}), row, value)
        else:
            return False
        return True

    def _remove_rows(self, prefix: bytes) -> None:
        """Remove the rows of a session, or of one of its tables: 0xf9, the session, 0xff, the start of their keys."""
        session, _, begin = prefix[1:].partition(b"\xff")
        rows = self._rows.get(session, {})
        self._rows[session] = {row: value for row, value in rows.items() if not row.startswith(begin)}

    def held(self, session: str, offset: int) -> BufferedMessage:
        """A buffered message.

        Raises:
            StateError: It is not there.
        """
        stored = self._held.get(_digest(session), {}).get(offset)
        if stored is None:
            problem = f"the message at offset {offset} of session {session!r} is buffered, but not stored"
            raise StateError(problem, next_step="restore the stream's `state` folder from a copy")
        return _MESSAGES.decode(stored)

    def clock(self, session: str) -> tuple[int, int]:
        """The newest event time of a session, and the offset of its last message."""
        stored = self._clocks.get(session)
        if stored is None:
            return (NO_MESSAGE_US, 0)
        return _CLOCKS.decode(stored)[1:]

    def noted_us(self, session: str) -> int:
        """The first due time of a session on the agenda; `NEVER` without one."""
        return min(self._agenda.get(session, ()), default=NEVER)

    def fill(self, session: str, state: object, schema: StateSchema[object]) -> None:
        """Fill the empty tables of a state with its rows."""
        rows = self._rows.get(session.encode("utf-8", "surrogatepass"), {})
        for field in schema.tables:
            table = field.of(state)
            prefix = field.name.encode() + b"\xff"
            if isinstance(table, MapState):
                for key, value in rows.items():
                    if key.startswith(prefix):
                        table[field.key_of(key[len(prefix) :])] = field.row_of(split_type_tag(value)[1])

    def old_rows(self, session: str, name: str, shape: StateTypeSchema) -> dict[object, object]:
        """The rows of a table of an older state type, without types."""
        return MapStateStore((), self).old_rows(session.encode("utf-8", "surrogatepass"), name, shape)

    def get(self, key: bytes) -> bytes | None:
        """The value of a row's entry."""
        session, _, row = key[1:].partition(b"\xff")
        return self._rows.get(session, {}).get(row)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries of one session's rows with a key prefix."""
        session, _, begin = prefix[1:].partition(b"\xff")
        for row, value in sorted(self._rows.get(session, {}).items()):
            if row.startswith(begin):
                yield prefix[: -len(begin) or None] + row, value

    def differences(self, session: str, waiting: Mapping[int, Held]) -> Iterator[str]:
        """Differences between the stored buffered messages of a session and the fold's.

        Args:
            session: The session.
            waiting: The buffered messages of the session, by offset.
        """
        stored = self._held.get(_digest(session), {})
        for offset in sorted(stored.keys() ^ waiting.keys()):
            words = ("buffered", "not buffered")
            yield f"offset {offset} is {words[offset in waiting]} in the state, {words[offset in stored]} in the fold"
        for offset in sorted(stored.keys() & waiting.keys()):
            if _content(_MESSAGES.decode(stored[offset])) != _content(waiting[offset][2].source):
                yield f"the buffered message at offset {offset} has another content in the state"

    def late_agenda(self, session: str, entry: Session, due_us: int) -> Iterator[str]:
        """Differences between the stored due time of a session that is not suspended and the fold's."""
        clock = self.clock(session)
        if clock != (entry.seen_us, entry.at):
            yield f"its newest message at {clock} (event time, offset), in the fold {(entry.seen_us, entry.at)}"
        if (noted := self.noted_us(session)) > due_us:
            shown = "nothing" if noted == NEVER else str(noted)
            yield f"something due at {due_us}, on the agenda {shown}"

    def orphans(self, sessions: Mapping[str, object]) -> Iterator[str]:
        """Entries that belong to no session of the fold."""
        digests = {_digest(session) for session in sessions}
        for digest in self._held.keys() - digests:
            for offset in sorted(self._held[digest]):
                yield f"offset {offset} buffered in no session"
        for session in sorted(self._clocks.keys() - sessions.keys()):
            if not self._agenda.get(session):  # otherwise reported with the agenda
                yield f"a clock of session {session!r}"
        names = {session.encode("utf-8", "surrogatepass") for session in sessions}
        for name in sorted(self._rows.keys() - names):
            if self._rows[name]:
                yield f"rows of session {name!r}"

    def _put_on_agenda(self, rest: bytes, value: bytes | None) -> None:
        """Keys contain a digest of the session, values the session: removed entries are found by key."""
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
    return record.key, record.value, read_headers(record.source), record.timestamp_ms


SHOWN_CHARACTERS = 200


class RewindFloor:
    """The rewind floor of a stream, which housekeeping raises while a proof reads: states before it may be gone.

    Attributes:
        batch: As last read.
    """

    def __init__(self, table: Path, head: Head) -> None:
        self._table = table
        self.batch = head.rewind_floor

    def refresh(self) -> int:
        """Read it again; it never falls."""
        self.batch = max(self.batch, OutputLog(self._table).base().head.rewind_floor)
        return self.batch

    def is_above(self, batch: int) -> bool:
        """Whether the state of a batch may have been deleted by now; reads it again before it returns False."""
        return batch < self.batch or batch < self.refresh()


class StoredState:
    """The stored state of one partition, as of the last ledger row that was followed.

    Attributes:
        compared: How many session states were compared.
        cleaned: Ledger rows before the rewind floor whose state was deleted since.
        left: Ledger rows of a promotion whose state is in the shadow's folder.
        unreadable: A segment could not be read: nothing more can be proven of the partition's state.
    """

    def __init__(
        self, folder: Path, declared: Declared, violations: Violations, head: Head, floor: RewindFloor
    ) -> None:
        self._folder = folder
        self._schema = declared.state
        self._whole = declared.whole
        self._violations = violations
        self._promotion = head.promotion
        self._floor = floor
        self.cleaned = 0
        self.left = 0
        self._at: SegmentRef | None = None
        self._entries: dict[str, bytes] = {}
        self._system = StoredSystemEntries()
        self._migrator: StateMigrator[object] | None = None
        self.other: OtherClass | None = None
        self.compared = 0
        self.unreadable = False

    def follow(self, row: LedgerRange) -> None:
        """Advance to the state of a ledger row.

        Raises:
            StateError: A segment is missing, damaged, of another partition or of another type.
        """
        wanted = row.segment
        if wanted == self._at:
            return
        head = self._load(row)
        if head is not None and head.header.next_offset != row.until:
            stored = f"the state before offset {head.header.next_offset}"
            self._differs(row, None, f"the state before offset {row.until}", stored)

    def _load(self, row: LedgerRange) -> Segment | None:
        """Read the segments of the row: its new segments, or its whole chain."""
        wanted = row.segment
        version = StateVersion(row.generation, row.topic_id, row.partition, row.until, wanted)
        if wanted is None:
            self._entries = {}
            self._system = StoredSystemEntries()
            self._at = None
            self._migrator = None
            return None
        head = read_segment(self._folder, wanted, version)
        # Unless it continues the state that is loaded, its whole chain is read.
        if not head.header.chain or head.header.chain[-1] != self._at:
            self._entries = {}
            self._system = StoredSystemEntries()
            for ref in head.header.chain:
                self._put(read_segment(self._folder, ref, version))
        self._put(head)
        self._at = wanted
        self._schema.accept(read_versions(head.header).shapes, head.place)
        self._migrator = StateMigrator(self._schema, head.header)
        return head

    def begin(self, row: LedgerRange, folding: Replay) -> None:
        """Start the fold with the state stored after a row; raises as `follow` does."""
        self._load(row)
        folding.suspension = Suspension(row.suspended_from, row.skips)
        folding.losses.before = row.lost_before
        folding.due.moment.at_us = UNKNOWN_US if row.watermark_us is None else row.watermark_us
        folding.applying.last_row = (row.until, row.rows_emitted)
        for session, value in self._entries.items():
            gate, state = self._decoded(session, value)
            seen_us, last_offset = self._system.clock(session)
            if self.other is not None:
                gate = self.other.take_over(gate)
            memory = SessionMemory(0, None) if gate is None else gate.known
            entry = Session(memory, state, seen_us=seen_us, at=last_offset)
            folding.sessions[session] = entry
            folding.applying.save(entry)
            self._hold_again(session, entry, row, folding)
            folding.due.note_at(session, self._system.noted_us(session))  # may be of another declaration

    def _hold_again(self, session: str, entry: Session, row: LedgerRange, folding: Replay) -> None:
        for offset in find_buffered(entry.known.memory):
            message = self._system.held(session, offset)
            record = Record(row.topic, row.topic_id, row.partition, offset, message)
            folding.waiting.held[offset] = folding.placed(record)

    def read_states(self, row: LedgerRange) -> Iterator[tuple[str, object]]:
        """The states after a row, by session; None while a first snapshot is open.

        Raises:
            StateError: As `follow`.
        """
        self._load(row)
        for session, value in self._entries.items():
            yield session, self._decoded(session, value)[1]

    def compare(self, row: LedgerRange, folding: Replay, *, whole: bool) -> None:
        """Compare the state stored after a row with the fold: the touched sessions, or all.

        Housekeeping deletes states before the rewind floor, and a promotion takes the last of the shadow: the sessions
        of those that are not there are compared with the next one.
        """
        if self.unreadable:
            return
        try:
            self.follow(row)
        except StateError as error:
            # Housekeeping deletes states, and a promotion leaves those of the shadow: the next state is compared.
            if not whole and self._may_be_absent(row.batch):
                self._at = None
                return
            self.unreadable = True
            expected = f"the state after batch {row.batch}"
            self._violations.add(ViolationKind.STATE_DAMAGED, row.place, row.until, expected, error.problem)
            return
        touched = folding.applying.touched
        sessions: AbstractSet[str] = touched
        if whole:
            sessions = folding.sessions.keys() | self._entries.keys()
        for session in sorted(sessions):
            self._compare(row, session, folding)
            self._compare_system_entries(row, session, folding)
        if whole:
            for orphan in self._system.orphans(folding.sessions):
                self._differs(row, None, "entries of sessions that are known", orphan)
        touched.clear()

    def _may_be_absent(self, batch: int) -> bool:
        """Whether no state of a batch is expected; counts it by its reason."""
        promotion = self._promotion
        cleaned = self._floor.is_above(batch)
        stayed = not cleaned and promotion is not None and promotion.first < batch < promotion.batch
        self.cleaned += cleaned
        self.left += stayed
        return cleaned or stayed

    def _compare_system_entries(self, row: LedgerRange, session: str, folding: Replay) -> None:
        entry = folding.sessions.get(session)
        due = folding.due
        differences = list(self._system.differences(session, _held_by(session, folding)))
        if entry is not None and due.arms and not is_waiting(entry.known, folding.waits_before(session)):
            differences += self._system.late_agenda(session, entry, due.noted_us(session))
        if differences:
            self._differs(row, session, "entries stored with the state", differences[0])

    def _compare(self, row: LedgerRange, session: str, folding: Replay) -> None:
        self.compared += 1
        entry = folding.sessions.get(session)
        stored = self._entries.get(session)
        if entry is None or stored is None:
            if entry is not None or stored is not None:
                words = ("no state", "a state")
                self._differs(row, session, words[entry is not None], words[stored is not None])
            return
        try:
            value = self._whole.encode(session, to_stored_form(entry.known, suspends=folding.suspends), entry.state)
        except StateNotOfItsType as error:  # the stream applied a message that it should have refused
            self._differs(row, session, f"a state that can be stored, not {show_short(entry.state)}", error.reason)
            return
        # Encoded once: the fold needs the same copy to undo later messages.
        folding.applying.save(entry, value)
        # Equal bytes need no decoding; rows of tables are separate entries.
        if value == stored and not self._schema.tables:
            return
        gate, state = self._decoded(session, stored)
        if not self._is_same(gate, entry.known, folding.waits_before(session)):
            stored_memory = None if gate is None else gate.known
            self._differs(row, session, f"gate {entry.known}", f"gate {stored_memory}")
        elif not _is_same(state, entry.state):
            self._differs(row, session, show_short(entry.state), show_short(state))

    def _is_same(self, gate: StoredGate | None, known: SessionMemory, before: int) -> bool:
        """Whether a stored gate equals the fold's; after a change of class, once it is converted."""
        if self.other is None or is_same_state(gate, known, before):
            return is_same_state(gate, known, before)
        try:
            return is_same_state(self.other.take_over(gate), known, before)
        except NotReproducible:
            return False

    def _differs(self, row: LedgerRange, session: str | None, expected: str, found: str) -> None:
        where = f"after batch {row.batch}: {expected}"
        if session is not None:
            where = f"session {session!r} {where}"
        self._violations.add(ViolationKind.STATE_DIFFERS, row.place, row.until, where, found)

    def _decoded(self, session: str, value: bytes) -> tuple[StoredGate | None, object]:
        """A stored value as the current type, from any type that it was stored with."""
        # Tables have another layout, which was refused before: there are no rows to migrate.
        current = CurrentValue(value)
        if self._migrator is not None:
            current = self._migrator.migrate(
                session, value, lambda name, shape: self._system.old_rows(session, name, shape)
            )
        encoded, state = self._schema.decode_apart(session, current.value)
        try:
            gate = read_gate(encoded)
        except ValueError as error:
            raise StateDamaged(f"session {session!r}", "the state of a gate", str(error)) from error
        if current.migrated is not None:
            return gate, _to_fold(current.migrated.state)
        self._system.fill(session, state, self._schema)
        return gate, _to_fold(state)

    def _put(self, segment: Segment) -> None:
        if segment.header.is_base:
            self._entries = {}
            self._system = StoredSystemEntries()
        for block in segment.blocks():
            for key, value in block:
                if not is_session(key):
                    if not self._system.put(key, value):
                        raise StateDamaged(
                            segment.place, "entries of a known kind", f"a key beginning with {key[:1]!r}"
                        )
                    continue
                session = key.decode("utf-8", "surrogatepass")
                if value is None:
                    self._entries.pop(session, None)
                else:
                    self._entries[session] = value


def _to_fold(state: object) -> object:
    """A state as the fold has it: the table of a ready fold is a dict."""
    if isinstance(state, TableState):
        return dict(state.items())
    return state


def _is_same(stored: object, entry: object) -> bool:
    """Whether two states are equal, NaN being the same as NaN; rows that are stored one by one have no order."""
    if stored == entry or repr(stored) == repr(entry):
        return True
    if not (isinstance(stored, dict) and isinstance(entry, dict) and stored.keys() == entry.keys()):
        return False
    return all(row == entry[key] or repr(row) == repr(entry[key]) for key, row in stored.items())


def _held_by(session: str, folding: Replay) -> dict[int, Held]:
    """Offsets a session has buffered, derived from its gate state, so that orphaned entries are detected."""
    entry = folding.sessions.get(session)
    if entry is None or entry.known.waits:
        return {}
    return {offset: folding.waiting.held[offset] for offset in find_buffered(entry.known.memory)}


def show_short(state: object) -> str:
    """A state, or a part of it, in a text of bounded length."""
    shown = repr(msgspec.to_builtins(state, str_keys=False, enc_hook=dict))  # the only type of our own is a mapping
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
