"""Verdict handling and the quarantine buffer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from lockstep.declare.decoders.base import DecodeCause, Undecodable, describe_decode_error, find_decode_cause
from lockstep.declare.rules import RuleViolated
from lockstep.engine.executor.outcome import BufferFull, FoldStopped, MessageFailed, StopFold
from lockstep.engine.executor.row_buffer import RowRoom
from lockstep.engine.protocol import AcceptedLoss
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.suspension import LOSS_ACCEPTED
from lockstep.integrity.verdict import Judgement, Verdict
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from lockstep.model.readable_times import to_event_time
from lockstep.model.record import KafkaMessage, Record, read_headers
from lockstep.table.quarantine import VALUE_BYTES_MAX, Header, QuarantineRow

KEPT_BYTES_MAX = 64_000_000
"""A range with more bytes of quarantined messages ends early, so that garbage cannot fill a worker's memory."""
TASK_KEPT_BYTES_MAX = 256_000_000
"""If the ranges of a task have more together, each range ends at its next quarantined message."""

CRASHES_WORKER = Undecodable(DecodeCause.CRASHES_WORKER, "each worker that was given it died")
"""Verdict of the fold on a message whose worker died, as the driver found."""


class Message(KafkaMessage, Protocol):
    """A message with its offset, as client libraries return it."""

    def offset(self) -> int | None:
        """The offset; set on every consumed message."""
        ...


T = TypeVar("T", bound=Message)


class Exclusions(msgspec.Struct, frozen=True):
    """Findings of an earlier fold of the same range.

    Attributes:
        refused: Offsets of messages that the transform refused.
        failed_buffered: Those of them that were refused on release from the buffer.
        suspend_at: Offsets before which all sessions are suspended, ascending: ends of gaps.
        killing: Offsets of messages that kill their worker; not even decoded.
        unstorable: Sessions whose states could not be stored: they are checked after each of their messages.
    """

    refused: Mapping[int, Finding] = {}
    failed_buffered: Mapping[int, Finding] = {}
    suspend_at: tuple[int, ...] = ()
    killing: tuple[int, ...] = ()
    unstorable: frozenset[str] = frozenset()

    def with_failed(self, failed: MessageFailed) -> Exclusions:
        """These, and a message that failed in the fold with these.

        Raises:
            AssertionError: It was left out of that fold.
        """
        excluded = self.failed_buffered if failed.is_buffered else self.refused
        offset = failed.finding.offset
        if offset in excluded:
            raise AssertionError(f"the fold is not deterministic: {failed.finding}")
        extended = {**excluded, offset: failed.finding}
        if failed.is_buffered:
            return replace(self, failed_buffered=extended)
        return replace(self, refused=extended)

    def split(self, messages: Sequence[T]) -> Iterator[Sequence[T]]:
        """Messages in order, cut so that each refused message is alone and no part spans a suspension."""
        if not messages:
            return
        if not self.refused and not self.suspend_at and not self.killing:
            yield messages
            return
        for _, piece in groupby(messages, key=self._piece):
            yield list(piece)

    def suspended_before(self, offset: int) -> int:
        """The newest suspension up to an offset; 0 without one."""
        until = bisect_right(self.suspend_at, offset)
        return self.suspend_at[until - 1] if until else 0

    def _piece(self, message: T) -> tuple[int, int]:
        offset = message.offset() or 0
        alone = {*self.refused, *self.killing}
        smaller = sum(1 for excluded in alone if excluded < offset)
        # Even between two excluded messages, odd at one of them.
        return 2 * smaller + (offset in alone), self.suspended_before(offset)


class QuarantineBuffer:
    """Quarantined messages of one range.

    Attributes:
        rows: The rows; generation and batch are set at writing.
        full: The limit of the range or of its task is reached.
    """

    def __init__(self, room: RowRoom | None = None) -> None:
        """Start a range.

        Args:
            room: Counts the bytes of the task; None if it has one range.
        """
        self._room = room
        self.rows: list[QuarantineRow] = []
        self.full = False
        self._bytes = 0

    def add(self, record: Record, finding: Finding) -> None:
        """Quarantine a message unchanged, with its cause; under its key if its session is unknown."""
        value = record.value
        session = finding.session
        if session is None:
            session = format_key(record)
        row = QuarantineRow(
            generation=0,
            batch=0,
            topic_id=record.topic_id,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            session=session,
            cause=finding.cause,
            expected=finding.expected,
            found=finding.found or finding.detail or None,
            timestamp=to_event_time(record.timestamp_ms * 1000),
            key=record.key,
            value=None if value is None else value[:VALUE_BYTES_MAX],
            value_bytes=len(value or b""),
            headers=[Header(name, content) for name, content in read_headers(record.source)],
        )
        self.rows.append(row)
        size = 500 + 2 * len(row.key or b"") + len(row.value or b"")
        self._note(size + sum(len(header.value or b"") for header in row.headers))

    def release(self) -> None:
        """Discard all rows: the range is folded again."""
        self._note(-self._bytes)
        self.rows.clear()

    def _note(self, size: int) -> None:
        self._bytes += size
        self.full = self._bytes > KEPT_BYTES_MAX
        if self._room is not None:
            self._room.space.kept_bytes += size
            self.full = self.full or self._room.space.kept_bytes > TASK_KEPT_BYTES_MAX


_REPEATED = (Judgement.ACCEPT, Judgement.DUPLICATE, Judgement.LATE)


class VerdictHandler:
    """Handles all verdicts of one range other than "accept".

    Attributes:
        counts: Messages by outcome.
        quarantined: Rows for the quarantine.
        late: Rows for the late table.
        accepted: Losses that the declaration accepts.
    """

    def __init__(self, integrity: IntegrityClass, position: Position, room: RowRoom | None = None) -> None:
        self._integrity = integrity
        self._position = position
        self.counts = MessageCounts()
        self.quarantined = QuarantineBuffer(room)
        self.late = QuarantineBuffer(room)
        self.accepted: list[AcceptedLoss] = []

    def check_room(self, record: Record) -> None:
        """Call after a message is handled completely, so that no session is half changed.

        Raises:
            StopFold: Quarantine or late table hold as much as one range may.
        """
        if self.quarantined.full or self.late.full:
            raise StopFold(BufferFull(record.offset + 1))

    def judge(self, fault: Fault, offset: int) -> Judgement:
        """The class's verdict; a message that an operator has given up is quarantined in any case."""
        if offset < self._position.suspended_from:
            return Judgement.QUARANTINE
        return self._integrity.judge(fault)

    def judge_error(self, error: BaseException, offset: int) -> Judgement:
        """The verdict on an error of the transform; a rule may halt the stream even if its class tolerates errors."""
        is_given_up = offset < self._position.suspended_from
        if isinstance(error, RuleViolated) and error.halts and not is_given_up:
            return Judgement.VIOLATION
        return self.judge(Fault.TRANSFORM_FAILED, offset)

    def handle_remark(self, verdict: Verdict, record: Record, session: str) -> bool:
        """Count a message with a remark and handle it; returns whether it is applied now.

        Raises:
            StopFold: It is a violation.
        """
        judgement = verdict.judgement
        if judgement is Judgement.BUFFER:
            self.counts.buffered += 1  # its remark counts when it is released
            return False
        if verdict.cause == "gap":
            self.counts.gaps += 1
        elif verdict.cause == LOSS_ACCEPTED:
            self.accepted.append(AcceptedLoss(int(verdict.expected or 0), record.offset))
        elif verdict.cause and judgement in _REPEATED and not self._keeps(judgement):
            self.counts.repeats += 1
        if judgement is not Judgement.ACCEPT:
            self.reject(judgement, record, self._make_finding(verdict, record, session))
        return judgement is Judgement.ACCEPT

    def reject(self, judgement: Judgement, record: Record, finding: Finding) -> None:
        """Quarantine, drop or skip a message that is neither applied nor buffered.

        Raises:
            StopFold: It is a violation.
        """
        match judgement:
            case Judgement.VIOLATION:
                raise StopFold(FoldStopped(finding))
            case Judgement.LATE if self._integrity.keeps_late:
                self.counts.late += 1
                self.late.add(record, finding)
            case Judgement.GAP | Judgement.DUPLICATE | Judgement.LATE:
                self.counts.dropped += 1
            case Judgement.SKIP:
                self.counts.skipped += 1
                self.counts.before_snapshot += 1
            case Judgement.QUARANTINE | Judgement.SUSPEND:
                self.counts.quarantined += 1
                self.quarantined.add(record, finding)
            case Judgement.ACCEPT | Judgement.BUFFER:
                raise AssertionError(f"{judgement} rejects no message")

    def undecodable(self, record: Record, error: Exception) -> Judgement:
        """Judge a message that cannot be decoded.

        Raises:
            StopFold: It is a violation.
        """
        value = record.value
        problem = "no value (null)"
        cause = DecodeCause.NO_VALUE
        if value is not None:
            problem = describe_decode_error(error, value)
            cause = find_decode_cause(error)
        judgement = self.judge(Fault.UNDECODABLE, record.offset)
        is_given_up = record.offset < self._position.suspended_from
        # Not a burst: messages that an operator has given up, and garbage under a class that nothing stops.
        self.counts.refused += not is_given_up and not self._integrity.tolerates_all
        finding = self.finding(Fault.UNDECODABLE, record.offset, session=format_key(record))
        finding = replace(finding, expected="a message of the stream", found=problem, detail=str(cause))
        self.reject(judgement, record, finding)
        return judgement

    def discard_buffered(self, record: Record, session: str) -> None:
        """Quarantine a buffered message of a session that is suspended now."""
        finding = self.finding("suspended", record.offset, session=session)
        self.counts.released += 1
        finding = replace(finding, expected="a snapshot of the session", found="a buffered message")
        self.reject(Judgement.QUARANTINE, record, finding)

    def dropped_late(self) -> None:
        """Drop a buffered message that has become useless."""
        self.counts.released += 1
        self.counts.repeats += 1
        self.counts.dropped += 1

    def finding(self, cause: str, offset: int, *, session: str | None = None) -> Finding:
        """A finding about one message of this partition."""
        return Finding.at(self._position, cause, offset=offset, until=offset + 1, session=session)

    def _keeps(self, judgement: Judgement) -> bool:
        """Whether a message goes to the late table."""
        return judgement is Judgement.LATE and self._integrity.keeps_late

    def _make_finding(self, verdict: Verdict, record: Record, session: str) -> Finding:
        finding = self.finding(verdict.cause, record.offset, session=session)
        return replace(finding, expected=verdict.expected, found=verdict.found)


def format_key(record: Record) -> str | None:
    """The key of a record, for display."""
    if record.key is None:
        return None
    return record.key.decode(errors="replace")
