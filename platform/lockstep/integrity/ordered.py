"""Ordered: in order; may skip; duplicates dropped.

Promises: no message of a session is applied after one that follows it, and none twice.
Refuses: updates of unknown sessions, and sessions around undecodable or failing messages: they are
quarantined until their next snapshot. Missing messages are counted, not awaited.
Costs: one comparison a message; the state may lack missed updates, which are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from lockstep.integrity.base import MAY_SKIP, Fault, IntegrityClass, OnGrowth, PartitionTime, Policy, Suspend
from lockstep.integrity.sequence_numbers import check_range, check_wrap, unwrap_sequence
from lockstep.integrity.verdict import (
    ACCEPT,
    Gate,
    GateState,
    Judgement,
    Verdict,
    accept_with_remark,
    report_unknown_session,
)
from lockstep.model.record import Envelope, Kind, Record


class MonotonicGate(Gate):
    """Rising numbers; offsets where the producer sends none. The state is the last number."""

    def __init__(self, wraps_at: int | None) -> None:
        self._wraps_at = wraps_at

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        number = record.offset if envelope.sequence is None else envelope.sequence
        if (refused := check_range(number, None if envelope.sequence is None else self._wraps_at)) is not None:
            return state, refused
        if envelope.kind is Kind.SNAPSHOT:
            return number, ACCEPT
        if state is None:
            return None, report_unknown_session(envelope, Judgement.SUSPEND)
        last: int = state  # type: ignore[assignment]  # an int here
        if envelope.sequence is not None:
            number = unwrap_sequence(number, last, self._wraps_at)
        if number > last:
            skips = envelope.sequence is not None and number > last + 1
            return number, accept_with_remark("gap", last + 1, number) if skips else ACCEPT
        judgement, cause = (Judgement.DUPLICATE, "repeat") if number == last else (Judgement.LATE, "sequence goes back")
        return state, Verdict(judgement, cause, str(last + 1), str(number))

    @override
    def adapt(self, state: GateState) -> GateState:
        return state if isinstance(state, int) and not isinstance(state, bool) else None


@dataclass(frozen=True, kw_only=True)
class Ordered(IntegrityClass):
    """In order; may skip; duplicates and late messages are dropped and counted.

    Attributes:
        on_violation: What happens on a violation, for example a deleted topic.
        on_growth: What the growth of a topic by partitions does.
        wraps_at: Modulus at which numbers restart at 0: 256 for 8 bits; None for numbers that do not wrap. A
            larger number is refused. A loss of half the modulus or more in a row looks like falling numbers.
    """

    on_violation: Policy = field(default_factory=Suspend)
    on_growth: OnGrowth = OnGrowth.VIOLATION
    wraps_at: int | None = None

    answers: ClassVar[Mapping[Fault, Judgement]] = MAY_SKIP

    def __post_init__(self) -> None:
        """Refuse an invalid modulus."""
        check_wrap("Ordered.wraps_at", self.wraps_at)

    @property
    @override
    def in_order(self) -> bool:
        return self.wraps_at is None

    @override
    def gate(self, time: PartitionTime) -> Gate:
        del time
        return MonotonicGate(self.wraps_at)

    @override
    def guarantee(self) -> str:
        return "ordered: in order, may skip (counted), repeats dropped"
