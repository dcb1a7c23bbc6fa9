"""A position never goes back, whatever the rows of a batch say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.engine.driver.positions import LedgerStamp, advance_positions, make_unchanged_row
from lockstep.errors import TableError
from lockstep.model.position import Position
from lockstep.table.ledger import LedgerRow, read_clock

STAMP = LedgerStamp(generation=1, batch=1, epoch=1, committed_at=read_clock(), batch_seconds=0.0, restart_cause=None)
KEYS = st.tuples(st.sampled_from(["id1", "id2"]), st.integers(0, 1))
RANGES = st.tuples(st.integers(0, 6), st.integers(-2, 6))
BATCHES = st.lists(st.lists(st.tuples(KEYS, RANGES), max_size=3), max_size=6)


def make_row(key: tuple[str, int], start: int, until: int) -> LedgerRow:
    """The ledger row of a range."""
    position = Position(topic="t", topic_id=key[0], partition=key[1], next_offset=start)
    return replace(make_unchanged_row(STAMP, position, None), until=until)


@given(BATCHES)
def test_positions_of_taken_batches_only_grow(batches: list[list[tuple[tuple[str, int], tuple[int, int]]]]) -> None:
    reached: dict[tuple[str, int], int] = {}
    for batch in batches:
        ranges = [(key, start, start + length) for key, (start, length) in batch]
        keys = [key for key, _, _ in ranges]
        is_right = len(set(keys)) == len(keys) and all(
            reached.get(key, 0) <= start <= until for key, start, until in ranges
        )
        rows = [make_row(*each) for each in ranges]
        if not is_right:
            with pytest.raises(TableError, match="nothing was committed"):
                advance_positions(reached, rows)
            continue
        after = advance_positions(reached, rows)
        assert after == {key: until for key, _, until in ranges}
        reached |= after
