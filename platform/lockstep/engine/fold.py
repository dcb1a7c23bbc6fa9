"""Folds the messages of one range: decode, place, gate, apply. The hot loop of the whole system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from lockstep.declare.decoders.causes import Cause, Undecodable, cause_of
from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.declare.transform import Opened
from lockstep.engine.facts import Counts
from lockstep.engine.kept import KILLS_ITS_WORKER, Kept, Message, Without
from lockstep.engine.origin import Chunk, Origin, proof_of
from lockstep.engine.plan import Position
from lockstep.engine.program import Program
from lockstep.errors import EnvironmentProblem, StateError, Violation
from lockstep.integrity.contract import Fault
from lockstep.integrity.finding import Finding
from lockstep.integrity.suspending import suspended_state
from lockstep.integrity.verdict import ACCEPT, GateState, Judgement, Verdict
from lockstep.state.store import Entry, PartitionState
from lockstep.table.rows import RowRefused

CHUNK_ROWS = 500
"""Rows turned into Arrow at once: once per batch costs 2.5 times as much (caches), fewer cost calls."""
SKIP, UPDATE, END = Kind.SKIP, Kind.UPDATE, Kind.END
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoders raise on bad input; TypeError is a null value."""
_REPEATED = (Judgement.ACCEPT, Judgement.DUPLICATE, Judgement.LATE)


class _Ended(Exception):
    """The fold of the range goes no further; why is noted."""


class RangeFold:
    """The fold of one range of one partition.

    Attributes:
        counts: Messages by what became of them.
        batches: The rows so far.
        stopped: The violation that ended the fold.
        refused: A message that the transform cannot take; the range is to be folded again without it.
        kept: What went to quarantine.
        suspended_from: Sessions that began before this offset are suspended.
    """

    def __init__(
        self, program: Program, position: Position, state: PartitionState[object], without: Without | None = None
    ) -> None:
        self._program, self._position, self._state = program, position, state
        self._without = without or Without()
        self.counts = Counts()
        self.batches: list[pa.RecordBatch] = []
        self.rows_written = 0
        self.event_time_us: tuple[int, int] | None = None
        self.stopped: Finding | None = None
        self.refused: Finding | None = None
        self.kept = Kept()
        self._record: Record | None = None
        self._suspend_before(position.suspended_from)
        self._rows: list[msgspec.Struct] = []
        self._proofs: list[Origin] = []

    def fold(self, messages: Sequence[Message]) -> None:
        """Fold messages in offset order, until the first violation."""
        for piece in self._without.pieces(messages):
            if self.stopped is None and self.refused is None and not self.kept.full:
                self._fold_piece(piece)

    def _fold_piece(self, messages: Sequence[Message]) -> None:
        first = _offset(messages[0])
        if (suspended := self._without.suspended_before(first)) > self.suspended_from:
            self._suspend_before(suspended)
        try:
            if first in self._without.killing:
                self._undecodable(self._record_of(messages[0]), KILLS_ITS_WORKER)
            elif first in self._without.refused:
                self._leave_out(messages[0], self._without.refused[first])
            else:
                self._fold(messages)
        except _Ended:
            return
        except (EnvironmentProblem, StateError, MemoryError):
            raise  # of this machine, the registry or the state: says nothing of the message
        except Exception as error:  # noqa: BLE001  # the user's code ends here: any error of it is a verdict
            proven = sum(number for _, number, *_ in self._proofs)
            del self._rows[proven:]  # what the message had emitted before it raised
            self._raised(error)

    def _fold(self, messages: Sequence[Message]) -> None:
        # Local names, and methods mapped over the chunk: at 4 million messages a minute a look-up is a minute a day.
        program, where, entries, load = self._program, self._position, self._state.entries, self._load
        topic, topic_id, partition = where.topic, where.topic_id, where.partition
        decode, place_of, check, apply = program.decode, program.place, self._check, program.apply
        rows, proofs, bytes_max = self._rows, self._proofs, program.message_bytes_max
        take, prove, kind_of_message = rows.extend, proofs.append, type(messages[0])
        offsets, values = map(kind_of_message.offset, messages), map(kind_of_message.value, messages)
        for offset, value, message in zip(offsets, values, messages, strict=True):
            self._record = record = Record(topic, topic_id, partition, offset, message)  # type: ignore[arg-type]  # set
            try:
                body = decode(value) if len(value) <= bytes_max else _too_large(value, bytes_max)  # type: ignore[arg-type]  # None raises
            except DECODE_ERRORS as error:
                self._undecodable(record, error)
                check = self._check
                continue
            place = place_of(body, record)
            kind, session = place.kind, place.session
            if kind is SKIP:
                self.counts.skipped += 1
                continue
            entry = entries.get(session) or load(session) or Entry(None, None)
            gate, verdict = check(entry.gate, place, record)
            if verdict is not ACCEPT and not self._accepted(verdict, record, session):
                if verdict.judgement is Judgement.SUSPEND:
                    entry.gate = gate
                continue
            before = len(rows)
            if kind is UPDATE and entry.gate is not None:
                take(apply(entry.state, body, record))
            else:
                self._set_state(entry, body, place, record)
            entry.gate = gate
            prove((record.offset, len(rows) - before, session, place.sequence, place.event_time_us))
            if len(proofs) >= CHUNK_ROWS or len(rows) >= CHUNK_ROWS:
                self._flush()

    def _load(self, session: str) -> Entry[object] | None:
        """The session's stored state, as the policy of today keeps it."""
        entry = self._state.load(session)
        if entry is not None:
            gate, skipped = cast("GateState", entry.gate), self._position.suspended_sessions
            entry.gate = self._program.integrity.adapted(gate, self.suspended_from, skipped)
        return entry

    def finish(self) -> None:
        """Turn the last rows into Arrow. Call once, after the last message."""
        try:
            self._flush()
        except RowRefused as error:
            self._raised(error)

    def _set_state(self, entry: Entry[object], body: object, place: Place, record: Record) -> None:
        """Snapshots, first updates under a class that lets them pass, and ends."""
        if place.kind is END:
            self._state.remove(place.session)
            return
        opened = self._program.open(body, record)
        if isinstance(opened, Opened):
            self._rows.extend(opened.rows)
            opened = opened.state
        entry.state = opened
        self._state.entries[place.session] = entry

    def _accepted(self, verdict: Verdict, record: Record, session: str) -> bool:
        """Count a message that was remarked on; whether it is applied all the same."""
        judgement = verdict.judgement
        if verdict.cause == "gap":
            self.counts.gaps += 1
        elif judgement in _REPEATED:
            self.counts.repeats += 1
        if judgement in {Judgement.DUPLICATE, Judgement.LATE}:
            self.counts.dropped += 1
        elif judgement is not Judgement.ACCEPT:
            found = _finding(self._position, record.offset, verdict.cause)
            self._judged(
                judgement, record, replace(found, session=session, expected=verdict.expected, found=verdict.found)
            )
        return judgement is Judgement.ACCEPT

    def _undecodable(self, record: Record, error: Exception) -> None:
        """Judge a message that cannot be decoded."""
        problem = "no value (null)" if record.value is None else str(error)
        cause = Cause.NO_VALUE if record.value is None else cause_of(error)
        found = replace(
            _finding(self._position, record.offset, "undecodable"),
            session=_key(record),
            expected="a message of the stream",
            found=problem,
            detail=str(cause),
        )
        answer = self._answer(Fault.UNDECODABLE, record.offset)
        self.counts.refused += answer is not Judgement.GAP  # a class that only counts them fills no quarantine
        self._judged(answer, record, found)
        if answer is Judgement.SUSPEND:  # whose message it was is not known
            self._suspend_before(record.offset + 1)

    def _judged(self, judgement: Judgement, record: Record, found: Finding) -> None:
        """A message that is not applied: the end of the fold, quarantine, or just counted.

        Raises:
            _Ended: The fold goes no further.
        """
        if judgement is Judgement.VIOLATION:
            self.stopped = found
            raise _Ended
        if judgement is Judgement.GAP:
            self.counts.dropped += 1
        else:
            self.counts.quarantined += 1
            self.kept.add(record, found)
            if self.kept.full:
                raise _Ended

    def _suspend_before(self, offset: int) -> None:
        self.suspended_from = offset
        self._check = self._program.gate_from(offset, self._position.suspended_sessions)

    def _answer(self, fault: Fault, offset: int) -> Judgement:
        """The class's verdict; what an operator has given up is kept in quarantine, whatever it is."""
        given_up = offset < self._position.suspended_from
        return Judgement.QUARANTINE if given_up else self._program.integrity.answer(fault)

    def _raised(self, error: Exception) -> None:
        """An exception of the user's code, or of a row that the table cannot hold: the range is folded again."""
        offset, session = self._place_of(error)
        found = replace(_finding(self._position, offset, "transform raised"), session=session)
        if isinstance(error, Violation):
            found = replace(found, cause=error.what, expected=str(error.expected), found=str(error.found))
        else:
            found = replace(found, detail=f"{type(error).__name__}: {error}")
        if self._answer(Fault.RAISED, offset) is Judgement.VIOLATION:
            self.stopped = found
        else:
            self.refused = found

    def _leave_out(self, message: Message, found: Finding) -> None:
        """Judge a message that an earlier fold of this range could not apply."""
        record = self._record_of(message)
        answer = self._answer(Fault.RAISED, record.offset)
        self.counts.refused += 1
        self._judged(answer, record, found)
        if answer is not Judgement.SUSPEND:
            return
        try:
            session = self._program.place(self._program.decode(record.value or b""), record).session
        except Exception:  # noqa: BLE001  # the user's `place` is what raised: whose message it was is not known
            self._suspend_before(record.offset + 1)
            return
        entry = self._state.entries.get(session) or self._load(session)
        if entry is not None:
            entry.gate = suspended_state(cast("GateState", entry.gate))

    def _record_of(self, message: Message) -> Record:
        where = self._position
        return Record(where.topic, where.topic_id, where.partition, _offset(message), message)

    def _place_of(self, error: Exception) -> tuple[int, str | None]:
        """Offset and session of the message that an error is about."""
        if isinstance(error, RowRefused):
            return error.offset, next((proof[2] for proof in self._proofs if proof[0] == error.offset), None)
        record = self._record
        if record is None:
            return self._position.next_offset, None
        try:
            return record.offset, self._program.place(self._program.decode(record.value or b""), record).session
        except Exception:  # noqa: BLE001  # the user's `place` is what raised
            return record.offset, _key(record)

    def _flush(self) -> None:
        if not self._proofs:
            return
        chunk = Chunk(*zip(*self._proofs, strict=True))
        without = chunk.rows.count(0)
        self.counts.without_rows += without
        self.counts.with_rows += len(chunk.rows) - without
        self._note_times([time for time in chunk.event_times_us if time is not None])
        if self._rows:
            proof = proof_of(self._position, chunk, len(self._rows))
            self.batches.append(self._program.rows.build(self._rows, proof))
            self.rows_written += len(self._rows)
        self._rows.clear()
        self._proofs.clear()

    def _note_times(self, times: Sequence[int]) -> None:
        if times:
            low, high = self.event_time_us or (times[0], times[0])
            self.event_time_us = (min(low, *times), max(high, *times))


def _finding(position: Position, offset: int, cause: str) -> Finding:
    return Finding(cause, position.topic, position.topic_id, position.partition, offset, until=offset + 1)


def _offset(message: Message) -> int:
    return message.offset()  # type: ignore[return-value]  # always set on a consumed message


def _key(record: Record) -> str | None:
    return record.key.decode(errors="replace") if record.key is not None else None


def _too_large(value: bytes, bytes_max: int) -> object:
    raise Undecodable(Cause.TOO_LARGE, f"{len(value)} bytes, more than the limit of {bytes_max}")
