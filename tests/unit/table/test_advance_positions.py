"""A position never goes back, for any rows of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.errors import TableError
from lockstep.model.position import Position, TopicIdPartition
from lockstep.table.ledger import FORGOTTEN, LedgerRow, read_clock
from lockstep.table.positions import LedgerStamp, advance_positions, make_unchanged_row

STAMP = LedgerStamp(generation=1, batch=1, epoch=1, committed_at=read_clock(), batch_seconds=0.0, restart_cause=None)
KEYS = st.tuples(st.sampled_from(["id1", "id2"]), st.integers(0, 1))
RANGES = st.tuples(st.integers(0, 6), st.integers(-2, 6), st.booleans())
BATCHES = st.lists(st.lists(st.tuples(KEYS, RANGES), max_size=3), max_size=6)
Batches = list[list[tuple[TopicIdPartition, tuple[int, int, bool]]]]


def make_row(key: TopicIdPartition, start: int, until: int, *, is_forgotten: bool) -> LedgerRow:
    """Return the ledger row of a range."""
    position = Position(topic="t", topic_id=key[0], partition=key[1], next_offset=start)
    lifecycle = FORGOTTEN if is_forgotten else None
    return replace(make_unchanged_row(STAMP, position, None), until=until, lifecycle=lifecycle)


@given(BATCHES)
def test_positions_of_taken_batches_only_grow_until_their_topic_is_forgotten(batches: Batches) -> None:
    reached: dict[TopicIdPartition, int] = {}
    for batch in batches:
        keys = [key for key, _ in batch]
        follows = all(reached.get(key, 0) <= start and length >= 0 for key, (start, length, _) in batch)
        is_right = follows and len(set(keys)) == len(keys)
        rows = [make_row(key, start, start + length, is_forgotten=gone) for key, (start, length, gone) in batch]
        if not is_right:
            with pytest.raises(TableError, match="nothing was committed"):
                advance_positions(reached, rows)
            continue
        after = advance_positions(reached, rows)
        assert after == {key: 0 if gone else start + length for key, (start, length, gone) in batch}
        reached |= after
