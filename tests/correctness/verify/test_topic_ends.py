"""The proof's second reading of the ends of topics: a complete class may leave a topic only at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
from hypothesis import event, given
from hypothesis import strategies as st

from lockstep.table.head import PolicyChange, ViolationPolicy
from lockstep.verify.ledger import AcceptedRange, LedgerChain, LedgerRange
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations
from lockstep.verify.topic_ends import check_topic_ends, describe_end

if TYPE_CHECKING:
    from lockstep.verify.ledger import StoredRanges

PLACE = ViolationPlace("a", "id-a", 0)
BATCH = 7
COUNTS = ("messages", "rows", "accepted_without_row", "skipped", "repeats", "gaps", "dropped", "quarantined")
PLAIN = msgspec.convert(
    {
        **dict.fromkeys(("generation", "batch", "partition", "start", "until", "suspended_from", *COUNTS), 0),
        "batch": BATCH,
        "topic": "a",
        "topic_id": "id-a",
        "holes": [],
        "lifecycle": "deleted",
        "ending": "deleted",
    },
    LedgerRange,
)
COMPLETE = ("Strict(evidence=Sequence())", "Once(keep_ids=5)")
CLASSES = st.sampled_from((*COMPLETE, "Ordered()", "NoIntegrity()", ""))


@st.composite
def rows(draw: st.DrawFn) -> LedgerRange:
    kinds = draw(st.sampled_from(((), (), ("accept-deleted",), ("accept-recreated",), ("retire",))))
    return msgspec.structs.replace(
        PLAIN,
        until=draw(st.integers(0, 3)),
        last_end=draw(st.none() | st.integers(0, 3)),
        last_end_age_seconds=draw(st.none() | st.sampled_from((0.0, 59.9, 60.0, 60.1, 1e6))),
        accepted=[AcceptedRange(kind) for kind in kinds],
        catching_up=draw(st.booleans()),
        ending=draw(st.sampled_from(("deleted", "re-created"))),
    )


POLICIES = st.builds(ViolationPolicy, suspends=st.booleans())


@given(
    row=rows(), before=CLASSES, then=CLASSES, first_batch=st.integers(BATCH - 1, BATCH + 2),
    policy_before=POLICIES, policy_then=POLICIES,
)  # fmt: skip
def test_a_topic_is_left_at_its_end_by_a_class_that_promises_every_message(
    row: LedgerRange,
    before: str,
    then: str,
    first_batch: int,
    policy_before: ViolationPolicy,
    policy_then: ViolationPolicy,
) -> None:
    """With `Suspend()` the sessions of a re-created topic are suspended; a deleted topic has none left to suspend."""
    policies = [PolicyChange(1, policy_before, before), PolicyChange(first_batch, policy_then, then)]
    chain = LedgerChain(PLACE, cast("StoredRanges", [row]), endings=(row,))
    violations = Violations()
    check_topic_ends([chain], policies, violations)
    end = row.last_end
    until = row.until
    age = row.last_end_age_seconds
    is_read = end is not None and (end == until or (row.catching_up and end < until))
    is_proven = is_read and age is not None and age <= 60
    is_accepted = any(each.kind.startswith("accept-") for each in row.accepted)
    name = then if first_batch <= BATCH else before
    policy = policy_then if first_batch <= BATCH else policy_before
    is_suspended = policy.suspends and row.ending == "re-created"
    wrong = name in COMPLETE and not is_suspended and not is_proven and not is_accepted
    event(f"violation: {wrong}")
    assert [each.kind for each in violations.listed] == ([ViolationKind.LEFT_UNREAD] if wrong else [])
    unread = "its end is not known" if end is None else f"offsets {until} to {end - 1} were not read"
    assert describe_end(chain) == ("" if end is not None and end <= until else unread)
