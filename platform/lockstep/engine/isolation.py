"""Finds the message that ends its worker each time: jobs that fail at unchanged positions are cut smaller. Pure.

A worker that dies says nothing of where it was. Its batch is planned again as it was, once: most deaths come
from outside. From the second failure on each partition of the batch is worked by itself, so that the others
commit, and what fails is halved until it is one message. That one is left out, which is the counter-proof:
what fails without it too is no message's fault, and is raised. Nothing of this outlives the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.engine.plan import BatchPlan, PlannedRange
from lockstep.kafka.audit import Key

WHOLE_FAILURES_MAX = 2
"""So many failures of a whole batch are taken for bad luck."""


class Suspect(msgspec.Struct, frozen=True):
    """A partition whose range was part of what failed.

    Attributes:
        until: End of the range that failed; past it the partition is cleared.
        messages: How many to try next.
        killing: The offset that was found to end its worker.
    """

    until: int
    messages: int
    killing: int | None = None


class Isolation(msgspec.Struct, frozen=True):
    """What the failures so far have shown.

    Attributes:
        failures: Whole batches that failed in a row.
        suspects: Partitions that are worked alone, by key.
    """

    failures: int = 0
    suspects: Mapping[Key, Suspect] = {}

    def parts(self, plan: BatchPlan) -> tuple[BatchPlan, ...]:
        """The jobs of a plan: all of it in one, but each suspect alone, cut to what is to be tried of it."""
        alone = [self._tried(item) for group in plan.bins for item in group if item.position.key in self.suspects]
        rest = [tuple(item for item in group if item.position.key not in self.suspects) for group in plan.bins]
        whole = msgspec.structs.replace(plan, bins=tuple(group for group in rest if group))
        parts = [msgspec.structs.replace(plan, bins=((item,),)) for item in alone]
        return ((whole, *parts) if whole.bins else tuple(parts)) or (plan,)

    def worked(self, part: BatchPlan) -> Isolation:
        """After a job that did not fail: a suspect's next one takes all that is left of what failed."""
        suspects = dict(self.suspects)
        for item in _ranges(part):
            suspect = suspects.pop(item.position.key, None)
            if suspect is not None and item.until < suspect.until:
                suspects[item.position.key] = Suspect(suspect.until, suspect.until - item.until)
        return Isolation(0, suspects)

    def failed(self, part: BatchPlan) -> Isolation | None:
        """After a job that failed; None when it failed without the message that was blamed: none is to blame."""
        ranges = _ranges(part)
        known = [item for item in ranges if item.position.key in self.suspects]
        if known:
            (item,) = known
            nobody = item.killing or not item.messages
            return None if nobody else Isolation(self.failures, {**self.suspects, **_blamed(item)})
        if self.failures + 1 < WHOLE_FAILURES_MAX:
            return msgspec.structs.replace(self, failures=self.failures + 1)
        halved = {item.position.key: Suspect(item.until, _half(item)) for item in ranges}
        return Isolation(0, {**self.suspects, **halved})

    def _tried(self, item: PlannedRange) -> PlannedRange:
        suspect = self.suspects[item.position.key]
        until = min(item.until, item.position.next_offset + suspect.messages)
        killing = () if suspect.killing is None else (suspect.killing,)
        return msgspec.structs.replace(item, until=until, killing=killing)


def _blamed(item: PlannedRange) -> dict[Key, Suspect]:
    """What failed by itself: one message is to blame, or half of it is tried next."""
    killing = item.position.next_offset if item.messages == 1 else None
    return {item.position.key: Suspect(item.until, _half(item), killing)}


def _half(item: PlannedRange) -> int:
    return max(1, item.messages // 2)


def _ranges(part: BatchPlan) -> list[PlannedRange]:
    return [item for group in part.bins for item in group]
