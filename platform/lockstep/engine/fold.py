"""Folds the messages of one range: decode, place, gate, apply. The hot loop of the whole system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from lockstep.declare.decoders.causes import Cause, Undecodable, cause_of
from lockstep.declare.place import Kind, Place
from lockstep.declare.record import KafkaMessage, Record
from lockstep.declare.transform import Opened
from lockstep.engine.facts import Counts
from lockstep.engine.plan import Position
from lockstep.engine.program import Program
from lockstep.errors import EnvironmentProblem, StateError, Violation
from lockstep.integrity.finding import Finding
from lockstep.integrity.verdict import ACCEPT, Judgement, Verdict
from lockstep.state.store import Entry, PartitionState
from lockstep.table.rows import Proof, RowRefused, Run

CHUNK_ROWS = 500
"""Rows turned into Arrow at once: once per batch costs 2.5 times as much (caches), fewer cost calls."""
SKIP, UPDATE, END = Kind.SKIP, Kind.UPDATE, Kind.END
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoders raise on bad input; TypeError is a null value."""


_Origin = tuple[int, int, str, int | None, int | None]
"""Of one message: offset, number of its rows, session, sequence, event time in microseconds."""


class Message(KafkaMessage, Protocol):
    """A message with its offset, as client libraries give it."""

    def offset(self) -> int | None:
        """The offset; set on every consumed message."""
        ...


class RangeFold:
    """The fold of one range of one partition."""

    def __init__(self, program: Program, position: Position, state: PartitionState[object]) -> None:
        self._program, self._position, self._state = program, position, state
        self.counts = Counts()
        self.batches: list[pa.RecordBatch] = []
        self.rows_written = 0
        self.event_time_us: tuple[int, int] | None = None
        self.stopped: Finding | None = None
        self._record: Record | None = None
        self._rows: list[msgspec.Struct] = []
        self._proofs: list[_Origin] = []

    def fold(self, messages: Sequence[Message]) -> None:
        """Fold messages in offset order, until the first violation."""
        if self.stopped is not None or not messages:
            return
        try:
            self._fold(messages)
        except (EnvironmentProblem, StateError):
            raise  # of this machine, the registry or the state: says nothing of the message
        except Exception as error:  # noqa: BLE001  # the user's code ends here: any error of it is a verdict
            proven = sum(number for _, number, *_ in self._proofs)
            del self._rows[proven:]  # what the message had emitted before it raised
            self._raised(error)

    def _fold(self, messages: Sequence[Message]) -> None:
        # Local names, and methods mapped over the chunk: at 4 million messages a minute a look-up is a minute a day.
        program, where, entries, load = self._program, self._position, self._state.entries, self._state.load
        topic, topic_id, partition = where.topic, where.topic_id, where.partition
        decode, place_of, check, apply = program.decode, program.place, program.check, program.apply
        rows, proofs, bytes_max = self._rows, self._proofs, program.message_bytes_max
        take, prove, kind_of_message = rows.extend, proofs.append, type(messages[0])
        offsets, values = map(kind_of_message.offset, messages), map(kind_of_message.value, messages)
        for offset, value, message in zip(offsets, values, messages, strict=True):
            self._record = record = Record(topic, topic_id, partition, offset, message)  # type: ignore[arg-type]  # set
            try:
                body = decode(value) if len(value) <= bytes_max else _too_large(value, bytes_max)  # type: ignore[arg-type]  # None raises
            except DECODE_ERRORS as error:
                if self._undecodable(record, error):
                    return
                continue
            place = place_of(body, record)
            kind, session = place.kind, place.session
            if kind is SKIP:
                self.counts.skipped += 1
                continue
            entry = entries.get(session) or load(session) or Entry(None, None)
            gate, verdict = check(entry.gate, place, record)
            if verdict is not ACCEPT and self._judged(verdict, record, session):
                return
            before = len(rows)
            if kind is UPDATE and entry.gate is not None:
                take(apply(entry.state, body, record))
            else:
                self._set_state(entry, body, place, record)
            entry.gate = gate
            prove((record.offset, len(rows) - before, session, place.sequence, place.event_time_us))
            if len(proofs) >= CHUNK_ROWS or len(rows) >= CHUNK_ROWS:
                self._flush()

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

    def _judged(self, verdict: Verdict, record: Record, session: str) -> bool:
        """Count an accepted message that was remarked on; stop at a violation."""
        if verdict.judgement is not Judgement.ACCEPT:
            found = _finding(self._position, record.offset, verdict.cause)
            self.stopped = replace(found, session=session, expected=verdict.expected, found=verdict.found)
            return True
        if verdict.cause == "gap":
            self.counts.gaps += 1
        else:
            self.counts.repeats += 1
        return False

    def _undecodable(self, record: Record, error: Exception) -> bool:
        if self._program.integrity.undecodable is not Judgement.VIOLATION:
            self.counts.dropped += 1
            return False
        problem = "no value (null)" if record.value is None else str(error)
        found = _finding(self._position, record.offset, "undecodable")
        cause = Cause.NO_VALUE if record.value is None else cause_of(error)
        expected = "a message of the stream"
        self.stopped = replace(found, session=_key(record), expected=expected, found=problem, detail=str(cause))
        return True

    def _raised(self, error: Exception) -> None:
        """An exception of the user's code, or of a row that the table cannot hold, is a violation."""
        offset, session = self._place_of(error)
        found = replace(_finding(self._position, offset, "transform raised"), session=session)
        if isinstance(error, Violation):
            self.stopped = replace(found, cause=error.what, expected=str(error.expected), found=str(error.found))
        else:
            self.stopped = replace(found, detail=f"{type(error).__name__}: {error}")

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
        offsets, numbers, sessions, sequences, times = zip(*self._proofs, strict=True)
        without = numbers.count(0)
        self.counts.without_rows += without
        self.counts.with_rows += len(numbers) - without
        self._note_times([time for time in times if time is not None])
        if self._rows:
            per_message = _PerMessage(offsets, numbers, sessions, sequences, times)
            proof = _proof(self._position, per_message, len(self._rows))
            self.batches.append(self._program.rows.build(self._rows, proof))
            self.rows_written += len(self._rows)
        self._rows.clear()
        self._proofs.clear()

    def _note_times(self, times: Sequence[int]) -> None:
        if times:
            low, high = self.event_time_us or (times[0], times[0])
            self.event_time_us = (min(low, *times), max(high, *times))


class _PerMessage(NamedTuple):
    """Columns of what is known of each message of a chunk."""

    offsets: Sequence[int]
    rows: Sequence[int]
    sessions: Sequence[str]
    sequences: Sequence[int | None]
    event_times_us: Sequence[int | None]


def _proof(position: Position, known: _PerMessage, rows: int) -> Proof:
    """One entry a row, from one entry a message; nearly always each message has one row."""
    run = Run(position.topic, position.topic_id, position.partition, rows)
    if set(known.rows) == {1}:
        return Proof((run,), known.offsets, [0] * rows, known.sessions, known.sequences, known.event_times_us)
    offsets, sessions, sequences, times = (_repeated(values, known.rows) for values in known[:1] + known[2:])
    numbers = [number for count in known.rows for number in range(count)]
    return Proof((run,), offsets, numbers, sessions, sequences, times)


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _finding(position: Position, offset: int, cause: str) -> Finding:
    return Finding(
        cause=cause,
        topic=position.topic,
        topic_id=position.topic_id,
        partition=position.partition,
        offset=offset,
        until=offset + 1,
    )


def _key(record: Record) -> str | None:
    return record.key.decode(errors="replace") if record.key is not None else None


def _too_large(value: bytes, bytes_max: int) -> object:
    raise Undecodable(Cause.TOO_LARGE, f"{len(value)} bytes, more than the limit of {bytes_max}")
