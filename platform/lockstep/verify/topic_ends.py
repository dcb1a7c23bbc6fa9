"""Topics that were deleted or re-created: their ends in the ledger.

A second reading of the rule of the writer: it shares no code with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from lockstep.table.head import PolicyChange
from lockstep.verify.ledger import LedgerChain, LedgerRange
from lockstep.verify.report import ViolationKind, Violations

COMPLETE = frozenset({"Strict", "Once"})
"""Classes that may leave a topic only if they have read every message, or if an operator accepts the loss. With
`Suspend()` a re-created topic suspends its sessions instead."""
RECREATED = "re-created"
ACCEPTED = frozenset({"accept-deleted", "accept-recreated"})
AGE_SECONDS_MAX = 60.0
"""Age of the last observation of an end when the topic was missed (docs/topics.md)."""


def check_topic_ends(chains: Iterable[LedgerChain], policies: Sequence[PolicyChange], violations: Violations) -> None:
    """Check that each topic was left at its end, wherever the class of that batch promises every message."""
    for chain in chains:
        for row in chain.endings:
            is_accepted = any(each.kind in ACCEPTED for each in row.accepted)
            if not is_accepted and _promises_all(_find_policy(policies, row.batch), row):
                _check(chain, row, violations)


def describe_end(chain: LedgerChain) -> str:
    """Describe the part of a left topic that may be unread; empty if its end is the position."""
    row = chain.ranges[-1]
    if row.ending is None:
        return ""
    if row.last_end is None:
        return "its end is not known"
    if row.last_end > row.until:
        return f"offsets {row.until} to {row.last_end - 1} were not read"
    return ""


def _check(chain: LedgerChain, row: LedgerRange, violations: Violations) -> None:
    age = row.last_end_age_seconds
    end = row.last_end
    # A second reading of the writer's rule, with which it shares no code.
    is_at_end = end is not None and (end == row.until or (row.catching_up and end < row.until))
    if is_at_end and age is not None and 0 <= age <= AGE_SECONDS_MAX:
        return
    expected = (
        f"offset {row.until} is the end of the topic, observed at most {AGE_SECONDS_MAX:g} s before it was missed"
    )
    observed = "no observation"
    if end is not None and age is not None:
        observed = f"end {end}, observed {age:.0f} s before"
    violations.add(ViolationKind.LEFT_UNREAD, chain.place, row.until, expected, observed)


def _promises_all(found: PolicyChange | None, row: LedgerRange) -> bool:
    """Whether a class and its policy leave a topic of this ending only after its last message."""
    if found is None or found.integrity.partition("(")[0] not in COMPLETE:
        return False
    return not (found.policy.suspends and row.ending == RECREATED)


def _find_policy(policies: Sequence[PolicyChange], batch: int) -> PolicyChange | None:
    """The policy and the class in force at a batch; None if they were not recorded."""
    count = bisect_right(policies, batch, key=lambda each: each.first_batch)
    return policies[count - 1] if count else None
