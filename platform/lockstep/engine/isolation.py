"""Finds the message that ends its worker each time: jobs that fail at unchanged positions are cut smaller. Pure.

A worker that dies says nothing of where it was. Its batch is planned again as it was, once: most deaths come
from outside. From the second failure on each partition of the batch is worked by itself, so that the others
commit, and what fails is halved until it is one message. Then jobs without it and with it alternate: what fails
without it too is no message's fault and is raised, and what works with it was bad luck that has passed. Only a message
with which a job fails each time, while it works without it each time in between, is left out. Nothing of this outlives
the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.engine.plan import BatchPlan, PlannedRange
from lockstep.kafka.audit import Key

WHOLE_FAILURES_MAX = 2
"""So many failures of a whole batch are taken for bad luck."""
CONTROLS = 3
"""So often a job must work without a message, each time after one that failed with it, before the message is blamed.
Once is not enough: an outage may end in between. Each costs two jobs of one message."""


class Suspect(msgspec.Struct, frozen=True):
    """A partition whose range was part of what failed.

    Attributes:
        until: End of the range that failed; past it the partition is cleared.
        messages: How many to try next.
        killing: The offset that the next job leaves out: with it alone the last one failed.
        controls: Jobs that worked without it, each after one that failed with it.
    """

    until: int
    messages: int
    killing: int | None = None
    controls: int = 0


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

    def is_control(self, part: BatchPlan) -> bool:
        """Whether a job only shows that it works without a message: what it did does not count yet."""
        return any(item.killing and not self._is_proven(item) for item in _ranges(part))

    def worked(self, part: BatchPlan) -> Isolation:
        """After a job that did not fail: a suspect's next one takes all that is left of what failed.

        After a control it is the message again.
        """
        suspects = dict(self.suspects)
        for item in _ranges(part):
            suspect = suspects.pop(item.position.key, None)
            if suspect is not None and item.killing and not self._is_proven(item):
                suspects[item.position.key] = Suspect(suspect.until, 1, controls=suspect.controls + 1)
            elif suspect is not None and item.until < suspect.until:
                suspects[item.position.key] = Suspect(suspect.until, suspect.until - item.until)
        return Isolation(0, suspects)

    def failed(self, part: BatchPlan) -> Isolation | None:
        """After a job that failed; None when it failed without the message that was blamed: none is to blame."""
        ranges = _ranges(part)
        known = [item for item in ranges if item.position.key in self.suspects]
        if known:
            (item,) = known
            nobody = item.killing or not item.messages
            blamed = _blamed(item, self.suspects[item.position.key].controls)
            return None if nobody else Isolation(self.failures, {**self.suspects, **blamed})
        if self.failures + 1 < WHOLE_FAILURES_MAX:
            return msgspec.structs.replace(self, failures=self.failures + 1)
        halved = {item.position.key: Suspect(item.until, _half(item)) for item in ranges}
        return Isolation(0, {**self.suspects, **halved})

    def _is_proven(self, item: PlannedRange) -> bool:
        suspect = self.suspects.get(item.position.key)
        return suspect is not None and suspect.controls + 1 >= CONTROLS

    def _tried(self, item: PlannedRange) -> PlannedRange:
        suspect = self.suspects[item.position.key]
        until = min(item.until, item.position.next_offset + suspect.messages)
        killing = () if suspect.killing is None else (suspect.killing,)
        return msgspec.structs.replace(item, until=until, killing=killing, single_batches=True)


def _blamed(item: PlannedRange, controls: int) -> dict[Key, Suspect]:
    """What failed by itself: one message is tried without next, or half of it is tried."""
    if item.messages == 1:
        return {item.position.key: Suspect(item.until, 1, item.position.next_offset, controls)}
    return {item.position.key: Suspect(item.until, _half(item))}


def _half(item: PlannedRange) -> int:
    return max(1, item.messages // 2)


def _ranges(part: BatchPlan) -> list[PlannedRange]:
    return [item for group in part.bins for item in group]
