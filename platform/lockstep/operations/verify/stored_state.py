"""Follows the stored state of one partition through the ledger, and compares it with the fold (half of I3)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lockstep.errors import StateError
from lockstep.operations.verify.declared import Declared
from lockstep.operations.verify.folding import Folding, Session
from lockstep.operations.verify.proof import ViolationKind, Violations
from lockstep.operations.verify.ranges import LedgerRange
from lockstep.operations.verify.second_gate.sessions import agree, from_stored, stored_form
from lockstep.state.address import SectionRef, StateAddress
from lockstep.state.durable import read_section
from lockstep.state.section import Section, StateDamaged
from lockstep.state.translation import Translation
from lockstep.state.versions import is_session, versions_of

SHOWN_CHARACTERS = 200


class _OfAnotherLayout(StateDamaged):
    """State that is stored in another layout than one value a session: this proof cannot read it."""


class StoredState:
    """The stored state of one partition, as of the ledger row that was followed last.

    Attributes:
        compared: How many session states were compared.
        unreadable: A section could not be read: nothing more can be said of the partition's state.
    """

    def __init__(self, folder: Path, declared: Declared, violations: Violations) -> None:
        self._folder, self._schema, self._violations = folder, declared.state, violations
        self._at: SectionRef | None = None
        self._entries: dict[str, bytes] = {}
        self._typed: Translation[object] | None = None
        self.compared = 0
        self.unreadable = False

    def follow(self, row: LedgerRange) -> None:
        """Go on to the state that a ledger row names.

        Raises:
            StateError: A section is missing, damaged, of another partition or of another type.
        """
        wanted = row.section
        if wanted == self._at:
            return
        head = self._load(row)
        if head is not None and head.header.next_offset != row.until:
            found = f"the state before offset {head.header.next_offset}"
            self._differs(row, None, f"the state before offset {row.until}", found)

    def _load(self, row: LedgerRange) -> Section | None:
        """Read what the row names: what is new in it, or its whole chain."""
        wanted = row.section
        address = StateAddress(row.generation, row.topic_id, row.partition, row.until, wanted)
        if wanted is None:
            self._entries, self._at, self._typed = {}, None, None
            return None
        head = read_section(self._folder, wanted, address)
        if not head.header.chain or head.header.chain[-1] != self._at:
            self._entries = {}
            for ref in head.header.chain:
                self._put(read_section(self._folder, ref, address))
        self._put(head)
        self._at = wanted
        self._schema.accept(versions_of(head.header).shapes, head.place)
        self._typed = Translation(self._schema, head.header)
        return head

    def begin(self, row: LedgerRange, folding: Folding, *, suspends: bool) -> None:
        """Let the fold begin with the state that is stored after a row; raises as `follow` does."""
        self._load(row)
        folding.suspend_before(row.suspended_from)
        suspends = suspends or folding.suspends
        for session, value in self._entries.items():
            gate, state = self._decoded(session, value)
            known = from_stored(gate, folding.waits_before(session), suspends=suspends)
            if known is not None:
                folding.sessions[session] = Session(known, state)
                folding.save(session, self._schema.encode(session, gate, state))

    def compare(self, row: LedgerRange, folding: Folding, *, whole: bool) -> None:
        """Compare what is stored after a row with the fold: the sessions that were touched, or all."""
        if self.unreadable:
            return
        try:
            self.follow(row)
        except StateError as error:
            self.unreadable = True
            expected = f"the state after batch {row.batch}"
            self._violations.add(ViolationKind.STATE_DAMAGED, row.place, row.until, expected, error.problem)
            return
        sessions = folding.sessions.keys() | self._entries.keys() if whole else folding.touched
        for session in sorted(sessions):
            self._compare(row, session, folding)
        folding.touched.clear()

    def _compare(self, row: LedgerRange, session: str, folding: Folding) -> None:
        self.compared += 1
        held, stored = folding.sessions.get(session), self._entries.get(session)
        if held is None or stored is None:
            if held is not None or stored is not None:
                words = ("no state", "a state")
                self._differs(row, session, words[held is not None], words[stored is not None])
            return
        value = self._schema.encode(session, stored_form(held.known, suspends=folding.suspends), held.state)
        folding.save(session, value)
        if value == stored:
            return
        gate, state = self._decoded(session, stored)
        if not agree(gate, held.known, folding.waits_before(session)):
            self._differs(row, session, f"gate {held.known}", f"gate {gate}")
        elif state != held.state and repr(state) != repr(held.state):
            self._differs(row, session, _short(held.state), _short(state))

    def _differs(self, row: LedgerRange, session: str | None, expected: str, found: str) -> None:
        where = f"{'' if session is None else f'session {session!r} '}after batch {row.batch}: {expected}"
        self._violations.add(ViolationKind.STATE_DIFFERS, row.place, row.until, where, found)

    def _decoded(self, session: str, value: bytes) -> tuple[object, object]:
        """A stored value by today's type, whatever type it was stored by."""
        # Tables have a layout of their own, which is refused before: there are no rows to migrate.
        today = value if self._typed is None else self._typed.today(session, value, lambda _name, _shape: {}).value
        return self._schema.decode(session, today)

    def _put(self, section: Section) -> None:
        if section.header.is_base:
            self._entries = {}
        for block in section.blocks():
            for key, value in block:
                if not is_session(key):
                    raise _OfAnotherLayout(section.place, "sessions", f"a key that begins with {key[:1]!r}")
                session = key.decode("utf-8", "surrogatepass")
                if value is None:
                    self._entries.pop(session, None)
                else:
                    self._entries[session] = value


def _short(state: object) -> str:
    shown = repr(msgspec.to_builtins(state, str_keys=False))
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
