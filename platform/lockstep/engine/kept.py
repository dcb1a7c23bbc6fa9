"""Messages of a range that are not applied: what an earlier fold found out, and what goes to quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol, TypeVar

import msgspec

from lockstep.declare.decoders.causes import Cause, Undecodable
from lockstep.declare.record import KafkaMessage, Record
from lockstep.engine.facts import event_time
from lockstep.integrity.finding import Finding
from lockstep.table.quarantine import VALUE_BYTES_MAX, Header, QuarantineRow

KEPT_BYTES_MAX = 64_000_000
"""A range with more in quarantine ends early, so that garbage cannot fill a worker's memory."""

KILLS_ITS_WORKER = Undecodable(Cause.KILLS_ITS_WORKER, "each worker that was given it died")
"""What the fold says of a message that the driver found to end its worker."""


class Message(KafkaMessage, Protocol):
    """A message with its offset, as client libraries give it."""

    def offset(self) -> int | None:
        """The offset; set on every consumed message."""
        ...


T = TypeVar("T", bound=Message)


class Without(msgspec.Struct, frozen=True):
    """What an earlier fold of the same range found out.

    Attributes:
        refused: Messages that the transform cannot take, by offset.
        held_refused: Those of them that it could not take when they were released from being held back.
        suspend_at: Offsets before which all sessions are suspended, rising: ends of holes.
        killing: Offsets of messages that end their worker; not even decoded.
    """

    refused: Mapping[int, Finding] = {}
    held_refused: Mapping[int, Finding] = {}
    suspend_at: tuple[int, ...] = ()
    killing: tuple[int, ...] = ()

    def pieces(self, messages: Sequence[T]) -> Iterator[Sequence[T]]:
        """Messages in order, cut so that each refused one stands alone and nothing spans a suspension."""
        if not messages:
            return
        if not self.refused and not self.suspend_at and not self.killing:
            yield messages
            return
        for _, piece in groupby(messages, key=self._piece):
            yield list(piece)

    def suspended_before(self, offset: int) -> int:
        """The newest suspension up to an offset; 0 without one."""
        return max((at for at in self.suspend_at if at <= offset), default=0)

    def _piece(self, message: T) -> tuple[int, int]:
        offset, alone = message.offset() or 0, {*self.refused, *self.killing}
        before = sum(1 for at in alone if at < offset)
        return 2 * before + (offset in alone), self.suspended_before(offset)


class Kept:
    """What goes to quarantine from one range.

    Attributes:
        rows: The rows; generation and batch are set when they are written.
        full: No more can be kept in this range; it ends here.
    """

    def __init__(self) -> None:
        self.rows: list[QuarantineRow] = []
        self.full = False
        self._bytes = 0

    def add(self, record: Record, found: Finding) -> None:
        """Keep a message as it came, with the reason."""
        value = record.value
        row = QuarantineRow(
            generation=0,
            batch=0,
            topic_id=record.topic_id,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            session=found.session,
            cause=found.cause,
            expected=found.expected,
            found=found.found or found.detail or None,
            timestamp=event_time(record.timestamp_ms * 1000),
            key=record.key,
            value=value[:VALUE_BYTES_MAX] if value is not None else None,
            value_bytes=len(value or b""),
            headers=[Header(name, content) for name, content in record.headers],
        )
        self.rows.append(row)
        self._bytes += 500 + len(row.value or b"") + sum(len(header.value or b"") for header in row.headers)
        self.full = self._bytes > KEPT_BYTES_MAX
