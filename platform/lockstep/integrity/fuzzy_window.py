"""FuzzyWindow, with and without reordering.

By number, if the producer numbers its messages: the next number passes; a message with a later number is buffered
until the missing messages arrive, or until the watermark is `lateness` beyond its own time; then it is released and
the gap is counted.
By event time otherwise: each message is buffered until the watermark is `lateness` beyond it.

Promises: every message of a session within the bound is applied, and no duplicate within the bound; with `reorder` in
the producer's order, without it in arrival order. Time is the message's own, else Kafka's timestamp; lateness is
measured against the watermark of the message's partition.
Refuses: updates of unknown sessions, one number with two contents. Implausible event times are quarantined and do not
move the watermark.
Costs: number and digest of each message within the bound, in the state of its session; with `reorder` also
the buffered messages, and rows that appear up to `lateness` later.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, cast

import msgspec
from typing_extensions import override

from lockstep.errors import DeclarationError
from lockstep.integrity.base import (
    LONGEST,
    MAY_SKIP,
    IntegrityClass,
    OnGrowth,
    PartitionTime,
    Policy,
    Suspend,
    find_event_time,
    report_implausible_time,
    report_late,
    to_microseconds,
)
from lockstep.integrity.gate_states import (
    GateState,
    NumberOrder,
    RecentMessage,
    RecentMessages,
    RecentWindow,
    TimeOrder,
    WaitingMessage,
)
from lockstep.integrity.sequence_numbers import check_range, make_digest
from lockstep.integrity.verdict import (
    ACCEPT,
    AnyGate,
    Gate,
    Judgement,
    Verdict,
    report_unknown_session,
    report_violation,
)
from lockstep.model.fault import Fault
from lockstep.model.record import Envelope, Kind, Record


def check_duplicate(recent: RecentMessages, number: int | None, record: Record) -> Verdict | None:
    """The verdict on a number seen before; None for a new number, or without a number."""
    earlier = None if number is None else recent.get(number)
    if earlier is None:
        return None
    if earlier.content == make_digest(record):
        return Verdict(Judgement.DUPLICATE, "repeat", "each message once", str(number))
    return report_violation("same number, other content", "the content it had before", number)


def remember(
    recent: RecentMessages, number: int | None, record: Record, happened_us: int, floor_us: int
) -> RecentMessages:
    """Remember one more message, and forget those beyond the bound."""
    if number is not None:
        recent[number] = RecentMessage(make_digest(record), happened_us)
    while recent:
        oldest = next(iter(recent))
        if recent[oldest].happened_us >= floor_us:
            break
        del recent[oldest]
    return recent


def find_late(envelope: Envelope, record: Record, time: PartitionTime, lateness_us: int) -> Verdict | None:
    """The verdict on a message beyond the bound; None for one within it."""
    happened_us = find_event_time(envelope, record)
    floor_us = time.watermark_us - lateness_us
    if happened_us >= floor_us:
        return None
    return report_late(happened_us, floor_us)


HELD_MAX = 10_000
"""Buffered messages of one session; with more, the bound is considered never to pass. Each costs some 30
bytes in the state of its session, which is rewritten with every batch that touches it."""

Order = NumberOrder | TimeOrder
"""State of a session: its messages are all numbered, or none is."""


class Reordering(Gate[Order]):
    """See the module."""

    def __init__(self, lateness_us: int, time: PartitionTime) -> None:
        self._lateness_us = lateness_us
        self._time = time

    @override
    def check(self, state: Order | None, envelope: Envelope, record: Record) -> tuple[Order | None, Verdict]:
        happened_us = find_event_time(envelope, record)
        number = envelope.sequence
        if self._time.is_implausible(happened_us):
            return state, report_implausible_time(envelope, happened_us)
        if number is not None and (refused := check_range(number)) is not None:
            return state, refused
        if state is None:
            return self._opened(envelope, record, happened_us)
        if number is None and isinstance(state, TimeOrder):
            return self._by_time(state, record, happened_us)
        if number is not None and isinstance(state, NumberOrder):
            return self._by_number(state, number, envelope, record, happened_us)
        expected = "messages of a session all numbered, or none"
        return state, report_violation("no evidence", expected, f"sequence={number}")

    @override
    def migrate_state(self, state: GateState) -> Order | None:
        return state if isinstance(state, Order) else None

    @override
    def buffered_offsets(self, state: Order | None) -> tuple[int, ...]:
        if state is None:
            return ()
        return _offsets(state.waiting)

    @override
    def due_us(self, state: Order | None) -> int | None:
        if state is None:
            return None
        return min((message.release_us for message in state.waiting), default=None)

    def release_due(self, state: Order | None, until_us: int) -> tuple[Order | None, Verdict]:
        """See `Gate.release_due`: all up to the last message that is due, despite gaps between them."""
        waiting = [] if state is None else state.waiting
        due = [place for place, message in enumerate(waiting) if message.release_us <= until_us]
        if state is None or not due:
            return state, ACCEPT
        last_due = due[-1]
        ready = last_due + 1
        if isinstance(state, TimeOrder):
            return _release_by_time(state, ready)
        # Messages that follow the last one without a gap wait for nothing any more.
        return _release_by_number(state, ready + _in_a_row(waiting[ready:], waiting[last_due].rank))

    @override
    def find_late(self, envelope: Envelope, record: Record) -> Verdict | None:
        return find_late(envelope, record, self._time, self._lateness_us)

    @override
    def buffer_first(self, envelope: Envelope, record: Record) -> tuple[Order, Verdict] | None:
        if envelope.sequence is not None:
            return None
        happened_us = find_event_time(envelope, record)
        return self._wait(TimeOrder([], None), happened_us, record, happened_us)

    def _opened(self, envelope: Envelope, record: Record, happened_us: int) -> tuple[Order | None, Verdict]:
        if envelope.kind is not Kind.SNAPSHOT:
            return None, report_unknown_session(envelope, Judgement.SUSPEND)
        if envelope.sequence is None:
            return TimeOrder([], happened_us), ACCEPT
        recent = self._remember({}, envelope.sequence, record, happened_us)
        return NumberOrder([], recent, envelope.sequence), ACCEPT

    def _by_number(
        self, order: NumberOrder, number: int, envelope: Envelope, record: Record, happened_us: int
    ) -> tuple[Order, Verdict]:
        last = order.last_number
        waiting = order.waiting
        if envelope.kind is Kind.SNAPSHOT and envelope.restarts_sequence:
            recent = self._remember({}, number, record, happened_us)
            return NumberOrder([], recent, number), Verdict(Judgement.ACCEPT, before=_offsets(waiting))
        if envelope.kind is Kind.SNAPSHOT and number == last:  # real feeds send it with the number of the last update
            return order, ACCEPT
        duplicate = check_duplicate(order.recent, number, record)
        if duplicate is not None:
            return order, duplicate
        if number <= last:
            return order, Verdict(Judgement.LATE, "late", f"number {last + 1} or later", str(number))
        recent = self._remember(order.recent, number, record, happened_us)
        if number > last + 1:
            return self._wait(NumberOrder(waiting, recent, last), number, record, happened_us)
        # Messages that are buffered behind an end are freed.
        ready = 0 if envelope.kind is Kind.END else _in_a_row(waiting, number)
        after = NumberOrder(waiting[ready:], recent, number + ready)
        verdict = ACCEPT
        if ready:
            verdict = Verdict(Judgement.ACCEPT, after=_offsets(waiting[:ready]))
        return after, verdict

    def _by_time(self, order: TimeOrder, record: Record, happened_us: int) -> tuple[Order, Verdict]:
        floor_us = max(order.last_us or 0, self._time.watermark_us - self._lateness_us)
        if happened_us < floor_us:
            return order, report_late(happened_us, floor_us)
        return self._wait(order, happened_us, record, happened_us)

    def _wait(self, order: Order, rank: int, record: Record, happened_us: int) -> tuple[Order, Verdict]:
        if len(order.waiting) >= HELD_MAX:
            expected = f"at most {HELD_MAX} of a session"
            return order, report_violation("buffer limit exceeded", expected, HELD_MAX + 1)
        waiting = list(order.waiting)
        insort(waiting, WaitingMessage(rank, record.offset, happened_us + self._lateness_us))
        expected_rank = order.last_number + 1 if isinstance(order, NumberOrder) else rank
        after = msgspec.structs.replace(order, waiting=waiting)
        return after, Verdict(Judgement.BUFFER, "buffered", str(expected_rank), str(rank))

    def _remember(self, recent: RecentMessages, number: int | None, record: Record, happened_us: int) -> RecentMessages:
        return remember(recent, number, record, happened_us, self._time.watermark_us - self._lateness_us)


def _release_by_time(order: TimeOrder, ready: int) -> tuple[TimeOrder, Verdict]:
    """Release the first `ready` buffered messages."""
    released = order.waiting[:ready]
    after = TimeOrder(order.waiting[ready:], released[-1].rank)
    return after, Verdict(Judgement.ACCEPT, after=_offsets(released))


def _release_by_number(order: NumberOrder, ready: int) -> tuple[NumberOrder, Verdict]:
    """Release the first `ready` buffered messages; a gap in their numbers is noticed."""
    released = order.waiting[:ready]
    last = released[-1].rank
    missing = last - order.last_number - len(released)
    after = NumberOrder(order.waiting[ready:], order.recent, last)
    cause = "gap" if missing else ""
    expected = str(order.last_number + 1)
    found = f"{missing} numbers missing up to {last}"
    return after, Verdict(Judgement.ACCEPT, cause, expected, found, after=_offsets(released))


def _in_a_row(waiting: list[WaitingMessage], number: int) -> int:
    """Count the buffered messages that follow a number without a gap."""
    count = 0
    while count < len(waiting) and waiting[count].rank == number + count + 1:
        count += 1
    return count


def _offsets(waiting: list[WaitingMessage]) -> tuple[int, ...]:
    return tuple(message.offset for message in waiting)


class _AnyOrder(Gate[RecentWindow]):
    """Accepts any order within the bound."""

    def __init__(self, lateness_us: int, time: PartitionTime) -> None:
        self._lateness_us = lateness_us
        self._time = time

    @override
    def check(
        self, state: RecentWindow | None, envelope: Envelope, record: Record
    ) -> tuple[RecentWindow | None, Verdict]:
        happened_us = find_event_time(envelope, record)
        floor_us = self._time.watermark_us - self._lateness_us
        if self._time.is_implausible(happened_us):
            return state, report_implausible_time(envelope, happened_us)
        if envelope.sequence is not None and (refused := check_range(envelope.sequence)) is not None:
            return state, refused
        if state is None and envelope.kind is not Kind.SNAPSHOT:
            return None, report_unknown_session(envelope, Judgement.SUSPEND)
        # With a restarted numbering, earlier numbers do not count.
        restarts = envelope.restarts_sequence and envelope.kind is Kind.SNAPSHOT
        recent = {} if state is None or restarts else state.recent
        duplicate = check_duplicate(recent, envelope.sequence, record)
        is_snapshot = envelope.kind is Kind.SNAPSHOT
        if duplicate is not None and not (is_snapshot and duplicate.judgement is Judgement.VIOLATION):
            return state, duplicate  # real feeds send a snapshot with the number of the last update
        if happened_us < floor_us and state is not None:
            return state, report_late(happened_us, floor_us)
        return RecentWindow(remember(recent, envelope.sequence, record, happened_us, floor_us)), ACCEPT

    @override
    def find_late(self, envelope: Envelope, record: Record) -> Verdict | None:
        return find_late(envelope, record, self._time, self._lateness_us)

    def migrate_state(self, state: GateState) -> RecentWindow:
        """See `Gate.migrate_state`: a session known to another class stays known."""
        return state if isinstance(state, RecentWindow) else RecentWindow({})


@dataclass(frozen=True, kw_only=True)
class FuzzyWindow(IntegrityClass):
    """Any order within the bound; later messages go to the late table.

    Example: `FuzzyWindow(lateness=timedelta(minutes=5))`

    Attributes:
        lateness: The bound, in event time.
        reorder: Buffer messages and release them in order: by number if the producer numbers them, else by event time.
        on_violation: The reaction to a violation, for example to a deleted topic.
        on_growth: The effect of new partitions of a topic.
    """

    lateness: timedelta
    reorder: bool = False
    on_violation: Policy = field(default_factory=Suspend)
    on_growth: OnGrowth = OnGrowth.VIOLATION

    fault_policy: ClassVar[Mapping[Fault, Judgement]] = MAY_SKIP
    keeps_late: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a bound that is not positive, or beyond all times."""
        bound = cast("object", self.lateness)  # users need no checker
        if not isinstance(bound, timedelta) or bound <= timedelta(0):
            problem = "is not a duration above zero"
            raise DeclarationError("FuzzyWindow.lateness", bound, problem, "for example timedelta(seconds=10)")
        if bound > LONGEST:
            raise DeclarationError(
                "FuzzyWindow.lateness", bound, "is more than a century", "for example timedelta(days=365)"
            )

    @property
    @override
    def is_timed(self) -> bool:
        return True

    @property
    @override
    def buffers_messages(self) -> bool:
        return self.reorder

    @property
    @override
    def buffer(self) -> str:
        return "FuzzyWindow(reorder=True)" if self.reorder else ""

    @property
    @override
    def unordered_because(self) -> str:
        return "" if self.reorder else super().unordered_because

    @override
    def gate(self, time: PartitionTime) -> AnyGate:
        bound_us = to_microseconds(self.lateness)
        if self.reorder:
            return Reordering(bound_us, time)
        return _AnyOrder(bound_us, time)

    @override
    def guarantee(self) -> str:
        order = "put in order" if self.reorder else "in any order"
        return f"fuzzy window: messages within {self.lateness} {order}; later ones in the late table"
