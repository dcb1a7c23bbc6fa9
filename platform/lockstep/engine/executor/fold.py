"""The hot loop: decode, envelope, gate, apply; error attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import dropwhile
from pathlib import Path
from traceback import TracebackException
from typing import Any, cast

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import lockstep
from lockstep.declare.decoders.base import DecodeCause, Undecodable
from lockstep.engine.executor.column_range import ColumnRange
from lockstep.engine.executor.columnar import ChunkFold
from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.deferred import DeferredEvents, EventTimers
from lockstep.engine.executor.limits import EngineLimit, LimitKind, describe_error, find_limit
from lockstep.engine.executor.losses import LossCounter
from lockstep.engine.executor.outcome import FoldCompleted, FoldOutcome, FoldStopped, MessageFailed, StopFold
from lockstep.engine.executor.rejects import CRASHES_WORKER, Exclusions, Message, VerdictHandler
from lockstep.engine.executor.row_buffer import CHUNK_ROWS, RowBuffer, RowRoom, make_origin
from lockstep.engine.executor.sessions import Sessions, check_session
from lockstep.engine.executor.state_checks import StateChecks
from lockstep.engine.executor.update_run import UpdateRun
from lockstep.errors import EnvironmentProblem, StateError, Violation
from lockstep.folds.removals import AbsentRemovals, count_removals
from lockstep.integrity.base import PartitionTime, find_event_time
from lockstep.integrity.gate_states import GateState
from lockstep.integrity.suspension import is_snapshot_open
from lockstep.integrity.verdict import ACCEPT, Judgement, Verdict
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from lockstep.model.readable_times import EARLIEST_US, LATEST_US, VALUE_NOT_STORABLE, describe_unreadable
from lockstep.model.record import Envelope, KafkaMessage, Kind, Record
from lockstep.model.row_cause import RowCause
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState
from lockstep.table.row_encoder import RowRejected

TRACEBACK_MAX = 4_000
"""Characters of a traceback in the commit that halts the stream."""
_LOCKSTEP = str(Path(lockstep.__file__).parent)


class FailedMessage(msgspec.Struct, frozen=True):
    """Message to which an error is attributed.

    Attributes:
        offset: Offset of the message that raised, or emitted the row.
        at: Offset that was being processed.
        session: Its session, where known.
        of_timer: A timer raised: no message can be quarantined.
        held: The message had been buffered.
    """

    offset: int
    at: int
    session: str | None
    of_timer: bool = False
    held: bool = False


def blame_message(
    error: BaseException, worked: Record | None, applying: DeferredEvents, emission: RowBuffer, judge: VerdictHandler
) -> FoldStopped | MessageFailed:
    """Read an error of the user's code: a violation, or a message to leave out when the range is folded again."""
    blame = _find_blame(error, worked, applying, emission)
    cause = "timer raised" if blame.of_timer else "transform raised"
    finding = replace(_as_finding(error, judge.finding(cause, blame.offset)), session=blame.session)
    if blame.of_timer or judge.judge_error(error, blame.offset) is Judgement.VIOLATION:
        source = "" if blame.at == blame.offset else f"; by the message at offset {blame.offset}"
        return FoldStopped(replace(finding, offset=blame.at, until=blame.at + 1, detail=finding.detail + source))
    return MessageFailed(finding, blame.at, blame.held)


def find_session(compiled: CompiledStream, record: Record) -> str | None:
    """The session of a message; None if the user's `envelope` raises."""
    try:
        return check_session(compiled.envelope(compiled.decode_again(record.source), record).session)
    except Exception:  # noqa: BLE001  # the user's `envelope` is what raised
        return None


def _find_blame(
    error: BaseException, worked: Record | None, applying: DeferredEvents, emission: RowBuffer
) -> FailedMessage:
    if isinstance(error, RowRejected):  # rows are encoded long after the message that emitted them
        return _of_row(error, emission)
    return _of_message(worked, applying)


def _of_row(error: RowRejected, emission: RowBuffer) -> FailedMessage:
    (offset, _, session, _, _, at), of_timer = emission.proof_at(error.origin.position)
    return FailedMessage(offset, at, session, of_timer, held=offset != at)


def _of_message(worked: Record | None, applying: DeferredEvents) -> FailedMessage:
    offset = applying.first_offset if worked is None else worked.offset
    subject = applying.subject or worked
    if applying.timer_of is not None or subject is None:
        return FailedMessage(offset, offset, applying.timer_of, of_timer=True)
    session = find_session(applying.compiled, subject)
    return FailedMessage(subject.offset, offset, session, held=applying.subject is not None)


def _as_finding(error: BaseException, finding: Finding) -> Finding:
    if isinstance(error, Violation):
        return replace(finding, cause=error.what, expected=str(error.expected), found=str(error.found))
    if isinstance(error, RowRejected):
        finding = replace(finding, cause=VALUE_NOT_STORABLE)
    return replace(finding, detail=f"{type(error).__name__}: {error}", traceback=_traceback(error))


def _traceback(error: BaseException) -> str:
    """The traceback within the stream's own code, without frames of lockstep; the end of a long one."""
    trace = TracebackException.from_exception(error)
    of_stream = list(dropwhile(lambda frame: frame.filename.startswith(_LOCKSTEP), trace.stack))
    if not of_stream:
        return ""  # lockstep's own code raised, on a row or an envelope that it cannot process
    trace.stack[:] = of_stream
    text = "".join(trace.format()).rstrip("\n")
    if len(text) <= TRACEBACK_MAX:
        return text
    return f"...{text[-TRACEBACK_MAX:]}"  # the end names the error and the line that raised it


SKIP = Kind.SKIP
UPDATE = Kind.UPDATE
END = Kind.END
PART = Kind.SNAPSHOT_PART
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoders raise on bad input; TypeError is a null value."""
NO_END_US = 2**63 - 1


class RangeFold:
    """The fold of one range of one partition.

    Attributes:
        outcome: The outcome so far.
        judge: Counts and rejected messages.
        emission: The rows.
        sessions: The sessions, and the offset from which they are suspended.
        time: Watermark and timers.
        losses: States that the range discards.
        chunks: The plain case of a `ColumnFold`; None for other folds.
    """

    def __init__(
        self,
        compiled: CompiledStream,
        position: Position,
        state: PartitionState[object],
        without: Exclusions | None = None,
        latest_us: int = NO_END_US,
        *,
        judges_panics: bool = False,
        room: RowRoom | None = None,
    ) -> None:
        """Start a range.

        Args:
            compiled: The stream.
            position: Start of the range.
            state: State of the partition.
            without: Findings of an earlier fold of the range.
            latest_us: Later event times are implausible.
            judges_panics: A panic of a library is an error of the message: the task has no other message.
            room: Room for the rows; None without a bound.
        """
        self._judges_panics = judges_panics
        self._compiled = compiled
        self._position = position
        self._state = state
        self._without = without or Exclusions()
        self._checks: StateChecks | None = None
        self._noted: list[str] = []
        if compiled.examines_states or self._without.unstorable:
            self._checks = StateChecks(state, self._without.unstorable, examines_all=compiled.examines_states)
            self._compiled = replace(compiled, envelope=self._note_session)
        self.outcome: FoldOutcome = FoldCompleted()
        self.time = PartitionTime(position.watermark_us, latest_us)
        self.sessions = Sessions(compiled, position, state, self.time)
        self._absent = AbsentRemovals()
        self.judge = VerdictHandler(compiled.integrity, position, room)
        seen_by_chunk = None if compiled.is_timed else self.time
        self.emission = RowBuffer(compiled.rows, position, self.judge.counts, seen_by_chunk, room)
        self._timing = EventTimers(compiled, self.time, state) if compiled.is_timed else None
        self.losses = LossCounter(compiled, position, state, self.sessions)
        self._applying = DeferredEvents(compiled, position, self.sessions, self.judge, self.emission, self.losses)
        self._applying.timing = self._timing
        self._applying.without = self._without
        self._applying.checks = self._checks
        self._record: Record | None = None
        self.chunks: ChunkFold | None = None
        self._updates: UpdateRun | None = None
        if self._timing is None and self._checks is None:  # both act between two messages
            self._prepare_chunks(compiled)
        self._bind_loop()

    def _prepare_chunks(self, compiled: CompiledStream) -> None:
        """Prepare the faster folds of the plain case, as far as the stream has one."""
        if compiled.columns is not None:
            of_range = ColumnRange(compiled.columns, self._position, self._state, self.sessions, self.emission)
            self.chunks = ChunkFold(of_range)
        if compiled.plain_updates is not None:
            self._updates = UpdateRun(compiled.plain_updates, self._position, self._state, self.sessions, self.emission)

    def _bind_loop(self) -> None:
        """Resolve the names of the loop over messages once: at 4 million messages a minute each is a minute a day."""
        compiled = self._compiled
        position = self._position
        emission = self.emission
        self._decode = self._decode_with_headers if compiled.reads_headers else compiled.decode
        self._of_stream = (
            compiled.message_bytes_max,
            position.topic,
            position.topic_id,
            position.partition,
            compiled.envelope,
            compiled.on_update,
        )
        rows = emission.rows
        proofs = emission.proofs
        # The lists stay the same for the whole range: the buffer clears them in place.
        self._of_rows = rows, proofs, rows.extend, rows.append, proofs.append

    @property
    def counts(self) -> MessageCounts:
        """Messages by outcome."""
        return self.judge.counts

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows so far."""
        return self.emission.batches

    def begin(self) -> None:
        """Count the states that were discarded between the batches. Call once, before the first message."""
        if self._position.is_uncounted:
            self.losses.count_decided()

    def fold(self, messages: Sequence[Message]) -> None:
        """Fold messages in offset order, until the fold stops."""
        for piece in self._without.split(messages):
            if isinstance(self.outcome, FoldCompleted):
                self._fold_piece(piece)

    def advance(self, watermark_us: int) -> None:
        """Advance the watermark of an idle partition and run the expired timers."""
        self.time.advance(watermark_us)
        if self._timing is not None and self._timing.is_due and isinstance(self.outcome, FoldCompleted):
            self._guarded(lambda: self._applying.fire_timers(self._position.next_offset))

    def finish(self, reached: int) -> None:
        """Encode the last rows as Arrow. Call once, after the last message, with the end offset of the range."""
        self._suspend_up_to(reached)
        if self._checks is not None:
            self._checks.finish()
        self.flush()  # of messages up to the stop of the fold: its refusal was first
        self.counts.absent_removals = self._absent.count
        if self.chunks is not None:
            self.chunks.write_back()
        if self._timing is not None:
            self._timing.save()
        if self._state.entries and not self._compiled.arms_timers:
            self._state.forget_timers()

    def _fold_piece(self, messages: Sequence[Message]) -> None:
        first = _offset(messages[0])
        self._suspend_up_to(first)
        if first in self._without.killing:
            self._guarded(lambda: self._undecodable(self._record_of(messages[0]), CRASHES_WORKER))
        elif first in self._without.refused:
            self._guarded(lambda: self._leave_out(messages[0], self._without.refused[first]))
        elif self._checks is not None:
            for message in messages:
                if isinstance(self.outcome, FoldCompleted):
                    self._guarded(partial(self._fold_checked, message, self._checks))
        else:
            self._guarded(lambda: self._fold_chunk(messages))

    def flush(self) -> None:
        """Encode the rows so far as Arrow."""
        self._guarded(self.emission.flush)

    def release(self) -> None:
        """Discard rows and rejected messages: the range is folded again."""
        self.emission.release()
        self.judge.quarantined.release()
        self.judge.late.release()

    def _fold_chunk(self, messages: Sequence[Message]) -> None:
        if self.chunks is not None and self.chunks.fold(messages):
            self.emission.check_room(_offset(messages[-1]))
        elif self._updates is not None:
            self._fold_updates(self._updates, messages)
        else:
            self._fold(messages, self._decode)

    def _fold_updates(self, updates: UpdateRun, messages: Sequence[Message]) -> None:
        """Fold messages, the plain updates among them by the extension."""
        place = 0
        read = updates.read(messages)
        while place < len(messages) and updates.is_usable():
            try:
                place = updates.fold(read, place)
            finally:
                self._record = updates.record
            if self.emission.is_full:
                self.emission.flush_chunk(_offset(messages[place - 1]))
            elif place < len(messages):  # a message that is not plain: its neighbours are seldom plain, too
                until = place + updates.pause
                self._fold(messages[place:until], updates.decode)
                place = until
        if place < len(messages):
            self._fold(messages[place:], self._decode)

    def _fold_checked(self, message: Message, checks: StateChecks) -> None:
        """Fold one message, and refuse it if the state of its session cannot be stored after it."""
        self._noted.clear()
        self._fold([message], self._decode)
        for session in self._noted:
            checks.check(session)

    def _note_session(self, message: object, record: Record) -> Envelope:
        envelope = self._applying.compiled.envelope(message, record)
        self._noted.append(envelope.session)
        return envelope

    def _suspend_up_to(self, offset: int) -> None:
        """Suspend the sessions that started before a gap below an offset."""
        gap_end = self._without.suspended_before(offset)
        if gap_end > max(0, self.sessions.suspended_from):
            self.losses.suspend_before(gap_end, Fault.HOLE)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a part of the fold; an error of the user's code is a verdict, not a crash.

        Raises:
            EngineLimit: A limit of the machine or of a library, which proves nothing about the message.
        """
        try:
            with count_removals(self._absent):
                work()
        except StopFold as stop:
            self.outcome = stop.outcome
        except BaseException as error:  # noqa: BLE001  # the user's code ends here: any error of it is a verdict
            self._raise_unless_judged(error)
            self.emission.rollback_message()  # rows that the message had emitted before it raised
            self.outcome = blame_message(error, self._record, self._applying, self.emission, self.judge)

    def _raise_unless_judged(self, error: BaseException) -> None:
        """Raise an error that proves nothing about the message: of this machine, the registry, the state, a signal."""
        limit = find_limit(error)
        if limit is LimitKind.PANIC and self._judges_panics:
            return
        if limit is not None:
            offset = self._position.next_offset if self._record is None else self._record.offset
            raise EngineLimit(limit, describe_error(error), key=self._position.key, offset=offset) from error
        if isinstance(error, (EnvironmentProblem, StateError)) or not isinstance(error, Exception):
            raise error

    def _fold(self, messages: Sequence[Message], decode: Callable[..., object]) -> None:  # noqa: C901, PLR0912  # one loop: calls cost time
        """Fold messages one by one; methods are mapped over the chunk."""
        sessions, timing, emission, entries = self.sessions, self._timing, self.emission, self._state.entries
        load, of = sessions.load, cast("Any", type(messages[0]))
        bytes_max, topic, topic_id, partition, envelope_of, on_update = self._of_stream
        rows, proofs, extend_rows, append_row, append_proof = self._of_rows
        for at, value, message in zip(map(of.offset, messages), map(of.value, messages), messages, strict=True):
            self._record = record = Record(topic, topic_id, partition, at, message)
            try:
                body = decode(value) if len(value) <= bytes_max else _too_large(value, bytes_max)
            except DECODE_ERRORS as error:
                if not self._is_tombstone(record, error):
                    continue
                body = None
            envelope = envelope_of(body, record)
            kind, session, time_us = envelope.kind, envelope.session, envelope.event_time_us
            is_plain = time_us is None or (type(time_us) is int and EARLIEST_US <= time_us <= LATEST_US)
            if (kind is not UPDATE and self._is_skipped(kind)) or not (is_plain or self._is_stored(envelope, record)):
                continue
            if timing is not None and timing.advance(body, envelope, record):
                self._applying.fire_timers(at)
            entry = entries.get(session) or load(session) or SessionEntry(None, None)
            gate, verdict = sessions.check(entry.gate, envelope, record)
            if verdict is not ACCEPT and not self._applies(verdict, gate, entry, body, envelope, record):
                continue
            before = len(rows)
            if kind is not UPDATE or entry.gate is None:
                before = self._applying.set_state(entry, body, envelope, record, at)
            elif type(emitted := on_update(entry.state, body, record)) is list:
                extend_rows(emitted)
            else:
                for row in emitted:
                    if len(rows) >= CHUNK_ROWS:
                        before = emission.flush_part((at, session, envelope.sequence, time_us, at), before)
                    append_row(row)
            entry.gate = gate
            append_proof((at, (after := len(rows)) - before, session, envelope.sequence, time_us, at))
            if timing is not None or verdict is not ACCEPT:
                self._follow(verdict, entry, envelope, record)
            if after >= CHUNK_ROWS or len(proofs) >= CHUNK_ROWS:
                emission.flush_chunk(at)

    def _is_stored(self, envelope: Envelope, record: Record) -> bool:
        """Whether readers can return the event time of a message; rejects one that they could not.

        Raises:
            TypeError: The time is not an integer.
        """
        session = check_session(envelope.session)
        time_us = find_event_time(envelope, record)
        if self._compiled.integrity.is_timed or EARLIEST_US <= time_us <= LATEST_US:
            return True  # a gate that compares event times rejects it with a separate verdict
        finding = self.judge.finding(VALUE_NOT_STORABLE, record.offset, session=session)
        self._reject(record, replace(finding, detail=describe_unreadable(f"Envelope.event_time_us = {time_us}")))
        self.judge.check_room(record)
        return False

    def _decode_with_headers(self, value: bytes) -> object:
        return self._compiled.decode_with_headers(value, cast("Record", self._record).source)

    def _is_skipped(self, kind: Kind) -> bool:
        """Whether a message is dropped; if it is part of a snapshot, prepare the gate for it.

        Raises:
            TypeError: The kind is none: it would be taken for a snapshot.
        """
        if kind is PART:
            self.sessions.enable_multipart()
        elif not isinstance(kind, Kind):
            raise TypeError(f"Envelope.kind = {kind!r} is of type {type(kind).__name__}, not Kind")
        self.counts.skipped += kind is SKIP
        return kind is SKIP

    def _applies(
        self,
        verdict: Verdict,
        gate: GateState,
        entry: SessionEntry[object],
        body: object,
        envelope: Envelope,
        record: Record,
    ) -> bool:
        """Whether a message with a remark is applied in the usual way; otherwise handle it.

        Raises:
            StopFold: The fold stops here.
        """
        session = envelope.session
        if verdict.freed:
            self._applying.discard(session, verdict.freed)
            # A first snapshot that is given up leaves an unknown session.
            entry.gate = None if entry.state is None else gate
        if verdict.stale:
            self._applying.drop(session, verdict.stale)
        applied = self.judge.handle_remark(verdict, record, session)
        match verdict.judgement:
            case Judgement.BUFFER:
                self._buffer(gate, entry, envelope, record, begins=verdict.begins)
            case Judgement.SUSPEND:
                self.losses.suspend(verdict.cause, record.offset, session, entry, gate)
            case Judgement.LATE:
                self._late(entry, body, envelope, record)
            case Judgement.ACCEPT if verdict.begins:
                self.losses.restart(record.offset, entry)
                entry.gate = None  # as of an unknown session: `on_snapshot` makes a new one
            case _:
                pass
        if applied and (not verdict.before or self._preceded(verdict.before, gate, entry, body, envelope, record)):
            return True
        self.judge.check_room(record)
        return False

    def _preceded(
        self,
        before: Sequence[int],
        gate: GateState,
        entry: SessionEntry[object],
        body: object,
        envelope: Envelope,
        record: Record,
    ) -> bool:
        """Apply released messages and timers before a message; returns whether to apply the message itself.

        Raises:
            StopFold: The fold stops here.
        """
        if not is_snapshot_open(entry.gate):
            entry.gate = gate  # released messages wait no longer, even if one ends the session
            self._applying.apply_buffered(envelope.session, before, record.offset)
            return True
        if self._applying.apply_multipart(entry, envelope, body, record, before):
            entry.gate = gate
            self._note_message(entry, envelope, record)
        return False

    def _buffer(
        self, gate: GateState, entry: SessionEntry[object], envelope: Envelope, record: Record, *, begins: bool
    ) -> None:
        self.sessions.held.put(envelope.session, record)
        if begins:
            self.losses.restart(record.offset, entry)  # counts the loss by the old gate state
        entry.gate = gate
        if begins:  # the first message that is released makes a new state
            self._applying.drop_state(entry, envelope, record)
        self.sessions.add(envelope.session, entry)
        self._note_message(entry, envelope, record)

    def _late(self, entry: SessionEntry[object], body: object, envelope: Envelope, record: Record) -> None:
        on_late = self._compiled.hooks.on_late
        if on_late is None or not self._compiled.integrity.keeps_late or entry.state is None:
            return
        emitted = on_late(entry.state, body, record)
        self.emission.begin(make_origin(envelope, record.offset, record.offset), RowCause.LATE)
        self.emission.emit(emitted)
        self.emission.end_extra()
        if self._timing is not None:
            self._timing.arm_earlier(envelope.session, entry, self.sessions.gate)

    def _follow(self, verdict: Verdict, entry: SessionEntry[object], envelope: Envelope, record: Record) -> None:
        """Apply the buffered messages that a message releases; update its session's next deadline."""
        if verdict.after:
            self._applying.apply_buffered(envelope.session, verdict.after, record.offset)
        if envelope.kind is not END:
            self._note_message(entry, envelope, record)
        if verdict is not ACCEPT:
            self.judge.check_room(record)

    def _note_message(self, entry: SessionEntry[object], envelope: Envelope, record: Record) -> None:
        if self._timing is not None and self.sessions.find(envelope.session) is not None:
            self._timing.note_message(envelope.session, entry, self.sessions.gate, envelope, record)

    def _record_of(self, message: Message) -> Record:
        position = self._position
        self._record = Record(position.topic, position.topic_id, position.partition, _offset(message), message)
        return self._record

    def _is_tombstone(self, record: Record, error: Exception) -> bool:
        """Whether a record without a value is the message None; judges one that cannot be decoded."""
        if record.value is None and self._compiled.takes_null:
            return True
        self._undecodable(record, error)
        return False

    def _undecodable(self, record: Record, error: Exception) -> None:
        if self.judge.undecodable(record, error) is Judgement.SUSPEND:  # its session is unknown
            self.losses.suspend_before(record.offset + 1, Fault.UNDECODABLE)
        self.judge.check_room(record)

    def _leave_out(self, message: Message, finding: Finding) -> None:
        """Reject a message that an earlier fold of this range could not apply."""
        record = self._record_of(message)
        self._reject(record, finding)
        self.judge.check_room(record)

    def _reject(self, record: Record, finding: Finding) -> None:
        session = find_session(self._compiled, record)
        fault = Fault.UNDECODABLE if session is None else Fault.TRANSFORM_FAILED
        judgement = self.judge.judge(fault, record.offset)
        self.counts.refused += 1
        self.judge.reject(judgement, record, finding)
        if session is None:
            if judgement is Judgement.SUSPEND:
                self.losses.suspend_before(record.offset + 1, finding.cause)
            return
        entry = self.sessions.find(session)
        if entry is not None and (judgement is Judgement.SUSPEND or is_snapshot_open(entry.gate)):
            self._applying.discard(session, self._applying.suspend(session, entry, record.offset, finding.cause))


def decode_message(source: KafkaMessage, compiled: CompiledStream) -> object:
    """Decode a record as the fold does, which has these lines inlined in its loop.

    Raises:
        Undecodable: It is larger than the limit; also the other `DECODE_ERRORS`, for a value that is not a message.
    """
    value = source.value()
    if value is None and compiled.takes_null:
        return None
    bytes_max = compiled.message_bytes_max
    if len(value) > bytes_max:  # type: ignore[arg-type]  # None raises
        _too_large(value, bytes_max)  # type: ignore[arg-type]  # as above
    return compiled.decode_with_headers(value, source)  # type: ignore[arg-type]  # as above


def _offset(message: Message) -> int:
    return message.offset()  # type: ignore[return-value]  # always set on a consumed message


def _too_large(value: bytes, bytes_max: int) -> object:
    raise Undecodable(DecodeCause.TOO_LARGE, f"{len(value)} bytes, more than the limit of {bytes_max}")
