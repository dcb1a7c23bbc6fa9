"""When a state base is due, and the segments that a local store must read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.model.position import SegmentRef
from lockstep.model.state_types import StateTypeSchema
from lockstep.state.changelog import (
    CHAIN_MAX,
    RestoreKind,
    SegmentHeader,
    append_to_chain,
    compute_chain_limit,
    count_merged,
    is_base_due,
    restore_plan,
)

BASE, FIRST, SECOND, OTHER = (SegmentRef(name, 0, 1) for name in ("base", "first", "second", "other"))
HEADER = SegmentHeader(1, "topic-id", 0, 10, (), "hash", StateTypeSchema("int"), 1_000, 0, 5)


@pytest.mark.parametrize(
    ("held", "kind", "segments"),
    [
        (SECOND, RestoreKind.CURRENT, ()),
        (FIRST, RestoreKind.ROLLED_FORWARD, (SECOND,)),
        (BASE, RestoreKind.ROLLED_FORWARD, (FIRST, SECOND)),
        (OTHER, RestoreKind.REBUILT, (BASE, FIRST, SECOND)),
        (None, RestoreKind.REBUILT, (BASE, FIRST, SECOND)),
    ],
)
def test_only_what_is_missing_is_read(
    held: SegmentRef | None, kind: RestoreKind, segments: tuple[SegmentRef, ...]
) -> None:
    plan = restore_plan(held, (BASE, FIRST, SECOND), {})
    assert (plan.kind, plan.segments) == (kind, segments)


@pytest.mark.parametrize(
    ("so_far", "size", "due"), [(0, 999, False), (0, 1_000, True), (600, 399, False), (600, 400, True)]
)
def test_a_base_is_due_when_deltas_would_outgrow_it(so_far: int, size: int, due: bool) -> None:  # noqa: FBT001
    assert is_base_due(msgspec.structs.replace(HEADER, delta_bytes=so_far), size) == due


def test_a_delta_carries_the_whole_chain_and_the_sum_of_its_bytes() -> None:
    first = append_to_chain(msgspec.structs.replace(HEADER, base_bytes=70), HEADER, BASE)
    second = append_to_chain(msgspec.structs.replace(HEADER, base_bytes=30), first, FIRST)
    assert (second.chain, second.base_bytes, second.delta_bytes) == ((BASE, FIRST), 1_000, 100)
    assert HEADER.is_base
    assert not second.is_base


def test_a_store_with_a_merged_segment_reads_from_the_merged_one_on() -> None:
    plan = restore_plan(OTHER, (BASE, FIRST, SECOND), {FIRST: (OTHER,)})
    assert (plan.kind, plan.segments) == (RestoreKind.ROLLED_FORWARD, (FIRST, SECOND))


@given(batches=st.integers(1, 3_000))
def test_a_chain_stays_below_its_limit_and_its_levels_fall(batches: int) -> None:
    limit = compute_chain_limit("topic-id", 0)
    levels: tuple[int, ...] = ()
    level = 0
    for _ in range(batches):
        header = msgspec.structs.replace(HEADER, chain=(BASE,) * len(levels), levels=levels, level=level)
        count = count_merged(header)
        assert count == 0 or count >= limit // 2
        whole = (*levels, level)
        kept = len(whole) - count
        levels = whole[:kept]
        level = 1 + max(whole[kept:]) if count else 0
        assert len(levels) < limit <= CHAIN_MAX
        assert list(levels[1:]) == sorted(levels[1:], reverse=True)
    assert level <= 4


def test_partitions_reach_their_limits_in_different_batches() -> None:
    limits = [compute_chain_limit("topic-id", partition) for partition in range(1_000)]
    assert min(limits) > CHAIN_MAX // 2
    assert max(limits.count(limit) for limit in limits) < 100
