"""FuzzyWindow, with and without reordering.

By number, where the producer numbers its messages: the next number passes; a later one is buffered until the missing
ones arrive, or until the watermark is `lateness` beyond its own time; then it is released and the gap is counted.
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
from typing import ClassVar, NotRequired, TypedDict, cast

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
from lockstep.integrity.sequence_numbers import check_range, make_digest
from lockstep.integrity.verdict import (
    ACCEPT,
    Gate,
    GateState,
    Judgement,
    Verdict,
    report_unknown_session,
    report_violation,
)
from lockstep.model.fault import Fault
from lockstep.model.record import Envelope, Kind, Record

RecentMessages = dict[int, list[bytes | int]]
"""By number: [digest of the content, event time in microseconds], oldest first."""


def check_duplicate(recent: RecentMessages, number: int | None, record: Record) -> Verdict | None:
    """The verdict on a number seen before; None for a new one, or without a number."""
    known = recent.get(number) if number is not None else None
    if known is None:
        return None
    if known[0] == make_digest(record):
        return Verdict(Judgement.DUPLICATE, "repeat", "each message once", str(number))
    return report_violation("same number, other content", "the content it had before", number)


def remember(
    recent: RecentMessages, number: int | None, record: Record, happened_us: int, floor_us: int
) -> RecentMessages:
    """Remember one more message, and forget those beyond the bound."""
    if number is not None:
        recent[number] = [make_digest(record), happened_us]
    while recent:
        oldest = next(iter(recent))
        if recent[oldest][1] >= floor_us:  # type: ignore[operator]  # the second part is an int
            break
        del recent[oldest]
    return recent


def find_late(envelope: Envelope, record: Record, time: PartitionTime, lateness_us: int) -> Verdict | None:
    """The verdict on a message beyond the bound; None for one within it."""
    happened_us, floor_us = find_event_time(envelope, record), time.watermark_us - lateness_us
    return report_late(happened_us, floor_us) if happened_us < floor_us else None


HELD_MAX = 10_000
"""Buffered messages of one session; with more, the bound is considered never to pass. Each costs some 30
bytes in the state of its session, which is rewritten with every batch that touches it."""

Waiting = list[int]
"""[number or event time, offset, watermark at which it is released]."""


class Order(TypedDict):
    """Memory of a session: last released number ("n") or time ("t"), buffered messages, recent messages."""

    h: list[Waiting]
    w: RecentMessages
    n: NotRequired[int]
    t: NotRequired[int]


class Reordering(Gate):
    """See the module."""

    def __init__(self, lateness_us: int, time: PartitionTime) -> None:
        self._lateness_us, self._time = lateness_us, time

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        happened_us, number = find_event_time(envelope, record), envelope.sequence
        if self._time.is_implausible(happened_us):
            return state, report_implausible_time(envelope, happened_us)
        if number is not None and (refused := check_range(number)) is not None:
            return state, refused
        if state is None:
            return self._opened(envelope, record, happened_us)
        order = cast("Order", state)
        if ("n" in order) is (number is None):
            return state, report_violation(
                "no evidence", "messages of a session all numbered, or none", f"sequence={number}"
            )
        if number is None:
            return self._by_time(order, record, happened_us)
        return self._by_number(order, envelope, record, happened_us)

    @override
    def adapt(self, state: GateState) -> GateState:
        return state if isinstance(state, dict) and "h" in state else None

    @override
    def held(self, state: GateState) -> tuple[int, ...]:
        return () if state is None else _offsets(cast("Order", state)["h"])

    @override
    def due_us(self, state: GateState) -> int | None:
        return None if state is None else min((each[2] for each in cast("Order", state)["h"]), default=None)

    def due(self, state: GateState, until_us: int) -> tuple[GateState, Verdict]:
        """See `Gate.due`: all up to the last one that is due, despite gaps between them."""
        order = cast("Order", state)
        last_due = max((at for at, each in enumerate(order["h"]) if each[2] <= until_us), default=-1)
        if last_due < 0:
            return state, ACCEPT
        ready = last_due + 1
        if "n" in order:
            ready += _in_a_row(order["h"][ready:], order["h"][last_due][0])
        return _released(order, ready)

    @override
    def find_late(self, envelope: Envelope, record: Record) -> Verdict | None:
        return find_late(envelope, record, self._time, self._lateness_us)

    @override
    def buffer_first(self, envelope: Envelope, record: Record) -> tuple[GateState, Verdict] | None:
        if envelope.sequence is not None:
            return None
        happened_us = find_event_time(envelope, record)
        return self._waiting(Order(h=[], w={}), happened_us, record, happened_us)

    def _opened(self, envelope: Envelope, record: Record, happened_us: int) -> tuple[GateState, Verdict]:
        if envelope.kind is not Kind.SNAPSHOT:
            return None, report_unknown_session(envelope, Judgement.SUSPEND)
        recent = self._remember({}, envelope.sequence, record, happened_us)
        if envelope.sequence is None:
            return _state(Order(h=[], w=recent, t=happened_us)), ACCEPT
        return _state(Order(h=[], w=recent, n=envelope.sequence)), ACCEPT

    def _by_number(
        self, order: Order, envelope: Envelope, record: Record, happened_us: int
    ) -> tuple[GateState, Verdict]:
        number, last, held = cast("int", envelope.sequence), order.get("n", 0), order["h"]
        if envelope.kind is Kind.SNAPSHOT and envelope.restarts_sequence:
            recent = self._remember({}, number, record, happened_us)
            return _state(Order(h=[], w=recent, n=number)), Verdict(Judgement.ACCEPT, before=_offsets(held))
        if envelope.kind is Kind.SNAPSHOT and number == last:  # real feeds send it with the number of the last update
            return _state(order), ACCEPT
        if (met := check_duplicate(order["w"], number, record)) is not None:
            return _state(order), met
        if number <= last:
            return _state(order), Verdict(Judgement.LATE, "late", f"number {last + 1} or later", str(number))
        recent = self._remember(order["w"], number, record, happened_us)
        if number > last + 1:
            return self._waiting(Order(h=held, w=recent, n=last), number, record, happened_us)
        ready = 0 if envelope.kind is Kind.END else _in_a_row(held, number)  # messages buffered behind an end are freed
        after = Order(h=held[ready:], w=recent, n=number + ready)
        return _state(after), Verdict(Judgement.ACCEPT, after=_offsets(held[:ready])) if ready else ACCEPT

    def _by_time(self, order: Order, record: Record, happened_us: int) -> tuple[GateState, Verdict]:
        floor_us = max(order.get("t", 0), self._time.watermark_us - self._lateness_us)
        if happened_us < floor_us:
            return _state(order), report_late(happened_us, floor_us)
        return self._waiting(order, happened_us, record, happened_us)

    def _waiting(self, order: Order, rank: int, record: Record, happened_us: int) -> tuple[GateState, Verdict]:
        if len(order["h"]) >= HELD_MAX:
            return _state(order), report_violation(
                "buffer limit exceeded", f"at most {HELD_MAX} of a session", HELD_MAX + 1
            )
        held = list(order["h"])
        insort(held, [rank, record.offset, happened_us + self._lateness_us])
        after = cast("Order", {**order, "h": held})
        return _state(after), Verdict(Judgement.BUFFER, "buffered", str(order.get("n", rank - 1) + 1), str(rank))

    def _remember(self, recent: RecentMessages, number: int | None, record: Record, happened_us: int) -> RecentMessages:
        return remember(recent, number, record, happened_us, self._time.watermark_us - self._lateness_us)


def _released(order: Order, ready: int) -> tuple[GateState, Verdict]:
    """Release the first `ready` buffered messages; a gap in their numbers is noticed."""
    released, rest = order["h"][:ready], order["h"][ready:]
    last, offsets = released[-1][0], _offsets(released)
    if "n" not in order:
        return _state(Order(h=rest, w=order["w"], t=last)), Verdict(Judgement.ACCEPT, after=offsets)
    missing = last - order["n"] - len(released)
    after = _state(Order(h=rest, w=order["w"], n=last))
    found = f"{missing} numbers missing up to {last}"
    return after, Verdict(Judgement.ACCEPT, "gap" if missing else "", str(order["n"] + 1), found, after=offsets)


def _in_a_row(held: list[Waiting], number: int) -> int:
    """How many buffered messages follow a number without a gap."""
    return next((at for at, each in enumerate(held) if each[0] != number + at + 1), len(held))


def _offsets(held: list[Waiting]) -> tuple[int, ...]:
    return tuple(each[1] for each in held)


def _state(order: Order) -> GateState:
    return cast("GateState", order)


class _Window(TypedDict):
    """Memory of a session: the messages within the bound, by number."""

    w: RecentMessages


class _AnyOrder(Gate):
    """Accepts any order within the bound."""

    def __init__(self, lateness_us: int, time: PartitionTime) -> None:
        self._lateness_us, self._time = lateness_us, time

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        happened_us, floor_us = find_event_time(envelope, record), self._time.watermark_us - self._lateness_us
        if self._time.is_implausible(happened_us):
            return state, report_implausible_time(envelope, happened_us)
        if envelope.sequence is not None and (refused := check_range(envelope.sequence)) is not None:
            return state, refused
        if state is None and envelope.kind is not Kind.SNAPSHOT:
            return None, report_unknown_session(envelope, Judgement.SUSPEND)
        restarted = state is None or (
            envelope.restarts_sequence and envelope.kind is Kind.SNAPSHOT
        )  # a restarted numbering: earlier numbers do not count
        recent = {} if restarted else cast("_Window", state)["w"]
        met = check_duplicate(recent, envelope.sequence, record)
        if met is not None and not (envelope.kind is Kind.SNAPSHOT and met.judgement is Judgement.VIOLATION):
            return state, met  # real feeds send a snapshot with the number of the last update
        if happened_us < floor_us and state is not None:
            return state, report_late(happened_us, floor_us)
        return cast("GateState", _Window(w=remember(recent, envelope.sequence, record, happened_us, floor_us))), ACCEPT

    @override
    def find_late(self, envelope: Envelope, record: Record) -> Verdict | None:
        return find_late(envelope, record, self._time, self._lateness_us)

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`: a session known to another class stays known."""
        kept = isinstance(state, dict) and state.keys() == {"w"}
        return state if kept else cast("GateState", _Window(w={}))


@dataclass(frozen=True, kw_only=True)
class FuzzyWindow(IntegrityClass):
    """Any order within the bound; later messages go to the late table.

    Example: `FuzzyWindow(lateness=timedelta(minutes=5))`

    Attributes:
        lateness: The bound, in event time.
        reorder: Buffer messages and release them in order: by number where the producer numbers them, else
            by event time.
        on_violation: What happens on a violation, for example a deleted topic.
        on_growth: What the growth of a topic by partitions does.
    """

    lateness: timedelta
    reorder: bool = False
    on_violation: Policy = field(default_factory=Suspend)
    on_growth: OnGrowth = OnGrowth.VIOLATION

    answers: ClassVar[Mapping[Fault, Judgement]] = MAY_SKIP
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
    def gate(self, time: PartitionTime) -> Gate:
        bound_us = to_microseconds(self.lateness)
        return Reordering(bound_us, time) if self.reorder else _AnyOrder(bound_us, time)

    @override
    def guarantee(self) -> str:
        order = "put in order" if self.reorder else "in any order"
        return f"fuzzy window: messages within {self.lateness} {order}; later ones in the late table"
