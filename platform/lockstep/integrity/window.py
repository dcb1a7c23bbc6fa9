"""FuzzyWindow: any order within a bound of lateness; what is later goes to the late table.

Promises: every message of a session that is not later than the bound is applied, none twice as far back as
the bound; with `reorder` in the producer's order, without it as they come. Time is the message's own, else
Kafka's timestamp, and lateness is measured against the watermark of the message's partition.
Refuses: updates of unknown sessions, one number with two contents; times that no clock shows go to quarantine
and move no watermark.
Costs: number and digest of each message within the bound, in the state of its session; with `reorder` also
the messages that wait, and rows that come up to `lateness` later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, TypedDict, cast

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.errors import DeclarationError
from lockstep.integrity.contract import MAY_SKIP, Fault, IntegrityClass, OnGrowth, Policy, Suspend
from lockstep.integrity.numbers import out_of_range
from lockstep.integrity.recent import Recent, met_before, remember
from lockstep.integrity.reorder import Reordering
from lockstep.integrity.time import PartitionTime, absurd, late, microseconds, time_of
from lockstep.integrity.verdict import ACCEPT, Gate, GateState, Judgement, Verdict, unknown_session


class _Window(TypedDict):
    """What is remembered of a session: the messages within the bound, by number."""

    w: Recent


class _AnyOrder(Gate):
    """Accepts any order within the bound."""

    def __init__(self, lateness_us: int, time: PartitionTime) -> None:
        self._lateness_us, self._time = lateness_us, time

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        happened_us, floor_us = time_of(place, record), self._time.watermark_us - self._lateness_us
        if self._time.is_absurd(happened_us):
            return state, absurd(happened_us)
        if place.sequence is not None and (refused := out_of_range(place.sequence)) is not None:
            return state, refused
        if state is None and place.kind is not Kind.SNAPSHOT:
            return None, unknown_session(place, Judgement.SUSPEND)
        anew = state is None or (place.resets and place.kind is Kind.SNAPSHOT)  # the numbers before say nothing of it
        recent = {} if anew else cast("_Window", state)["w"]
        met = met_before(recent, place.sequence, record)
        if met is not None and not (place.kind is Kind.SNAPSHOT and met.judgement is Judgement.VIOLATION):
            return state, met  # real feeds send a snapshot with the number of the last update
        if happened_us < floor_us and state is not None:
            return state, late(happened_us, floor_us)
        return cast("GateState", _Window(w=remember(recent, place.sequence, record, happened_us, floor_us))), ACCEPT

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`: any session that another class knew is known."""
        return state if isinstance(state, dict) and "w" in state else cast("GateState", _Window(w={}))


@dataclass(frozen=True, kw_only=True)
class FuzzyWindow(IntegrityClass):
    """Any order within the bound; what is later goes to the late table.

    Attributes:
        lateness: The bound, in event time.
        reorder: Hold messages back and release them in order: by number where the producer numbers them, else
            by event time.
        on_violation: What happens on what this class cannot bear.
        on_growth: What the growth of a topic by partitions does.
    """

    lateness: timedelta
    reorder: bool = False
    on_violation: Policy = field(default_factory=Suspend)
    on_growth: OnGrowth = OnGrowth.VIOLATION

    answers: ClassVar[Mapping[Fault, Judgement]] = MAY_SKIP
    keeps_late: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a bound that bounds nothing."""
        bound = cast("object", self.lateness)  # users need no checker
        if not isinstance(bound, timedelta) or bound <= timedelta(0):
            problem = "is not a duration above zero"
            raise DeclarationError("FuzzyWindow.lateness", bound, problem, "for example timedelta(seconds=10)")

    @property
    def is_timed(self) -> bool:
        """See `IntegrityClass.is_timed`."""
        return True

    @property
    def holds_back(self) -> bool:
        """See `IntegrityClass.holds_back`."""
        return self.reorder

    @property
    def in_order(self) -> bool:
        """See `IntegrityClass.in_order`."""
        return self.reorder

    def gate(self, time: PartitionTime) -> Gate:
        """See `IntegrityClass.gate`."""
        bound_us = microseconds(self.lateness)
        return Reordering(bound_us, time) if self.reorder else _AnyOrder(bound_us, time)

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        order = "put in order" if self.reorder else "in any order"
        return f"fuzzy window: messages within {self.lateness} {order}; later ones in the late table"
