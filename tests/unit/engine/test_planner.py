"""The planner, by properties: any positions and ends result in a batch that keeps every rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep.engine.driver.planner import (
    BEYOND_PARTITIONS_MAX,
    MOVE_FOR_SECONDS_RATIO,
    BatchPlan,
    PlanInput,
    choose_commit_hour,
    plan_batch,
)
from lockstep.engine.protocol import BatchIdentity, LearnedRates
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Position, TopicIdPartition

if TYPE_CHECKING:
    from random import Random


class Partition(msgspec.Struct, frozen=True):
    """One partition as a plan may find it; None for an unknown value."""

    next_offset: int
    lag: int | None
    open_transactions: int
    stop_after: int | None
    seconds_a_message: float | None
    bin_before: int | None


partitions = some.builds(
    Partition,
    next_offset=some.integers(0, 10**9),
    lag=some.one_of(some.none(), some.just(0), some.integers(1, 50), some.integers(1, 300_000)),
    open_transactions=some.integers(0, 20),
    stop_after=some.one_of(some.none(), some.integers(-10, 1_000)),
    seconds_a_message=some.one_of(some.none(), some.floats(1e-7, 1e-3)),
    bin_before=some.one_of(some.none(), some.integers(0, 9)),
)


BATCH = BatchIdentity(generation=1, epoch=2, number=3, commit_hour="2026-01-01T00", planned_at_us=4)


@some.composite
def inputs(draw: some.DrawFn) -> PlanInput:
    """Draw the input of a plan, with partitions that are lagging, idle, unavailable, bounded or seen before."""
    found = {
        TopicIdPartition(f"id{n % 4}", n // 4): each for n, each in enumerate(draw(some.lists(partitions, max_size=7)))
    }
    return PlanInput(
        batch=BATCH,
        positions=tuple(position(key, each.next_offset) for key, each in found.items()),
        ends={
            key: ends_at(each.next_offset, each.lag, each.open_transactions)
            for key, each in found.items()
            if each.lag is not None
        },
        stop_at={k: each.next_offset + each.stop_after for k, each in found.items() if each.stop_after is not None},
        messages_max=draw(some.integers(1, 400_000)),
        cores=draw(some.integers(1, 8)),
        learned=LearnedRates(
            seconds_a_message={k: e.seconds_a_message for k, e in found.items() if e.seconds_a_message is not None},
            bins_before={k: each.bin_before for k, each in found.items() if each.bin_before is not None},
        ),
    )


def position(key: TopicIdPartition, next_offset: int) -> Position:
    return Position(topic=f"t.{key[0]}", topic_id=key[0], partition=key[1], next_offset=next_offset)


def ends_at(offset: int, lag: int, open_transactions: int = 0) -> PartitionOffsets:
    return PartitionOffsets(start=0, stable_end=offset + lag, high_watermark=offset + lag + open_transactions)


def given_lags(lags: dict[TopicIdPartition, int], **changed: object) -> PlanInput:
    """Return an input of partitions at offset 1,000, with a number of waiting messages each."""
    plain = PlanInput(
        batch=BATCH,
        positions=tuple(position(key, 1_000) for key in lags),
        ends={key: ends_at(1_000, lag) for key, lag in lags.items()},
        messages_max=200_000,
        cores=4,
    )
    return msgspec.structs.replace(plain, **changed)


def planned(plan: BatchPlan) -> dict[TopicIdPartition, int]:
    """Return the number of messages of each partition in the plan."""
    return {item.position.key: item.messages for group in plan.bins for item in group}


def waiting(given: PlanInput) -> dict[TopicIdPartition, int]:
    """Return the number of readable messages of each partition, computed plainly."""
    found = {}
    for item in given.positions:
        if item.key in given.ends:
            end = min(given.ends[item.key].stable_end, given.stop_at.get(item.key, 10**12))
            found[item.key] = max(0, end - item.next_offset)
    return found


@given(inputs())
def test_no_range_passes_the_stable_end_or_where_the_run_is_to_stop(given: PlanInput) -> None:
    lag = waiting(given)
    for key, messages in planned(plan_batch(given)).items():
        assert 0 < messages <= lag[key]


def test_partitions_whose_cost_no_clock_has_seen_are_spread_over_the_cores() -> None:
    lags = {TopicIdPartition(name, 0): 30_000 for name in "abcd"}
    free = LearnedRates(seconds_a_message=dict.fromkeys(lags, 0.0))
    plan = plan_batch(given_lags(lags, learned=free))
    assert [len(group) for group in plan.bins] == [1, 1, 1, 1]


def test_a_partition_whose_log_begins_after_its_position_waits_for_the_audit() -> None:
    given = given_lags({TopicIdPartition("a", 0): 5, TopicIdPartition("b", 0): 5})
    later = msgspec.structs.replace(given.ends[TopicIdPartition("a", 0)], start=1_001)
    plan = plan_batch(msgspec.structs.replace(given, ends={**given.ends, TopicIdPartition("a", 0): later}))
    assert (planned(plan), plan.backlog) == ({TopicIdPartition("b", 0): 5}, 0)


def test_a_partition_that_rests_is_left_out_of_the_batch_and_of_its_backlog() -> None:
    lags = {TopicIdPartition("a", 0): 5, TopicIdPartition("b", 0): 7}
    plan = plan_batch(given_lags(lags, resting=frozenset({TopicIdPartition("a", 0)})))
    assert (planned(plan), plan.backlog, plan.unavailable) == ({TopicIdPartition("b", 0): 7}, 0, ())


@given(inputs())
def test_every_partition_is_in_at_most_one_range_from_its_position(given: PlanInput) -> None:
    ranges = [item for group in plan_batch(given).bins for item in group]
    assert len({item.position.key for item in ranges}) == len(ranges)
    assert {item.position for item in ranges} <= set(given.positions)


@given(inputs())
def test_every_lagging_partition_gets_its_floor(given: PlanInput) -> None:
    lag = {key: count for key, count in waiting(given).items() if count}
    plan = planned(plan_batch(given))
    assert plan.keys() == lag.keys()
    for key, messages in plan.items():
        assert messages >= min(lag[key], max(1, given.messages_max // (10 * len(lag))))


@given(inputs())
def test_a_batch_holds_at_most_its_messages_and_the_floors(given: PlanInput) -> None:
    plan = plan_batch(given)
    lagging = len(planned(plan))
    floors = max(lagging, given.messages_max // 10)
    assert plan.messages <= given.messages_max + floors
    if sum(waiting(given).values()) <= given.messages_max:
        assert plan.backlog == 0


@given(inputs())
def test_what_is_not_planned_is_the_backlog(given: PlanInput) -> None:
    plan = plan_batch(given)
    assert plan.messages + plan.backlog == sum(waiting(given).values())


@given(inputs())
def test_bins_are_as_many_as_cores_at_most_and_none_is_empty(given: PlanInput) -> None:
    plan = plan_batch(given)
    assert len(plan.bins) <= given.cores
    assert all(plan.bins)
    if plan.messages < given.tuning.small_batch_messages:
        assert len(plan.bins) <= 1


@given(inputs())
def test_the_ranges_of_a_bin_are_in_the_order_of_rows(given: PlanInput) -> None:
    for group in plan_batch(given).bins:
        keys = [item.position.key for item in group]
        assert keys == sorted(keys)


@given(inputs(), some.randoms())
def test_the_order_of_the_input_changes_nothing(given: PlanInput, random: Random) -> None:
    shuffled = list(given.positions)
    random.shuffle(shuffled)
    assert plan_batch(msgspec.structs.replace(given, positions=tuple(shuffled))) == plan_batch(given)


@given(inputs())
def test_partitions_that_cannot_be_read_are_named_and_left_out(given: PlanInput) -> None:
    plan = plan_batch(given)
    assert set(plan.unavailable) == {item.key for item in given.positions} - given.ends.keys()
    assert not set(plan.unavailable) & planned(plan).keys()


@given(inputs())
def test_the_identity_of_the_batch_is_passed_on(given: PlanInput) -> None:
    plan = plan_batch(given)
    assert plan.batch == BATCH


@given(inputs())
def test_the_same_load_again_stays_where_it_is(given: PlanInput) -> None:
    first = plan_batch(with_bins(given, {}))
    again = plan_batch(with_bins(given, bins_of(first)))
    assert again.bins == first.bins


@given(inputs())
def test_a_partition_moves_only_from_a_bin_that_would_take_too_long(given: PlanInput) -> None:
    plan = plan_batch(given)
    if plan.messages < given.tuning.small_batch_messages or len(plan.bins) < min(given.cores, len(planned(plan))):
        return  # one bin for all, or a bin stayed empty and is not numbered
    cost = {key: count * given.learned.seconds_a_message.get(key, 5e-6) for key, count in planned(plan).items()}
    load = [sum(cost[item.position.key] for item in group) for group in plan.bins]
    most = sum(load) / len(load) * (1 + MOVE_FOR_SECONDS_RATIO)
    for key, now in bins_of(plan).items():
        before = given.learned.bins_before.get(key, now)
        if before != now and before < len(load):
            assert load[before] + cost[key] > most * 0.999_999


def test_partitions_that_share_a_bin_are_spread_once_it_would_take_too_long() -> None:
    lags = {TopicIdPartition(name, 0): 30_000 for name in "abcd"}
    plan = plan_batch(with_bins(given_lags(lags), dict.fromkeys(lags, 0)))
    assert [len(group) for group in plan.bins] == [1, 1, 1, 1]


def test_a_partition_keeps_its_bin_where_another_would_do_as_well() -> None:
    """The executor of the bin has the partition's local store."""
    lags = {TopicIdPartition("a", 0): 30_000, TopicIdPartition("b", 0): 30_000}
    before = {TopicIdPartition("a", 0): 1, TopicIdPartition("b", 0): 0}
    assert bins_of(plan_batch(with_bins(given_lags(lags, cores=2), before))) == before


def with_bins(given: PlanInput, bins: dict[TopicIdPartition, int]) -> PlanInput:
    """Return the input as if the partitions had been in these bins before."""
    return msgspec.structs.replace(given, learned=msgspec.structs.replace(given.learned, bins_before=bins))


def bins_of(plan: BatchPlan) -> dict[TopicIdPartition, int]:
    return {item.position.key: number for number, group in enumerate(plan.bins) for item in group}


def beyond(lags: dict[TopicIdPartition, int], **changed: object) -> set[int]:
    """Return how far ranges of a plan may be read beyond their ends."""
    plan = plan_batch(given_lags(lags, **{"is_live": True, **changed}))
    return {item.beyond for group in plan.bins for item in group}


@given(inputs(), some.integers(1, 50_000))
def test_no_range_takes_more_than_the_most_of_a_partition_and_the_rest_is_backlog(given: PlanInput, most: int) -> None:
    whole = plan_batch(given)
    plan = plan_batch(msgspec.structs.replace(given, range_messages_max=most))
    shares = planned(whole)
    assert planned(plan) == {key: min(share, most) for key, share in shares.items()}
    assert plan.messages + plan.backlog == whole.messages + whole.backlog


def test_a_live_range_goes_on_by_the_most_of_a_partition_at_most() -> None:
    assert beyond({TopicIdPartition("a", 0): 100}, messages_max=1_000_000, range_messages_max=300) == {300}


def test_a_live_batch_has_room_for_what_comes_until_it_is_read() -> None:
    lags = {TopicIdPartition("a", 0): 100, TopicIdPartition("b", 0): 300}
    assert beyond(lags, messages_max=1_000) == {300}
    assert beyond(lags, messages_max=400) == {0}


def test_only_a_live_batch_without_a_backlog_goes_on_beyond_its_ends() -> None:
    lags = {TopicIdPartition("a", 0): 100, TopicIdPartition("b", 0): 300}
    assert beyond(lags, is_live=False) == {0}
    assert beyond(lags, messages_max=350) == {0}
    assert beyond({TopicIdPartition(f"id{number}", 0): 1 for number in range(BEYOND_PARTITIONS_MAX + 1)}) == {0}


def test_a_turn_of_partitions_that_waited_is_not_read_beyond_its_ends_while_others_wait() -> None:
    """Its few messages leave room, which is reserved for the partition of the next turn."""
    lags = {TopicIdPartition(f"t{number:03}", 0): 11 for number in range(999)} | {TopicIdPartition("z", 0): 95_000}
    given = given_lags(lags, messages_max=100_000, is_live=True)
    plan = plan_batch(msgspec.structs.replace(given, batch=msgspec.structs.replace(BATCH, number=0)))
    ranges = [item for group in plan.bins for item in group]
    assert (len(ranges), plan.messages) == (BEYOND_PARTITIONS_MAX, 11 * BEYOND_PARTITIONS_MAX)
    assert {item.beyond for item in ranges} == {0}


@given(inputs())
def test_a_live_batch_holds_at_most_its_messages(given: PlanInput) -> None:
    plan = plan_batch(msgspec.structs.replace(given, is_live=True))
    more = sum(item.beyond for group in plan.bins for item in group)
    assert more >= 0
    assert more == 0 or plan.messages + more <= given.messages_max


def test_a_small_topic_does_not_starve_behind_a_big_one() -> None:
    plan = planned(plan_batch(given_lags({TopicIdPartition("big", 0): 100_000_000, TopicIdPartition("small", 0): 3})))
    assert plan == {TopicIdPartition("big", 0): 199_999, TopicIdPartition("small", 0): 3}


def test_partitions_far_behind_take_turns_and_all_have_had_theirs_after_one_round() -> None:
    lags = {TopicIdPartition(f"t{n}", 0): 50_000 for n in range(1_000)}
    rounds = [
        planned(plan_batch(given_lags(lags, batch=msgspec.structs.replace(BATCH, number=number))))
        for number in range(7, 17)
    ]
    assert [set(plan.values()) for plan in rounds] == [{2_000}] * 10
    assert {key for plan in rounds for key in plan} == lags.keys()
    assert plan_batch(given_lags(lags)).backlog == 50_000_000 - 200_000


def test_a_small_topic_takes_part_in_every_turn_of_the_others() -> None:
    lags = {TopicIdPartition(f"t{n}", 0): 50_000 for n in range(1_000)} | {TopicIdPartition("small", 0): 5}
    assert all(
        planned(plan_batch(given_lags(lags, batch=msgspec.structs.replace(BATCH, number=n))))[
            TopicIdPartition("small", 0)
        ]
        == 5
        for n in range(20)
    )


def test_all_take_part_when_the_batch_holds_all() -> None:
    lags = {TopicIdPartition(f"t{n}", 0): 100 for n in range(1_000)}
    assert planned(plan_batch(given_lags(lags))) == lags


def test_shares_are_in_proportion_to_what_waits() -> None:
    plan = planned(plan_batch(given_lags({TopicIdPartition("a", 0): 3_000_000, TopicIdPartition("b", 0): 1_000_000})))
    assert plan == {TopicIdPartition("a", 0): 150_000, TopicIdPartition("b", 0): 50_000}


def test_a_small_batch_is_one_bin() -> None:
    small = plan_batch(given_lags({TopicIdPartition("a", 0): 9_999, TopicIdPartition("b", 0): 10_000}))
    assert [len(group) for group in small.bins] == [2]
    large = plan_batch(given_lags({TopicIdPartition("a", 0): 10_000, TopicIdPartition("b", 0): 10_000}))
    assert [len(group) for group in large.bins] == [1, 1]


@pytest.mark.parametrize(("seconds_a_message", "bins"), [(5e-6, 10), (50e-6, 100), (1e-3, 400), (0.0, 4)])
def test_bins_follow_the_work_of_a_batch_and_not_the_cores(seconds_a_message: float, bins: int) -> None:
    lags = {TopicIdPartition(f"t{number:03}", 0): 200 for number in range(500)}
    learned = LearnedRates(seconds_a_message=dict.fromkeys(lags, seconds_a_message))
    assert len(plan_batch(given_lags(lags, cores=400, learned=learned)).bins) == bins


def test_costly_partitions_are_spread_over_the_bins() -> None:
    lags = {
        TopicIdPartition("slow", 0): 40_000,
        TopicIdPartition("a", 0): 40_000,
        TopicIdPartition("b", 0): 40_000,
        TopicIdPartition("c", 0): 40_000,
    }
    plan = plan_batch(
        given_lags(lags, cores=2, learned=LearnedRates(seconds_a_message={TopicIdPartition("slow", 0): 15e-6}))
    )
    assert bins_of(plan) == {
        TopicIdPartition("slow", 0): 0,
        TopicIdPartition("a", 0): 1,
        TopicIdPartition("b", 0): 1,
        TopicIdPartition("c", 0): 1,
    }


def test_nothing_to_read_gives_no_bins() -> None:
    plan = plan_batch(given_lags({TopicIdPartition("a", 0): 0, TopicIdPartition("b", 1): 0}))
    assert (plan.bins, plan.backlog, plan.messages) == ((), 0, 0)


def test_no_partitions_give_no_bins() -> None:
    assert plan_batch(given_lags({})).bins == ()


def test_a_position_past_the_end_is_not_read() -> None:
    """The log was cut: the audit reports the cut, and the planner reads nothing."""
    cut = msgspec.structs.replace(
        given_lags({TopicIdPartition("a", 0): 5}), ends={TopicIdPartition("a", 0): ends_at(900, 0)}
    )
    assert plan_batch(cut).bins == ()


def test_open_transactions_are_not_read() -> None:
    ends = {TopicIdPartition("a", 0): PartitionOffsets(start=0, stable_end=1_002, high_watermark=1_050)}
    plan = plan_batch(msgspec.structs.replace(given_lags({TopicIdPartition("a", 0): 0}), ends=ends))
    assert (planned(plan), plan.backlog) == ({TopicIdPartition("a", 0): 2}, 0)


@pytest.mark.parametrize(
    ("clock", "head", "closed", "expected"),
    [
        ("2026-03-01T10", "", "", "2026-03-01T10"),
        ("2026-03-01T10", "2026-03-01T09", "", "2026-03-01T10"),
        ("2026-03-01T10", "2026-03-01T10", "2026-03-01T09", "2026-03-01T10"),
        ("2026-03-01T10", "2026-03-01T12", "", "2026-03-01T12"),  # a clock that went back
        ("2026-03-01T10", "2026-03-01T10", "2026-03-01T10", "2026-03-01T11"),  # the open hour was closed
        ("2026-03-01T10", "2026-03-01T08", "2026-03-01T10", "2026-03-01T11"),
        ("2026-03-01T10", "2026-03-01T11", "2026-03-01T10", "2026-03-01T11"),
        ("2026-03-01T13", "2026-03-01T11", "2026-03-01T10", "2026-03-01T13"),
        ("2026-02-28T23", "2026-02-28T23", "2026-02-28T23", "2026-03-01T00"),  # over the end of a month
        ("2026-12-31T23", "", "2026-12-31T23", "2027-01-01T00"),  # and of a year
    ],
)
def test_the_log_closes_hours_not_the_clock(clock: str, head: str, closed: str, expected: str) -> None:
    assert choose_commit_hour(clock, head, closed) == expected
