"""Ordered: in order; may skip; repeats dropped.

Promises: no message of a session is applied after one that follows it, and none twice.
Refuses: updates of unknown sessions, and sessions around undecodable or failing messages: they wait in
quarantine for their next snapshot. What is missing is counted, not waited for.
Costs: one comparison a message; state that may have missed updates, as counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.integrity.contract import Fault, IntegrityClass, OnGrowth, Policy, Suspend
from lockstep.integrity.evidence import out_of_range
from lockstep.integrity.verdict import ACCEPT, Gate, GateState, Judgement, Verdict, noticed


class _Rising:
    """Numbers that rise; offsets where the producer gives none. The state is the last number."""

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        number = record.offset if place.sequence is None else place.sequence
        if (refused := out_of_range(number)) is not None:
            return state, refused
        if place.kind is Kind.SNAPSHOT:
            return number, ACCEPT
        if state is None:
            found = f"{place.kind.value} of a session without snapshot"
            return None, Verdict(Judgement.SUSPEND, "unknown session", "a snapshot first", found)
        last = int(state)  # type: ignore[arg-type]  # an int here
        if number > last:
            skips = place.sequence is not None and number > last + 1
            return number, noticed("gap", last + 1, number) if skips else ACCEPT
        judgement, cause = (Judgement.DUPLICATE, "repeat") if number == last else (Judgement.LATE, "sequence goes back")
        return state, Verdict(judgement, cause, str(last + 1), str(number))


@dataclass(frozen=True, kw_only=True)
class Ordered(IntegrityClass):
    """In order; may skip; repeats and late messages are dropped and counted.

    Attributes:
        on_violation: What happens on what even this class cannot bear: a topic that is gone.
        on_growth: What the growth of a topic by partitions does.
    """

    on_violation: Policy = field(default_factory=Suspend)
    on_growth: OnGrowth = OnGrowth.VIOLATION

    answers: ClassVar[Mapping[Fault, Judgement]] = {
        Fault.UNDECODABLE: Judgement.SUSPEND,
        Fault.RAISED: Judgement.SUSPEND,
        Fault.HOLE: Judgement.GAP,
        Fault.EXPIRED: Judgement.SUSPEND,
        Fault.TRUNCATED: Judgement.SUSPEND,
        Fault.RECREATED: Judgement.GAP,
        Fault.GONE: Judgement.GAP,
        Fault.GREW: Judgement.VIOLATION,
    }

    def gate(self) -> Gate:
        """See `IntegrityClass.gate`."""
        return _Rising()

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        return "ordered: in order, may skip (counted), repeats dropped"
