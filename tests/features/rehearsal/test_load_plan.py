"""Plan and judgement of a load test: rates, stages, limits, and the statement about the highest rate."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.features.rehearsal.load_plan import (
    STAGE_BYTES_MAX,
    STAGE_MESSAGES_MIN,
    Laps,
    Limit,
    Load,
    SamplePart,
    find_busiest,
    find_limit,
    find_sustainable,
    parse_rates,
    plan_stages,
    share_messages,
)
from lockstep.model.position import TopicNamePartition
from lockstep.operations.plan_frame import Refused

PARTS = (SamplePart("a", 0, 0.75, 1_000, 100_000), SamplePart("b", 1, 0.25, 400, 80_000))
KEPT = Load(
    wanted_per_second=1_000.0,
    sent_per_second=1_000.0,
    committed_per_second=990.0,
    is_proven=True,
    producer_cores=0.1,
    driver_cores=0.2,
    task_cores=0.5,
    task_slots=2,
    machine_share=0.5,
    commit_share=0.1,
    hottest_share=0.3,
    full_batches_share=0.0,
)
LATE = msgspec.structs.replace(KEPT, committed_per_second=600.0)
SLOW = msgspec.structs.replace(KEPT, sent_per_second=700.0, committed_per_second=700.0)


def test_rates_are_multiples_or_messages_a_second() -> None:
    rates = parse_rates("books", "1x, 2.5x,500/s")
    assert [(rate.text, rate.times, rate.per_second) for rate in rates] == [
        ("1x", 1.0, None),
        ("2.5x", 2.5, None),
        ("500/s", None, 500.0),
    ]


@pytest.mark.parametrize("text", ["", "10", "0x", "-1x", "x", "1x;2x", "1e3x"])
def test_what_is_no_rate_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(Refused, match="is not a rate") as refused:
        parse_rates("books", text)
    assert "500/s" in refused.value.next_step


def test_the_present_load_is_that_of_the_busiest_slice_by_partition() -> None:
    present = find_busiest(
        {
            TopicNamePartition("a", 0): (60, 600, 0),
            TopicNamePartition("b", 1): (0, 120, 60),
            TopicNamePartition("c", 2): (0, 0, 60),
        },
        60.0,
    )
    assert (present.per_second, present.seconds) == (12.0, 180.0)
    assert present.mean_per_second == pytest.approx(5.0)
    assert list(present.partitions.items()) == [(TopicNamePartition("a", 0), 10.0), (TopicNamePartition("b", 1), 2.0)]


def test_topics_without_new_messages_have_no_load_to_multiply() -> None:
    present = find_busiest({TopicNamePartition("a", 0): (0, 0)}, 60.0)
    assert (present.per_second, present.partitions) == (0.0, {})
    with pytest.raises(Refused, match="no new message for 30 minutes") as refused:
        plan_stages("books", parse_rates("books", "10x"), present.per_second, PARTS, Laps.NEW_KEYS, 60.0)
    assert "/s" in refused.value.next_step


def test_stages_come_in_the_order_of_their_rates_and_count_messages_and_bytes() -> None:
    stages = plan_stages("books", parse_rates("books", "10x,40/s,1x"), 100.0, PARTS, Laps.NEW_KEYS, 60.0)
    assert [(stage.label, stage.messages) for stage in stages] == [("40/s", 2_400), ("1x", 6_000), ("10x", 60_000)]
    assert stages[1].size == 4_500 * 100 + 1_500 * 200
    assert [stage.warm_seconds for stage in stages] == [10.0] * 3


def test_a_sample_that_is_sent_once_ends_the_stage_with_its_first_partition() -> None:
    (stage,) = plan_stages("books", parse_rates("books", "80/s"), 0.0, PARTS, Laps.ONCE, 60.0)
    assert stage.seconds == pytest.approx(1_000 / 60)
    assert stage.messages == pytest.approx(1_333, abs=1)
    with pytest.raises(Refused, match=r"the sample lasts 1\.3 s"):
        plan_stages("books", parse_rates("books", "1000/s"), 0.0, PARTS, Laps.ONCE, 60.0)


def test_too_few_minutes_are_refused_by_what_was_asked_for() -> None:
    """The refusal names the minutes, not the sample or a class that accepts it twice."""
    with pytest.raises(Refused, match=r": 6 s at a rate have too few batches to judge it") as refused:
        plan_stages("books", parse_rates("books", "80/s"), 0.0, PARTS, Laps.NEW_KEYS, 6.0)
    assert refused.value.next_step == "--minutes 0.2 or more"
    plan_stages("books", parse_rates("books", "80/s"), 0.0, PARTS, Laps.NEW_KEYS, 60 * 0.2)


def test_a_stage_of_too_many_bytes_is_refused_before_it_begins() -> None:
    per_second = STAGE_BYTES_MAX // 60 // 120
    with pytest.raises(Refused, match=r"more than 2 GB") as refused:
        plan_stages("books", parse_rates("books", f"{per_second}/s"), 0.0, PARTS, Laps.NEW_KEYS, 60.0)
    assert "--minutes" in refused.value.next_step


def test_messages_are_divided_by_share_and_none_is_lost() -> None:
    assert share_messages(4, [0.5, 0.25, 0.25]) == (2, 1, 1)
    assert share_messages(60, [1 / 60] * 60) == (1,) * 60
    assert sum(share_messages(160, [1 / 62] * 62)) == 160
    assert set(share_messages(160, [1 / 62] * 62)) == {2, 3}


def test_a_stage_sends_all_of_its_rate_however_many_partitions_share_it() -> None:
    parts = [SamplePart("wide", number, 1 / 60, 10, 1_000) for number in range(60)]
    (stage,) = plan_stages("books", parse_rates("books", "20/s"), 0.0, parts, Laps.NEW_KEYS, 8.0)
    assert (stage.messages, stage.size) == (160, 16_000)


def test_a_stage_of_too_few_messages_is_refused() -> None:
    few = f"{STAGE_MESSAGES_MIN - 1} messages, fewer than {STAGE_MESSAGES_MIN}"
    rate = parse_rates("books", f"{(STAGE_MESSAGES_MIN - 1) / 10}/s")
    with pytest.raises(Refused, match=few) as refused:
        plan_stages("books", rate, 0.0, PARTS, Laps.NEW_KEYS, 10.0)
    assert "--minutes" in refused.value.next_step


@pytest.mark.parametrize(
    ("load", "changes", "limit"),
    [
        (KEPT, {}, Limit.NONE),
        (KEPT, {"is_proven": False}, Limit.HALT),
        (SLOW, {"producer_cores": 0.95}, Limit.PRODUCER),
        (SLOW, {}, Limit.KAFKA_WRITES),
        (SLOW, {"machine_share": 0.99}, Limit.MACHINE),
        (LATE, {"hottest_share": 0.9, "task_cores": 1.0}, Limit.ONE_PARTITION),
        (LATE, {"hottest_share": 0.9, "task_cores": 1.0, "task_slots": 1}, Limit.TASKS),
        (LATE, {"full_batches_share": 0.9, "machine_share": 0.99}, Limit.BATCH_SIZE),
        (LATE, {"machine_share": 0.99, "task_cores": 1.9}, Limit.MACHINE),
        (LATE, {"task_cores": 1.9}, Limit.TASKS),
        (LATE, {"commit_share": 0.6}, Limit.COMMIT),
        (LATE, {"driver_cores": 0.9}, Limit.DRIVER),
        (LATE, {}, Limit.WAITING),
    ],
)
def test_each_limit_is_found_by_its_figures(load: Load, changes: dict[str, float], limit: Limit) -> None:
    assert find_limit(msgspec.structs.replace(load, **changes)) is limit


def test_the_highest_rate_tried_is_no_limit() -> None:
    found = find_sustainable([("1x", KEPT), ("2x", msgspec.structs.replace(KEPT, sent_per_second=1_010.0))], 505.0)
    assert (found.per_second, found.is_bound, found.limit) == (1_010.0, False, Limit.NONE)
    assert found.sentence.startswith("1,010 messages/s (2.0x the present load) is sustained")


def test_a_stage_that_failed_leaves_the_limit_open() -> None:
    found = find_sustainable([("1x", KEPT)], 0.0, failed="10x")
    assert (found.per_second, found.is_bound, found.limit) == (1_000.0, False, Limit.NONE)
    assert found.sentence == (
        "1,000 messages/s is sustained, the highest rate proven; the stage at 10x failed, so that a limit is not known"
    )


def test_above_a_rate_that_was_too_high_stands_what_was_committed_there() -> None:
    fast = msgspec.structs.replace(
        LATE, wanted_per_second=10_000.0, sent_per_second=10_000.0, committed_per_second=4_000.0
    )
    found = find_sustainable([("1x", KEPT), ("10x", fast)], 0.0)
    assert (found.per_second, found.is_bound, found.limit) == (4_000.0, True, Limit.WAITING)
    assert "at 10x the limit is no CPU" in found.sentence


def test_what_the_test_itself_could_not_send_says_nothing_about_the_stream() -> None:
    found = find_sustainable([("1x", KEPT), ("10x", SLOW)], 0.0)
    assert (found.per_second, found.limit) == (1_000.0, Limit.KAFKA_WRITES)
    assert "highest rate proven" in found.sentence
    assert find_sustainable([("1x", SLOW)], 0.0).per_second == 0.0
