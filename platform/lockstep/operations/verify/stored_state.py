"""Follows the stored state of one partition through the ledger, and compares it with the fold (half of I3)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lockstep.declare.record import Record
from lockstep.errors import StateError
from lockstep.operations.verify.applying import Session
from lockstep.operations.verify.declared import Declared
from lockstep.operations.verify.folding import Folding
from lockstep.operations.verify.proof import ViolationKind, Violations
from lockstep.operations.verify.ranges import LedgerRange
from lockstep.operations.verify.second_gate.moment import UNKNOWN_US
from lockstep.operations.verify.second_gate.parts import held_of
from lockstep.operations.verify.second_gate.sessions import agree, from_stored, is_waiting, stored_form
from lockstep.operations.verify.stored_beside import StoredBeside
from lockstep.operations.verify.waiting import Held
from lockstep.state.address import SectionRef, StateAddress
from lockstep.state.durable import read_section
from lockstep.state.section import Section, StateDamaged
from lockstep.state.translation import Today, Translation
from lockstep.state.versions import is_session, versions_of

SHOWN_CHARACTERS = 200


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
        self._beside = StoredBeside()
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
            self._entries, self._beside, self._at, self._typed = {}, StoredBeside(), None, None
            return None
        head = read_section(self._folder, wanted, address)
        if not head.header.chain or head.header.chain[-1] != self._at:
            self._entries, self._beside = {}, StoredBeside()
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
        folding.due.moment.at_us = UNKNOWN_US if row.watermark_us is None else row.watermark_us
        folding.applying.last_row = (row.until, row.rows_emitted)
        for session, value in self._entries.items():
            gate, state = self._decoded(session, value)
            known = from_stored(gate, folding.waits_before(session), suspends=suspends)
            if known is not None:
                seen_us, at = self._beside.clock(session)
                held = folding.sessions[session] = Session(known, state, seen_us=seen_us, at=at)
                folding.applying.save(held)
                self._hold_again(session, held, row, folding)
                folding.due.note(session, held)

    def _hold_again(self, session: str, held: Session, row: LedgerRange, folding: Folding) -> None:
        for offset in held_of(held.known.memory):
            message = self._beside.held(session, offset)
            record = Record(row.topic, row.topic_id, row.partition, offset, message)
            folding.waiting.held[offset] = folding.placed(record)

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
        touched = folding.applying.touched
        sessions = folding.sessions.keys() | self._entries.keys() if whole else touched
        for session in sorted(sessions):
            self._compare(row, session, folding)
            self._compare_beside(row, session, folding)
        for found in self._beside.of_nobody(folding.sessions) if whole else ():
            self._differs(row, None, "entries of sessions that are known", found)
        touched.clear()

    def _compare_beside(self, row: LedgerRange, session: str, folding: Folding) -> None:
        held, due = folding.sessions.get(session), folding.due
        found = list(self._beside.differences(session, _held_by(session, folding)))
        if held is not None and due.arms and not is_waiting(held.known, folding.waits_before(session)):
            found += self._beside.late_agenda(session, held, due.due_us(held))
        for each in found[:1]:
            self._differs(row, session, "what is stored beside the state", each)

    def _compare(self, row: LedgerRange, session: str, folding: Folding) -> None:
        self.compared += 1
        held, stored = folding.sessions.get(session), self._entries.get(session)
        if held is None or stored is None:
            if held is not None or stored is not None:
                words = ("no state", "a state")
                self._differs(row, session, words[held is not None], words[stored is not None])
            return
        value = self._schema.encode(session, stored_form(held.known, suspends=folding.suspends), held.state)
        folding.applying.save(held, value)
        if value == stored and not self._schema.tables:
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
        today = Today(value)
        if self._typed is not None:
            today = self._typed.today(session, value, lambda name, shape: self._beside.old_rows(session, name, shape))
        gate, state = self._schema.decode(session, today.value)
        if today.migrated is None:
            self._beside.fill(session, state, self._schema)
        else:
            self._schema.put_tables(state, today.migrated.state)
        return gate, state

    def _put(self, section: Section) -> None:
        if section.header.is_base:
            self._entries, self._beside = {}, StoredBeside()
        for block in section.blocks():
            for key, value in block:
                if not is_session(key):
                    if not self._beside.put(key, value):
                        raise StateDamaged(
                            section.place, "entries of a known kind", f"a key beginning with {key[:1]!r}"
                        )
                    continue
                session = key.decode("utf-8", "surrogatepass")
                if value is None:
                    self._entries.pop(session, None)
                else:
                    self._entries[session] = value


def _held_by(session: str, folding: Folding) -> dict[int, Held]:
    """What a session holds back: by what its gate remembers, so that nothing can be held back by nobody."""
    held = folding.sessions.get(session)
    offsets = () if held is None or held.known.waits else held_of(held.known.memory)
    return {offset: folding.waiting.held[offset] for offset in offsets}


def _short(state: object) -> str:
    shown = repr(msgspec.to_builtins(state, str_keys=False))
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
