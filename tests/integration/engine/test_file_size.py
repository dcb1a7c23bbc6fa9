"""The trigger by size: files of the wanted size at a steady rate, bounded waits at a low rate."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as some

from lockstep import FileSize
from lockstep.declare.options import FILE_BATCHES_MAX
from lockstep.engine.driver.cluster_view import ClusterMonitor
from lockstep.engine.driver.commit_order import CommitOrder
from lockstep.engine.driver.idle_partitions import BacklogClock
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.planner import FileGoal, PlanInput, plan_batch
from lockstep.engine.executor.row_buffer import RowSpace
from lockstep.engine.protocol import BatchIdentity, LearnedRates
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Position, TopicIdPartition
from lockstep.operations.commit_now import commit_now
from lockstep.operations.plan_frame import Refused
from tests.support.feed import folded, session, session_in, snapshot, update

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lockstep.engine.driver.planner import BatchPlan, Bins
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.kafka.admin import ClusterView
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

WAIT_SECONDS_MAX = 120.0
FOR_EVER = float("inf")


def given_goal(
    lags: dict[TopicIdPartition, int], *, target: int, left: float = FOR_EVER, each: float | None = 10.0, cores: int = 4
) -> PlanInput:
    """Return an input of partitions with `lags` messages waiting, each of `each` bytes of Parquet."""
    return PlanInput(
        batch=BatchIdentity(generation=1, epoch=1, number=1, commit_hour="2026-01-01T00"),
        positions=tuple(Position(topic=key[0], topic_id=key[0], partition=key[1], next_offset=5) for key in lags),
        ends={key: PartitionOffsets(start=0, stable_end=5 + lag, high_watermark=5 + lag) for key, lag in lags.items()},
        messages_max=200_000,
        cores=cores,
        learned=LearnedRates(bytes_a_message=dict.fromkeys(lags, each) if each is not None else {}),
        goal=FileGoal(target_bytes=target, left_seconds=left),
    )


def messages(bins: Bins) -> list[int]:
    return [sum(item.messages for item in group) for group in bins]


def test_messages_wait_until_they_fill_a_file() -> None:
    waiting = plan_batch(given_goal({TopicIdPartition("a", 0): 5_000, TopicIdPartition("b", 0): 4_999}, target=100_000))
    assert (waiting.bins, waiting.backlog) == ((), 0)
    full = plan_batch(given_goal({TopicIdPartition("a", 0): 5_000, TopicIdPartition("b", 0): 5_100}, target=100_000))
    assert messages(full.bins) == [9_999]


def test_a_message_that_has_waited_enough_begins_a_batch_of_all() -> None:
    plan = plan_batch(given_goal({TopicIdPartition("a", 0): 3, TopicIdPartition("b", 0): 40}, target=100_000, left=0.0))
    assert (messages(plan.bins), plan.backlog) == ([43], 0)


def test_time_that_the_batch_itself_takes_is_kept_free() -> None:
    """1,000 messages take 5 microseconds each: the batch starts 4 ms before the limit, not 6 ms before."""
    assert plan_batch(given_goal({TopicIdPartition("a", 0): 1_000}, target=10**6, left=0.006)).bins == ()
    assert messages(plan_batch(given_goal({TopicIdPartition("a", 0): 1_000}, target=10**6, left=0.004)).bins) == [1_000]


def test_a_backlog_fills_a_file_on_each_core() -> None:
    plan = plan_batch(given_goal({TopicIdPartition(name, 0): 10_000 for name in "abcdef"}, target=100_000, cores=3))
    assert messages(plan.bins) == [10_000, 10_000, 10_000]
    assert plan.backlog == 30_000


def test_one_large_partition_makes_one_file_not_uneven_ones() -> None:
    plan = plan_batch(
        given_goal({TopicIdPartition("large", 0): 30_000, TopicIdPartition("small", 0): 1_000}, target=100_000, cores=3)
    )
    assert messages(plan.bins) == [9_677 + 500]  # in proportion, and the floor of a small partition


def test_the_first_batch_of_a_run_learns_from_what_is_there() -> None:
    plan = plan_batch(given_goal({TopicIdPartition("a", 0): 900_000}, target=10**6, left=-FOR_EVER, each=None))
    assert messages(plan.bins) == [200_000]


@pytest.mark.parametrize("each", [0.0, 1.0])
def test_messages_that_add_little_to_a_file_make_no_endless_batch(each: float) -> None:
    """If a fold rarely returns rows, the batch starts before the file is full and stays within its bound."""
    most = FILE_BATCHES_MAX * 200_000
    assert plan_batch(given_goal({TopicIdPartition("a", 0): most - 1}, target=10**9, each=each)).bins == ()
    full = plan_batch(
        given_goal({TopicIdPartition("a", 0): 3 * most, TopicIdPartition("b", 0): 2 * most}, target=10**9, each=each)
    )
    assert (sum(messages(full.bins)), full.backlog) == (most, 4 * most)
    due = plan_batch(given_goal({TopicIdPartition("a", 0): 3 * most}, target=10**9, each=each, left=0.0))
    assert messages(due.bins) == [most]


def test_a_file_of_tiny_messages_has_its_bound_too() -> None:
    most = FILE_BATCHES_MAX * 200_000
    plan = plan_batch(given_goal({TopicIdPartition("a", 0): 10 * most}, target=64_000, each=0.001))
    assert messages(plan.bins) == [most]


@given(
    some.dictionaries(some.tuples(some.text("ab", min_size=1), some.integers(0, 3)), some.integers(0, 10**6)),
    some.integers(64_000, 10**8),
    some.floats(0.1, 500),
    some.integers(1, 8),
)
def test_no_file_is_planned_larger_than_its_target_and_the_room_for_error(
    lags: dict[TopicIdPartition, int], target: int, each: float, cores: int
) -> None:
    plan = plan_batch(given_goal(lags, target=target, each=each, cores=cores))
    floors = each * len(lags) * (1 + target / each / 10 / max(1, len(lags)))
    assert all(count * each <= target * 1.15 + floors for count in messages(plan.bins))
    assert sum(messages(plan.bins)) <= sum(lags.values())


def test_what_a_batch_leaves_has_waited_less_than_what_it_took() -> None:
    waits = BacklogClock().note_poll(100, now=10.0)
    assert waits.left_seconds(60, now=10.0) == -FOR_EVER  # unknown before the run's first batch
    assert waits.note_batch(0.5, now=10.0).left_seconds(60, now=10.0) == -FOR_EVER  # also for messages that it leaves
    waits = waits.note_batch(1.0, now=10.0).note_poll(0, now=20.0)
    assert waits.left_seconds(60, now=20.0) == FOR_EVER
    waits = waits.note_poll(5, now=30.0).note_poll(9, now=40.0)
    assert waits.left_seconds(60, now=40.0) == 50
    assert waits.note_batch(0.75, now=70.0).left_seconds(60, now=70.0) == 50


def test_rows_that_moved_to_the_disk_read_the_same(tmp_path: Path) -> None:
    batches: list[list[pa.RecordBatch]] = [[], []]
    space = RowSpace(tmp_path / "scratch", memory_bytes=10_000, rows_bytes=10**9)
    for number in range(40):
        held = batches[number % 2]
        held.append(pa.RecordBatch.from_pylist([{"n": number, "text": f"row {number}"}] * 100))
        space.note(held, held[-1].nbytes)
    assert [[batch["n"][0].as_py() for batch in held] for held in batches] == [
        list(range(0, 40, 2)),
        list(range(1, 40, 2)),
    ]
    assert batches[1][-1]["text"].to_pylist() == ["row 39"] * 100
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_small_bound_of_memory_changes_no_row(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=2)
    held = {partition: grown(random.Random(partition), 1_500) for partition in range(2)}  # noqa: S311  # no secret
    for partition, values in held.items():
        feed.send(topic, values, partition=partition)
    assert runs.tuned(spill_bytes=20_000).run() is RunOutcome.ENDED
    for partition, values in held.items():
        assert folded([(n, session_in(partition), value) for n, value in enumerate(values)]) == runs.rows(
            topic, partition
        )


def grown(chance: random.Random, updates: int, first: int = 1) -> list[bytes]:
    """Return a session whose values hardly compress."""
    numbers = range(first + 1, first + updates + 1)
    return [
        snapshot(first, a=1, b=2),
        *(update(number, a=chance.randrange(10**9), b=-chance.randrange(10**9)) for number in numbers),
    ]


def sizes(runs: LocalRuns) -> list[int]:
    """Return the sizes of the data files in commit order."""
    actions = pa.table(DeltaTable(runs.folders.table).get_add_actions(flatten=True))
    rows = sorted(actions.to_pylist(), key=lambda row: row["min._offset"])
    return [row["size_bytes"] for row in rows]


def test_files_of_a_steady_stream_have_the_wanted_size(feed: Feed, runs: LocalRuns) -> None:
    """Sizes differ by at most a fifth, except the first file, which teaches sizes, and the last of a bounded run."""
    topic = feed.create("values")
    chance = random.Random(7)  # noqa: S311  # no secret
    stop = threading.Event()
    values = grown(chance, 20_000)
    feed.send(topic, values[:4_000])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runs.run, trigger=FileSize("64 kB", at_most=timedelta(hours=1)), stop=stop)
        wait_for(lambda: len(runs.reports) == 1)
        for start in range(4_000, len(values), 1_000):
            feed.send(topic, values[start : start + 1_000])
        wait_for(lambda: len(sizes(runs)) >= 4)
        stop.set()
        assert running.result(WAIT_SECONDS_MAX) is RunOutcome.STOPPED
    assert runs.run() is RunOutcome.ENDED
    found = sizes(runs)
    assert len(found) >= 5
    assert all(0.8 <= size / 64_000 <= 1.2 for size in found[1:-1]), found
    assert folded([(n, "s", value) for n, value in enumerate(values)]) == runs.rows(topic)


def test_a_lone_message_waits_for_company_but_not_for_ever(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll finds it without a commit; later it is committed in a file that is far from full."""
    topic = feed.create("values")
    stop = threading.Event()
    looks = list[float]()
    begins = list[float]()
    right = ClusterMonitor.refresh_for_plan

    def noting(watch: ClusterMonitor) -> ClusterView:
        view = right(watch)
        looks.append(time.monotonic())
        return view

    def noting_begin(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            begins.append(time.monotonic())
            return runner(plan)

        return run

    runs = runs.tuned(idle_seconds=0.1)
    monkeypatch.setattr(ClusterMonitor, "refresh_for_plan", noting)
    feed.send(topic, grown(random.Random(1), 20))  # noqa: S311  # no secret
    trigger = FileSize("1 MB", at_most=timedelta(seconds=2))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runs.run, trigger=trigger, stop=stop, around=noting_begin)
        wait_for(lambda: len(runs.reports) == 1)
        before = len(looks)
        wait_for(lambda: len(looks) >= before + 2)  # nothing waits any more
        sent = time.monotonic()
        feed.send(topic, [update(22, a=1)])
        wait_for(lambda: len(runs.reports) == 2)
        stop.set()
        running.result(WAIT_SECONDS_MAX)
    assert [report.counts.messages for report in runs.reports] == [21, 1]
    assert begins[1] - sent >= 1.5  # at most two seconds, less one poll and the expected time of the batch


def test_waiting_messages_are_committed_when_an_operator_asks_and_later_ones_wait_again(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the live writer of a stream that waits for files can be asked."""
    polls = list[None]()
    poll = CommitOrder.poll
    monkeypatch.setattr(CommitOrder, "poll", lambda order: polls.append(poll(order)))
    runs.run()
    with pytest.raises(Refused, match=r"its trigger is Every\(seconds=5.0\): its batches do not wait"):
        commit_now(runs.handle, who="ann")
    topic = feed.create("values")
    stop = threading.Event()
    trigger = FileSize("1 MB", at_most=timedelta(hours=1))
    runs = runs.of(dataclasses.replace(runs.stream, trigger=trigger)).tuned(idle_seconds=0.1)
    with pytest.raises(Refused, match="no writer is alive"):
        commit_now(runs.handle, who="ann")
    values = session(5)
    feed.send(topic, values[:2])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runs.run, trigger=trigger, stop=stop)
        wait_for(lambda: len(runs.reports) == 1)  # the backlog of the start
        feed.send(topic, values[2:5])
        done = commit_now(runs.handle, who="ann")
        assert (done.messages, len(runs.rows(topic))) == (3, len(folded_rows(values[:5])))
        assert commit_now(runs.handle, who="ann").messages == 0  # nothing waits
        feed.send(topic, values[5:])
        before = len(polls)
        wait_for(lambda: len(polls) >= before + 5)
        stop.set()
        assert running.result(WAIT_SECONDS_MAX) is RunOutcome.STOPPED
    assert [report.counts.messages for report in runs.reports] == [2, 3]
    assert runs.run() is RunOutcome.ENDED
    assert folded_rows(values) == runs.rows(topic)


def folded_rows(values: list[bytes]) -> list[tuple[object, ...]]:
    return folded([(offset, "s", value) for offset, value in enumerate(values)])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
