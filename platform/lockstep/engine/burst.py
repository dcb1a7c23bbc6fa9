"""A burst of garbage stops the stream: it is not drained into quarantine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.declare.limits import Limits
from lockstep.engine.facts import BinFacts
from lockstep.integrity.finding import Finding


def any_message(bins: Sequence[BinFacts]) -> bool:
    """Whether a batch read anything: one that did not says nothing of a burst."""
    return any(item.counts.messages for group in bins for item in group.ranges)


def quarantine_burst(bins: Sequence[BinFacts], limits: Limits) -> Finding | None:
    """What halts the stream when too large a share of a batch could not be decoded or applied.

    Messages of suspended sessions do not count: they follow one cause, which was counted.
    """
    facts = [item for group in bins for item in group.ranges]
    messages = sum(item.counts.messages for item in facts)
    refused = sum(item.counts.refused for item in facts)
    if refused < limits.quarantine_burst or refused <= limits.quarantine_share * messages:
        return None
    worst = max(facts, key=lambda item: item.counts.refused).range.position
    return Finding(
        cause="quarantine burst",
        topic=worst.topic,
        topic_id=worst.topic_id,
        partition=worst.partition,
        offset=worst.next_offset,
        until=worst.next_offset,
        expected=f"at most {limits.quarantine_share:.0%} of a batch refused",
        found=f"{refused} of {messages} messages",
        detail="mend decoder or transform, or accept this one burst; nothing was read past",
    )
