"""Partitions of topics deleted long ago are one sum, unless they break a rule."""

from __future__ import annotations

import msgspec

from lockstep.features.quality.rules import COUNTS, PartitionSummary, judge_partitions, merge_forgotten
from lockstep.model.position import TopicIdPartition

RULES = judge_partitions()
LIVING = {TopicIdPartition("id-living", 0)}


def summary(topic: str, **counts: int) -> PartitionSummary:
    return PartitionSummary(
        **{**dict.fromkeys(COUNTS, 0), **counts},  # type: ignore[arg-type]  # they are the counts
        topic_id=f"id-{topic}",
        topic=topic,
        partition=0,
        first_event_time_us=counts["rows"],
        last_event_time_us=counts["rows"],
        reached=7,
    )


def test_they_are_one_sum_which_grows_and_stays_one() -> None:
    first = [summary("a", rows=2, distinct_rows=2), summary("living", rows=5, distinct_rows=5)]
    merged = merge_forgotten(first, LIVING, RULES)
    assert [each.topic for each in merged] == ["(forgotten topics)", "living"]
    again = merge_forgotten([*merged, summary("b", rows=3, distinct_rows=3)], LIVING, RULES)
    total, living = again
    assert living == first[1]
    assert (total.rows, total.first_event_time_us, total.last_event_time_us, total.reached) == (5, 2, 3, None)


def test_one_that_breaks_a_rule_stays_by_itself() -> None:
    """In a sum with other partitions, its duplicate could be hidden."""
    broken = summary("broken", rows=3, distinct_rows=2)
    merged = merge_forgotten([summary("a", rows=2, distinct_rows=2), broken], LIVING, RULES)
    assert broken in merged
    assert merged[0].duplicates == 0


def test_sums_of_partitions_that_keep_the_rules_break_none() -> None:
    """Rows outside ranges and falls of the sequence are allowed as far as their own partition explains them."""
    early = summary("early", rows=1, distinct_rows=1, rows_outside=1, silent_rows=3, sequence_falls=1, repeats=2)
    (total,) = merge_forgotten([early, msgspec.structs.replace(early, topic_id="id-late")], LIVING, RULES)
    assert [rule.breaks(total) for rule in RULES] == [0] * len(RULES)


def test_without_forgotten_ones_there_is_no_sum() -> None:
    living = summary("living", rows=5, distinct_rows=5)
    assert merge_forgotten([living], LIVING, RULES) == (living,)
