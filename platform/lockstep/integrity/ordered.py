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

from lockstep.integrity.base import MAY_SKIP, IntegrityClass, OnGrowth, PartitionTime, Policy, Suspend
from lockstep.integrity.gate_states import GateState, LastOffset
from lockstep.integrity.sequence_numbers import check_range, check_wrap, describe_wrap, unwrap_sequence
from lockstep.integrity.verdict import (
    ACCEPT,
    Gate,
    Judgement,
    Verdict,
    accept_with_remark,
    report_unknown_session,
    report_violation,
)
from lockstep.model.fault import Fault
from lockstep.model.record import Envelope, Kind, Record


class MonotonicGate(Gate[int | LastOffset]):
    """Rising numbers; offsets if the producer sends none.

    The state is the last number or the last offset: a number is never compared with an offset.
    """

    def __init__(self, wraps_at: int | None) -> None:
        self._wraps_at = wraps_at

    @override
    def check(
        self, state: int | LastOffset | None, envelope: Envelope, record: Record
    ) -> tuple[int | LastOffset | None, Verdict]:
        number = envelope.sequence
        if number is None:
            return self._by_offset(state, envelope, record)
        refused = check_range(number, self._wraps_at)
        if refused is None and envelope.kind is Kind.SNAPSHOT:
            return number, ACCEPT
        if refused is not None:
            return state, refused
        if isinstance(state, int):
            return self._by_number(state, number)
        if state is not None:
            return state, _report_mix(envelope)
        return None, report_unknown_session(envelope, Judgement.SUSPEND)

    def _by_number(self, last: int, number: int) -> tuple[int, Verdict]:
        number = unwrap_sequence(number, last, self._wraps_at)
        if number == last + 1:
            return number, ACCEPT
        if number > last:
            return number, accept_with_remark("gap", last + 1, number)
        if number == last:
            return last, Verdict(Judgement.DUPLICATE, "repeat", str(last + 1), str(number))
        return last, Verdict(Judgement.LATE, "sequence goes back", str(last + 1), str(number))

    def _by_offset(
        self, state: int | LastOffset | None, envelope: Envelope, record: Record
    ) -> tuple[int | LastOffset | None, Verdict]:
        """A message without a number: Kafka's order is that of its offsets."""
        if envelope.kind is Kind.SNAPSHOT:
            return LastOffset(record.offset), ACCEPT
        if state is None:
            return None, report_unknown_session(envelope, Judgement.SUSPEND)
        if isinstance(state, LastOffset):
            return LastOffset(record.offset), ACCEPT
        if envelope.kind is Kind.END:
            return state, ACCEPT
        return state, _report_mix(envelope)

    @override
    def migrate_state(self, state: GateState) -> int | LastOffset | None:
        return state if isinstance(state, int | LastOffset) else None


def _report_mix(envelope: Envelope) -> Verdict:
    found = f"sequence={envelope.sequence}"
    return report_violation("no evidence", "messages of a session all numbered, or none", found)


@dataclass(frozen=True, kw_only=True)
class Ordered(IntegrityClass):
    """In order; may skip; duplicates and late messages are dropped and counted.

    Example: `Ordered(on_violation=Suspend())`

    Attributes:
        on_violation: The reaction to a violation, for example to a deleted topic.
        on_growth: The effect of new partitions of a topic.
        wraps_at: As `Sequence.wraps_at`.
    """

    on_violation: Policy = field(default_factory=Suspend)
    on_growth: OnGrowth = OnGrowth.VIOLATION
    wraps_at: int | None = None

    fault_policy: ClassVar[Mapping[Fault, Judgement]] = MAY_SKIP

    def __post_init__(self) -> None:
        """Refuse an invalid modulus."""
        check_wrap("Ordered.wraps_at", self.wraps_at)

    @property
    @override
    def unordered_because(self) -> str:
        return describe_wrap(self.wraps_at)

    @override
    def gate(self, time: PartitionTime) -> Gate[int | LastOffset]:
        del time
        return MonotonicGate(self.wraps_at)

    @override
    def guarantee(self) -> str:
        return "ordered: in order, may skip (counted), repeats dropped"
