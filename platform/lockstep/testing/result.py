"""The results of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Self, cast

from lockstep.declare.delivery import Delivery
from lockstep.declare.delivery_target import DeliveredRow, RowSource
from lockstep.declare.transform import R, S
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.integrity.verdict import Verdict
from lockstep.model.finding import Finding
from lockstep.model.record import Envelope
from lockstep.model.state_loss import StateLoss
from lockstep.testing.exact import describe_exactly

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class MessageResult(Generic[R]):
    """One message that was read.

    Attributes:
        offset: Its position among the messages of its topic, from 0.
        envelope: Its envelope; None when it could not be decoded or has none.
        verdict: Its verdict. A message of kind SKIP is accepted with the cause "skip".
        rows: The rows that it emitted, in order.
    """

    offset: int
    envelope: Envelope | None
    verdict: Verdict
    rows: tuple[R, ...]
    topic: str = "testing"


@dataclass(frozen=True)
class RowWithOrigin(Generic[R]):
    """A row with its provenance, as stored in the table.

    Attributes:
        row: The transform's row.
        topic: Name of the topic.
        offset: The source message; of a timer's row, the session's last message.
        emit_offset: The offset processed when it was emitted.
        number: Its number among the rows of that offset, from 0.
        session: Its session.
        sequence: The producer's number of the message; None for rows of timers.
        event_time_us: Event time, in microseconds since 1970 (UTC).
        cause: The hook that emitted it: update, snapshot, timer, end or late.
    """

    row: R
    topic: str
    offset: int
    emit_offset: int
    number: int
    session: str
    sequence: int | None
    event_time_us: int | None
    cause: str = "update"


@dataclass(frozen=True)
class RejectedMessage:
    """A message that was not applied: it is in the quarantine or in the late table.

    Attributes:
        topic: Name of the topic.
        offset: Its offset.
        session: Its session, if known.
        cause: Why, in a few words.
        expected: What would have been accepted.
        found: The value or state that was found.
    """

    topic: str
    offset: int
    session: str | None
    cause: str
    expected: str | None
    found: str | None


@dataclass(frozen=True)
class RunResult(Generic[S, R]):
    """The results of all messages: up to the first violation, which is the last message read.

    Two results are equal when all of this is exactly equal, NaN to NaN but not 6 to 6.0.

    Attributes:
        stream: Name of the stream.
        folded: The messages that were read, in order.
        states: The state of each open session, as saved and recovered; of a topic that a test adds later under the key
            "topic: session".
        finding: The violation, as it would be committed with the halt; None without one.
        proven: All rows with their provenance, in the order of the table.
        quarantine: The quarantined messages, in order.
        late: The late messages, in order.
        losses: Discarded states that nothing replaced or emitted, by cause.
    """

    stream: str
    folded: tuple[MessageResult[R], ...]
    states: Mapping[str, S]
    finding: Finding | None
    proven: tuple[RowWithOrigin[R], ...] = ()
    quarantine: tuple[RejectedMessage, ...] = ()
    late: tuple[RejectedMessage, ...] = ()
    losses: tuple[StateLoss, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunResult):
            return NotImplemented
        return self._list_verdicts() == other._list_verdicts() and self._describe_values() == other._describe_values()

    def __hash__(self) -> int:
        return hash((self.stream, len(self.folded)))

    def _list_verdicts(self) -> tuple[object, ...]:
        """All but the user's own values."""
        folded = [(each.offset, each.envelope, each.verdict, each.topic) for each in self.folded]
        proven = [replace(cast("RowWithOrigin[Any]", each), row=None) for each in self.proven]
        return self.stream, folded, self.finding, proven, self.quarantine, self.late, self.losses

    def _describe_values(self) -> object:
        """The rows and states, exactly."""
        states = [(session, self.states[session]) for session in sorted(self.states)]
        return describe_exactly([states, self.rows, [each.rows for each in self.folded]])

    @property
    def rows(self) -> list[R]:
        """All rows, in the order of the table."""
        return [each.row for each in self.proven]

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each message that was read."""
        return [message.verdict for message in self.folded]

    def or_raise(self) -> Self:
        """The same result, for tests that expect no violation.

        Raises:
            IntegrityLost: The result has a violation; the run of a stream ends with the same error.
        """
        if self.finding is not None:
            raise IntegrityLost(self.stream, (self.finding,))
        return self


def choose_rows(delivery: Delivery, result: RunResult[Any, Any]) -> tuple[DeliveredRow, ...]:
    """Choose and make the rows of a test that a delivery would write, by its `where` and `select`.

    Batch and generation of each origin are 1, the partition is 0, and the topic id is the name of the topic.

    Args:
        delivery: The delivery.
        result: Result of `run`.

    Returns:
        The values with their origins, in the order of the table.

    Raises:
        Exception: The error of `where` or `select`: a delivery cannot deliver the row.
    """
    chosen = list[DeliveredRow]()
    for proven in result.proven:
        origin = _make_origin(proven)
        value = delivery.choose(proven.row, origin)
        if value is not None:
            chosen.append(DeliveredRow(value, origin))
    return tuple(chosen)


def _make_origin(proven: RowWithOrigin[Any]) -> RowSource:
    microseconds = proven.event_time_us
    return RowSource(
        topic=proven.topic,
        topic_id=proven.topic,
        partition=0,
        offset=proven.offset,
        emit_offset=proven.emit_offset,
        row=proven.number,
        session=proven.session,
        sequence=proven.sequence,
        event_time=None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds),
        cause=proven.cause,
        batch=1,
        generation=1,
    )
