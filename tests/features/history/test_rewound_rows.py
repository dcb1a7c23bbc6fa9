"""Positions after a rewind: ranges that are read again, and their starts. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lockstep.features.history.rewind import find_common_batch, make_rewound_rows, make_unplaced_rows
from lockstep.model.position import Position, TopicIdPartition
from lockstep.table.head import Head, Lineage
from lockstep.table.positions import LedgerStamp, make_unchanged_row

if TYPE_CHECKING:
    from lockstep.table.ledger import LedgerRow

STAMP = LedgerStamp(
    generation=1,
    batch=8,
    epoch=2,
    committed_at=datetime(2026, 1, 1, 12, tzinfo=UTC),
    batch_seconds=0.0,
    restart_cause=None,
)


def row(topic: str, partition: int, start: int, until: int, *, retired: bool = False, life: str = "id") -> LedgerRow:
    position = Position(topic=topic, topic_id=f"{life}-{topic}", partition=partition, next_offset=until)
    return replace(make_unchanged_row(STAMP, position, None), start=start, until=until, retired=retired)


def keyed(*rows: LedgerRow) -> dict[TopicIdPartition, LedgerRow]:
    return {TopicIdPartition(each.topic_id, each.partition): each for each in rows}


def rewound(
    held: dict[TopicIdPartition, LedgerRow],
    now: dict[TopicIdPartition, LedgerRow],
    since: dict[TopicIdPartition, LedgerRow],
) -> dict[tuple[str, int], tuple[int, bool]]:
    """Return the position of each partition after a rewind, and whether it is retired."""
    rows = make_rewound_rows(held, now, since, {})
    return {(each.topic_id, each.partition): (each.until, each.retired) for each in rows}


def test_a_partition_goes_back_to_its_position_as_of_the_target() -> None:
    held = keyed(row("a", 0, 0, 10))
    now = keyed(row("a", 0, 20, 30))
    assert rewound(held, now, keyed(row("a", 0, 10, 20))) == {("id-a", 0): (10, False)}


def test_a_topic_that_was_taken_up_since_is_read_again_from_its_first_position() -> None:
    """A read from the log start would not notice offsets that expired since."""
    held = keyed(row("a", 0, 0, 10))
    since = keyed(row("b", 0, 5, 9), row("b", 1, 0, 3))
    now = keyed(row("a", 0, 0, 10), row("b", 0, 9, 40), row("b", 1, 3, 7))
    assert rewound(held, now, since) == {("id-a", 0): (10, False), ("id-b", 0): (5, False), ("id-b", 1): (0, False)}
    assert list(make_unplaced_rows(held, {}, since)) == []


def test_a_partition_that_a_known_topic_got_since_has_no_position_and_its_growth_is_judged_again() -> None:
    held = keyed(row("a", 0, 0, 10))
    since = keyed(row("a", 0, 10, 20), row("a", 1, 0, 4))
    now = keyed(row("a", 0, 10, 20), row("a", 1, 0, 4))
    assert rewound(held, now, since) == {("id-a", 0): (10, False)}
    assert [(each.partition, each.until) for each in make_unplaced_rows(held, {}, since)] == [(1, 0)]


def test_a_topic_that_was_created_again_since_is_a_known_one() -> None:
    held = keyed(row("a", 0, 0, 10))
    since = keyed(row("a", 0, 0, 4, life="new"))
    assert rewound(held, {**held, **since}, since) == {("id-a", 0): (10, False)}
    assert [(each.topic_id, each.until) for each in make_unplaced_rows(held, {}, since)] == [("new-a", 0)]


def test_a_topic_that_was_retired_since_stays_retired_unless_it_had_messages() -> None:
    held = keyed(row("a", 0, 0, 10), row("b", 0, 0, 10), row("c", 0, 0, 10, retired=True))
    now = keyed(
        row("a", 0, 10, 10, retired=True), row("b", 0, 10, 12, retired=True), row("c", 0, 10, 10, retired=False)
    )
    expected = {("id-a", 0): (10, True), ("id-b", 0): (10, False), ("id-c", 0): (10, False)}
    assert rewound(held, now, {}) == expected


@pytest.mark.parametrize(("ending", "cause"), [("deleted", "topic gone"), ("re-created", "topic re-created")])
def test_the_states_of_a_topic_that_has_ended_since_are_counted_again(ending: str, cause: str) -> None:
    """The states of a topic that ended before the target are already counted."""
    held = keyed(row("a", 0, 0, 10), replace(row("b", 0, 0, 10, retired=True), ending=ending))
    now = {key: replace(each, retired=True, ending=ending) for key, each in held.items()}
    (ended, before) = make_rewound_rows(held, now, {}, {})
    assert (ended.ending, ended.discarded_by) == (ending, cause)
    assert (before.ending, before.discarded_by) == (ending, "")


def test_the_last_batch_that_counts_for_both_is_the_target_or_that_before_what_was_undone() -> None:
    """Batch 5 is a rewind to batch 2 that undid batch 4. The targets are batch 4 and batch 6."""
    head = Head(stream="s", cluster_id="c", generation=2, lineage=(Lineage(1, 2),), batch=7)
    undone = Head(stream="s", cluster_id="c", generation=1, batch=4)
    counting = Head(stream="s", cluster_id="c", generation=2, lineage=(Lineage(1, 2),), batch=6)
    assert (find_common_batch(head, undone), find_common_batch(head, counting)) == (2, 6)
