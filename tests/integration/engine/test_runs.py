"""Whole runs without Spark: any split into batches has the same rows; one writer at a time; the end of a run."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, NoReturn

import msgspec
import pytest

from lockstep import Every, Limits
from lockstep.control.handover import RequestWatch
from lockstep.engine.driver import loop
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.engine.driver.startup import WriterStartup
from lockstep.errors import EnvironmentProblem, Fenced
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.kafka.admin import ClusterAdmin
from lockstep.table.side_tables import SideLogs
from tests.support.feed import folded, session, update
from tests.support.plain_reader import heads, named_files, named_ledger_files, read_table, read_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.kafka.admin import ClusterView
    from lockstep.table.head import Head
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

    Around = Callable[[Runner], Runner]

WAIT_SECONDS_MAX = 120.0


def sent(feed: Feed, topic: str, partition: int, updates: int) -> list[tuple[int, str, bytes]]:
    """Send two sessions to a partition in sequence and return the partition's messages."""
    first = f"a{partition}"
    second = f"b{partition}"
    feed.send(topic, session(updates), key=first, partition=partition)
    feed.send(topic, session(updates, first=40), key=second, partition=partition)
    values = [(first, value) for value in session(updates)] + [(second, value) for value in session(updates, first=40)]
    return [(offset, key, value) for offset, (key, value) in enumerate(values)]


@pytest.mark.parametrize(("batch_messages", "cores"), [(7, 2), (100, 1), (1_000_000, 3)])
def test_any_split_into_batches_and_bins_gives_the_rows_of_the_plain_fold(
    feed: Feed, runs: LocalRuns, batch_messages: int, cores: int
) -> None:
    topic = feed.create("values", partitions=3)
    held = {partition: sent(feed, topic, partition, updates=20 * (partition + 1)) for partition in range(3)}
    runs = runs.with_limits(Limits(batch_messages=batch_messages))
    assert runs.run(cores=cores) is RunOutcome.ENDED
    for partition, messages in held.items():
        assert folded(messages) == runs.rows(topic, partition)
        assert read_until(runs.folders.ledger, topic, partition) == len(messages)
    total = sum(len(messages) for messages in held.values())
    assert sum(report.counts.messages for report in runs.reports) == total
    assert len(runs.reports) >= total // batch_messages


def test_a_run_with_nothing_to_read_ends_at_once_and_commits_no_rows(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.run()
    files = named_files(runs.folders.table)
    batch = heads(runs.folders.table)[-1]["batch"]
    assert runs.run() is RunOutcome.ENDED
    assert (named_files(runs.folders.table), heads(runs.folders.table)[-1]["batch"]) == (files, batch)


def test_a_bounded_run_whose_last_side_table_commit_fails_does_not_end_well(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(logs: SideLogs, head: Head) -> bool:
        if head.batch:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return catch_up(logs, head)

    catch_up = SideLogs.catch_up
    topic = feed.create("values")
    feed.send(topic, session(2))
    with monkeypatch.context() as patched:
        patched.setattr(SideLogs, "catch_up", full_disk)
        with pytest.raises(OSError, match="No space left"):
            runs.run()
    assert runs.run() is RunOutcome.ENDED
    assert read_until(runs.folders.ledger, topic) == 3


def test_a_new_empty_topic_counts_as_subscribed(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    assert runs.run() is RunOutcome.ENDED
    assert [row["topic"] for row in read_table(runs.folders.ledger).to_pylist()] == [topic]


def test_a_living_run_hands_over_to_a_new_one(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(3))
    with ThreadPoolExecutor(1) as pool:
        worked = threading.Event()
        first = pool.submit(runs.run, trigger=Every(seconds=0.1), around=telling(worked))
        assert worked.wait(WAIT_SECONDS_MAX)
        feed.send(topic, [update(5, a=1)])
        assert runs.run() is RunOutcome.ENDED
        assert first.result(WAIT_SECONDS_MAX) is RunOutcome.HANDED_OVER
    assert_one_copy(runs, topic, [*session(3), update(5, a=1)])


def test_a_run_that_answers_nobody_is_fenced_and_what_it_wrote_stays_invisible(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(3))
    impatient = runs.with_limits(Limits(handover_timeout_seconds=0.5))
    with ThreadPoolExecutor(1) as pool:
        written = threading.Event()
        go_on = threading.Event()
        first = pool.submit(runs.run, trigger=Every(seconds=0.1), around=holding(written, go_on))
        try:
            assert written.wait(WAIT_SECONDS_MAX)
            assert impatient.run() is RunOutcome.ENDED
        finally:
            go_on.set()
        assert first.result(WAIT_SECONDS_MAX) is RunOutcome.FENCED
    assert_one_copy(runs, topic, session(3))
    on_disk = list(runs.folders.table.glob("commit_hour=*/*.parquet"))
    assert len(on_disk) == len(named_files(runs.folders.table)) + 1


def test_a_run_whose_claim_another_run_overtakes_says_so(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def overtaken(*_: object, **__: object) -> NoReturn:
        raise Fenced(1, 2)

    def no_spark() -> NoReturn:
        raise AssertionError("it ends before its first job")

    monkeypatch.setattr("lockstep.engine.driver.run._warm_jobs", lambda *_: nullcontext())
    monkeypatch.setattr(WriterStartup, "claim", overtaken)
    feed.create("values")
    ended = run_stream(runs.stream, runs.settings, spark=no_spark, stop=threading.Event())
    assert ended is RunOutcome.FENCED
    assert "writer epoch 1 is fenced: epoch 2 holds the table" in caplog.text


def test_a_topic_created_again_between_runs_halts_the_stream_by_name(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(3))
    runs.run()
    rows = runs.rows(topic)
    feed.delete(topic)
    feed.create_again("values")
    feed.send(topic, session(30))
    with pytest.raises(IntegrityLost, match=f"topic re-created at {topic}/0 offset 4: expected topic id ") as lost:
        runs.run()
    assert lost.value.findings[0].topic_id != lost.value.findings[0].found
    assert runs.rows(topic) == rows
    assert heads(runs.folders.table)[-1]["desired"] == "halted"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that runs intend to wait for their next batch."""
    seconds = list[float]()
    wait = RequestWatch.wait

    def note(requests: RequestWatch, left: float) -> None:
        seconds.append(left)
        wait(requests, left)

    monkeypatch.setattr(RequestWatch, "wait", note)
    return seconds


@pytest.mark.parametrize("batch_messages", [3, 1_000])
def test_a_bounded_run_does_not_pause_after_a_batch(
    feed: Feed, runs: LocalRuns, batch_messages: int, pauses: list[float]
) -> None:
    feed.send(feed.create("values"), session(5))
    assert runs.with_limits(Limits(batch_messages=batch_messages)).run() is RunOutcome.ENDED
    assert pauses == []


def test_a_bounded_run_pauses_before_it_tries_a_failed_batch_again(
    feed: Feed, runs: LocalRuns, pauses: list[float]
) -> None:
    topic = feed.create("values")
    feed.send(topic, session(5))
    calls = iter(range(1_000))

    def failing_once(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            if next(calls) == 0:
                raise EnvironmentProblem("no space left", next_step="free some")
            return runner(plan)

        return run

    assert runs.run(around=failing_once) is RunOutcome.ENDED
    assert pauses
    assert_one_copy(runs, topic, session(5))


def test_a_failed_batch_does_not_wait_for_a_long_interval(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.2)
    topic = feed.create("values")
    stop = threading.Event()
    calls = iter(range(1_000))
    feed.send(topic, session(5))

    def failing_once(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            if next(calls) == 0:
                raise EnvironmentProblem("no space left", next_step="free some")
            stop.set()
            return runner(plan)

        return run

    too_late = threading.Timer(30, stop.set)
    too_late.start()
    assert runs.run(trigger=Every(seconds=3600), stop=stop, around=failing_once) is RunOutcome.STOPPED
    too_late.cancel()
    assert_one_copy(runs, topic, session(5))


def test_a_bounded_run_pauses_while_a_partition_has_no_leader(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    topic = feed.create("values")
    feed.send(topic, session(5))
    right = ClusterAdmin.view_offsets
    looks_without = iter(range(4))
    begun = threading.Event()

    def leaderless_after_the_first_batch(admin: ClusterAdmin, before: ClusterView) -> ClusterView:
        view = right(admin, before)
        gone = begun.is_set() and next(looks_without, None) is not None
        return msgspec.structs.replace(view, ends={}) if gone else view

    monkeypatch.setattr(ClusterAdmin, "view_offsets", leaderless_after_the_first_batch)
    two_batches = runs.with_limits(Limits(batch_messages=3))
    assert two_batches.run(around=telling(begun)) is RunOutcome.ENDED
    assert pauses
    assert_one_copy(runs, topic, session(5))


@pytest.mark.parametrize("is_known", [False, True], ids=["a new topic", "a known partition"])
def test_a_bounded_run_waits_for_a_partition_that_has_no_leader_at_its_start(
    feed: Feed,
    runs: LocalRuns,
    monkeypatch: pytest.MonkeyPatch,
    is_known: bool,  # noqa: FBT001
) -> None:
    topic = feed.create("values")
    sent = session(2)
    feed.send(topic, sent)
    if is_known:
        runs.run()
        feed.send(topic, more := [update(4, a=1)])
        sent = [*sent, *more]
    right = ClusterAdmin.view_offsets
    looks_without = iter(range(4))

    def leaderless_at_first(admin: ClusterAdmin, before: ClusterView) -> ClusterView:
        view = right(admin, before)
        return msgspec.structs.replace(view, ends={}) if next(looks_without, None) is not None else view

    monkeypatch.setattr(ClusterAdmin, "view_offsets", leaderless_at_first)
    assert runs.run() is RunOutcome.ENDED
    assert next(looks_without, None) is None
    assert_one_copy(runs, topic, sent)


def test_a_lost_hot_copy_changes_nothing(feed: Feed, runs: LocalRuns, tmp_path: Path) -> None:
    topic = feed.create("values")
    feed.send(topic, session(3))
    runs.run()
    (tmp_path / "local").rename(tmp_path / "gone")
    feed.send(topic, [update(5, a=1)])
    runs.run()
    assert_one_copy(runs, topic, [*session(3), update(5, a=1)])


def telling(worked: threading.Event) -> Around:
    """Set an event after the first batch is processed: the run is alive and has claimed the table."""

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            results = runner(plan)
            worked.set()
            return results

        return run

    return around


def holding(written: threading.Event, go_on: threading.Event) -> Around:
    """Hold a run between the writing of its files and its commit."""

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            results = runner(plan)
            written.set()
            assert go_on.wait(WAIT_SECONDS_MAX)
            return results

        return run

    return around


def assert_one_copy(runs: LocalRuns, topic: str, values: Sequence[bytes]) -> None:
    """Assert the plain fold's rows without copies, the ledger files of the commits, and rising epochs."""
    assert folded([(offset, "s", value) for offset, value in enumerate(values)]) == runs.rows(topic)
    assert read_until(runs.folders.ledger, topic) == len(values)
    assert named_ledger_files(runs.folders.table) == named_files(runs.folders.ledger)
    epochs = [head.get("epoch", 0) for head in heads(runs.folders.table)]
    assert epochs == sorted(epochs)


def test_one_odd_answer_of_a_broker_loses_nothing(feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stale metadata once shows a log start after the position: no message is skipped."""
    topic = feed.create("values")
    feed.send(topic, session(4))
    runs.run()
    feed.send(topic, [update(6, a=1)])
    right = ClusterAdmin.view
    looks = iter(range(1_000))

    def odd_at_first(admin: ClusterAdmin, names: Iterable[str]) -> ClusterView:
        view = right(admin, names)
        if next(looks) > 0:
            return view
        later = {key: msgspec.structs.replace(ends, start=ends.high_watermark) for key, ends in view.ends.items()}
        return msgspec.structs.replace(view, ends=later)

    monkeypatch.setattr(ClusterAdmin, "view", odd_at_first)
    assert runs.run() is RunOutcome.ENDED
    assert folded([(n, "s", value) for n, value in enumerate([*session(4), update(6, a=1)])]) == runs.rows(topic)
