"""Desired states of a stream: a lasting stop, committed by the writer or by a claim, and a new start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from lockstep import Every, Kind
from lockstep.control.handover import (
    StopRequest,
    is_asked_to_hand_over,
    read_stop_request,
    request_stop,
    write_stop,
)
from lockstep.control.heartbeat import Heartbeat, run_heartbeat
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.startup import BY_HAND, Launch, NotWanted, StartCancelled, WriterStartup
from lockstep.errors import Fenced, KafkaError, LockstepError, StreamHeld
from lockstep.integrity.resume_options import IntegrityLost, StreamHalted, suggest_option
from lockstep.kafka.admin import ClusterAdmin
from lockstep.operations.foreground import run_in_foreground
from lockstep.operations.lifecycle import check_startable, refuse_bounded_run, set_running, stop_stream
from lockstep.operations.resume import resume_stream
from lockstep.operations.stream_table import NoTable
from lockstep.table.commit import OutputLog, Writer, commit_claim
from lockstep.table.head import Desired
from tests.support.feed import folded, session, update
from tests.support.installation import wait_until
from tests.support.kept_stream import keeping, message
from tests.support.offline_stream import CLUSTER, Offline
from tests.support.plain_reader import named_files

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

WAIT_SECONDS_MAX = 60.0
WHY = StopRequest("the disk is changed", "an operator")
AUTOMATIC = Launch(cause="a sensor", automatic=True)


@contextmanager
def living(runs: LocalRuns, around: Callable[[Runner], Runner]) -> Iterator[Future[RunOutcome]]:
    """Start a continuous run on a thread and stop it at the end."""
    ending = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(runs.run, trigger=Every(seconds=0.1), around=around, stop=ending)
        finally:
            ending.set()


def desired(runs: LocalRuns) -> Desired:
    return OutputLog(runs.folders.table).base().head.desired


def then(event: threading.Event) -> Callable[[Runner], Runner]:
    """Return a wrapper of runners that sets an event after a batch."""

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            results = runner(plan)
            event.set()
            return results

        return run

    return around


def test_a_living_writer_commits_the_stop_and_ends_at_its_batch_boundary(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(3))
    worked = threading.Event()
    with living(runs, then(worked)) as run:
        assert worked.wait(WAIT_SECONDS_MAX)
        stopped = stop_stream(runs.folders, WHY, patience_seconds=WAIT_SECONDS_MAX)
        assert run.result(WAIT_SECONDS_MAX) is RunOutcome.STOPPED_FOR_GOOD
    assert (stopped.desired, stopped.ended_by, stopped.batch) == ("stopped", "the writer", 1)
    head = OutputLog(runs.folders.table).base().head
    assert (head.desired, head.reason) == (Desired.STOPPED, "the disk is changed (an operator)")
    assert list(runs.folders.control.glob("stop-*")) == []
    assert runs.rows(topic) == folded([(n, "s", value) for n, value in enumerate(session(3))])


def test_a_writer_that_waits_for_kafka_ends_when_it_is_asked_to_stop(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.send(feed.create("values"), session(3))
    worked = threading.Event()
    refused = threading.Event()

    def refuse(*_: object) -> None:
        refused.set()
        raise KafkaError("Kafka did not answer", next_step="lockstep doctor")

    with living(runs, then(worked)) as run:
        wait_until(lambda: bool(runs.reports), "the first batch")
        for question in ("view", "view_offsets", "view_for_commit"):
            monkeypatch.setattr(ClusterAdmin, question, refuse)
        assert refused.wait(WAIT_SECONDS_MAX)
        stopped = stop_stream(runs.folders, WHY, patience_seconds=WAIT_SECONDS_MAX)
        assert run.result(WAIT_SECONDS_MAX) is RunOutcome.STOPPED_FOR_GOOD
    assert (stopped.desired, stopped.ended_by, stopped.batch) == ("stopped", "the writer", 1)


def test_without_a_writer_a_claim_stops_the_stream_and_bounded_runs_leave_it_stopped(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    feed.send(topic, session(1))
    runs.run()
    assert desired(runs) is Desired.BOUNDED
    stopped = stop_stream(runs.folders, WHY, patience_seconds=1)
    assert (stopped.desired, stopped.ended_by, stopped.epoch) == ("stopped", "a claim", 2)
    assert stop_stream(runs.folders, WHY, patience_seconds=1).ended_by == "none"

    feed.send(topic, [update(3, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert desired(runs) is Desired.STOPPED


def test_a_never_ending_run_makes_the_stream_running_and_neither_a_signal_nor_a_bounded_run_changes_that(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    feed.send(topic, session(3))
    runs.run()
    stop_stream(runs.folders, WHY, patience_seconds=1)
    worked = threading.Event()
    feed.send(topic, [update(5, a=1)])
    with living(runs, then(worked)):
        assert worked.wait(WAIT_SECONDS_MAX)
    head = OutputLog(runs.folders.table).base().head
    assert (head.desired, head.reason) == (Desired.RUNNING, "test")
    feed.send(topic, [update(6, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert desired(runs) is Desired.RUNNING


@pytest.mark.parametrize("never_ending", [False, True])
def test_a_run_that_a_sensor_asked_for_does_not_undo_a_stop_that_came_first(
    feed: Feed,
    runs: LocalRuns,
    never_ending: bool,  # noqa: FBT001
) -> None:
    feed.send(feed.create("values"), session(1))
    runs.run()
    stop_stream(runs.folders, WHY, patience_seconds=1)
    with pytest.raises(NotWanted, match="is stopped"):
        runs.run(trigger=Every(seconds=1) if never_ending else None, launch=AUTOMATIC)
    assert OutputLog(runs.folders.table).base().head.epoch == 2


def test_a_stop_between_the_look_of_an_automatic_run_and_its_claim_is_not_undone(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    runs.run()
    set_running(runs.folders, check_startable(runs.folders), "started by a test")
    startup = WriterStartup(runs.stream, runs.folders, runs.cluster_id(), launch=AUTOMATIC, never_ending=True)
    stop_stream(runs.folders, WHY, patience_seconds=1)
    with pytest.raises(NotWanted):
        startup.claim(cancelled=lambda: False)
    assert desired(runs) is Desired.STOPPED


def test_a_held_stream_refuses_every_run_until_it_is_released(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    runs.run()
    held = stop_stream(runs.folders, StopRequest("a new disk", "ann", Desired.HELD), patience_seconds=1)
    assert (held.desired, held.reason) == ("held", "a new disk (ann)")
    for trigger in (None, Every(seconds=1)):
        with pytest.raises(StreamHeld, match="a new disk"):
            runs.run(trigger=trigger)
    set_running(runs.folders, check_startable(runs.folders), "released by ann")
    assert runs.run() is RunOutcome.ENDED


def test_a_halted_stream_that_is_stopped_stays_stopped_when_it_is_resumed(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), [*session(1), b"garbage"])
    with pytest.raises(IntegrityLost):
        runs.run(trigger=Every(seconds=0.1))
    head = OutputLog(runs.folders.table).base().head
    assert (head.desired, head.resumes_as) == (Desired.HALTED, Desired.RUNNING)
    assert stop_stream(runs.folders, WHY, patience_seconds=1).desired == "halted"
    accepted = [suggest_option(finding) for finding in head.findings]
    assert resume_stream(runs.folders, why="a test", who="ann", accepted=accepted).desired is Desired.STOPPED


def test_a_writer_that_takes_longer_than_its_patience_is_fenced_and_nothing_of_its_batch_is_seen(
    feed: Feed, runs: LocalRuns
) -> None:
    feed.send(feed.create("values"), session(3))
    working = threading.Event()
    released = threading.Event()

    def slow(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            working.set()
            assert released.wait(WAIT_SECONDS_MAX)
            return runner(plan)

        return run

    with living(runs, slow) as run:
        assert working.wait(WAIT_SECONDS_MAX)
        stopped = stop_stream(runs.folders, WHY, patience_seconds=0.5)
        released.set()
        assert run.result(WAIT_SECONDS_MAX) is RunOutcome.FENCED
    assert (stopped.ended_by, stopped.batch, stopped.epoch) == ("a fence", 0, 2)
    assert (named_files(runs.folders.table), desired(runs)) == ([], Desired.STOPPED)


def test_a_request_to_a_writer_that_is_gone_stops_no_later_one(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    runs.run()
    request_stop(runs.folders.control, 1, WHY)
    assert runs.run() is RunOutcome.ENDED


def test_a_halted_stream_stays_halted_and_is_not_started(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), [*session(1), update(9, a=1)])
    with pytest.raises(IntegrityLost):
        runs.run()
    assert stop_stream(runs.folders, WHY, patience_seconds=1).desired == "halted"
    with pytest.raises(StreamHalted, match="--skip-session"):
        check_startable(runs.folders)


def test_a_stopped_stream_that_is_wanted_again_is_running_before_its_run_begins(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    runs.run()
    stop_stream(runs.folders, WHY, patience_seconds=1)
    found = check_startable(runs.folders)
    assert (found.desired, found.lives) == ("stopped", False)
    set_running(runs.folders, found, "started by a test")
    assert desired(runs) is Desired.RUNNING


def test_a_bounded_run_of_the_command_line_leaves_a_never_ending_one_alone(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    worked = threading.Event()
    with living(runs, then(worked)) as ended:
        assert worked.wait(60)
        with pytest.raises(LockstepError, match="a never-ending run writes adding") as refused:
            run_in_foreground(runs.stream, runs.settings, available_now=True, report=lambda _: None)
        assert "lockstep stop adding" in refused.value.next_step
        assert not ended.done()
        stopped = stop_stream(runs.folders, WHY, patience_seconds=30)
    assert stopped.ended_by == "the writer"
    refuse_bounded_run(runs.folders)


def test_a_bounded_run_is_not_refused_before_the_first_one_or_beside_a_bounded_one(feed: Feed, runs: LocalRuns) -> None:
    refuse_bounded_run(runs.folders)
    feed.send(feed.create("values"), session(1))
    seen = threading.Event()

    def look(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            refuse_bounded_run(runs.folders)
            seen.set()
            return runner(plan)

        return run

    runs.run(around=look)
    assert seen.is_set()


def test_what_never_ran_cannot_be_stopped_and_says_how_to_start(runs: LocalRuns) -> None:
    with pytest.raises(NoTable, match="lockstep run adding"):
        stop_stream(runs.folders, WHY, patience_seconds=1)
    assert check_startable(runs.folders).desired is None


HOLD = StopRequest("a new disk", "ann", Desired.HELD)


@pytest.fixture
def written(tmp_path: Path) -> Offline:
    """A stream without a broker, with one batch, started by hand under epoch 2."""
    stream = Offline(keeping(), tmp_path)
    stream.run({"kept.a": [("s", message(Kind.SNAPSHOT, 1, x=1))]})
    set_running(stream.folders, check_startable(stream.folders), "started by a test")
    return stream


def on_its_way(stream: Offline, *, never_ending: bool, launch: Launch = BY_HAND) -> WriterStartup:
    """Return a run that has read the table and whose Spark is starting."""
    return WriterStartup(stream.stream, stream.folders, CLUSTER, launch=launch, never_ending=never_ending)


def claimed(startup: WriterStartup) -> Desired:
    return startup.claim(cancelled=lambda: False).head.desired


def held_by(stream: Offline) -> tuple[int, Desired]:
    head = OutputLog(stream.folders.table).base().head
    return head.epoch, head.desired


@pytest.mark.parametrize("never_ending", [False, True])
@pytest.mark.parametrize("asked", [WHY, HOLD])
def test_a_stop_that_the_writer_commits_while_its_successor_warms_up_is_kept_by_the_successors_claim(
    written: Offline,
    asked: StopRequest,
    never_ending: bool,  # noqa: FBT001
) -> None:
    """The stop keeps the epoch: only the head's desired state shows it to the successor."""
    successor = on_its_way(written, never_ending=never_ending)
    write_stop(OutputLog(written.folders.table), Writer(epoch=2, generation=1), asked)
    with pytest.raises((NotWanted, StreamHeld), match=asked.reason):
        successor.claim(cancelled=lambda: False)
    assert held_by(written) == (2, asked.desired)


def test_a_stop_in_the_middle_of_a_handover_holds(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    worked = threading.Event()
    with living(runs, then(worked)) as writer:
        assert worked.wait(WAIT_SECONDS_MAX)
        successor = WriterStartup(runs.stream, runs.folders, runs.cluster_id(), never_ending=True)
        stopped = stop_stream(runs.folders, WHY, patience_seconds=WAIT_SECONDS_MAX)
        with pytest.raises(NotWanted, match="is stopped"):
            successor.claim(cancelled=lambda: False)
        assert writer.result(WAIT_SECONDS_MAX) is RunOutcome.STOPPED_FOR_GOOD
    assert (stopped.ended_by, desired(runs)) == ("the writer", Desired.STOPPED)


def test_a_successor_that_is_stopped_before_it_asks_for_a_handover_leaves_the_writer_at_work(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    worked = threading.Event()
    feed.send(topic, session(1))
    with living(runs, then(worked)):
        assert worked.wait(WAIT_SECONDS_MAX)
        successor = WriterStartup(runs.stream, runs.folders, runs.cluster_id(), never_ending=True)
        with pytest.raises(StartCancelled):
            successor.claim(cancelled=lambda: True)
        committed = len(runs.reports)
        feed.send(topic, [update(3, a=1)])
        wait_until(lambda: len(runs.reports) > committed, "the writer goes on")
    assert OutputLog(runs.folders.table).base().head.epoch == 1


def test_a_successor_that_is_stopped_while_it_waits_for_a_long_batch_takes_its_request_back(written: Offline) -> None:
    control = written.folders.control
    asked = threading.Event()
    with Heartbeat(control, 2) as writer:
        successor = on_its_way(written, never_ending=True)

        def cancelled() -> bool:
            if (control / "handover-2.json").exists():
                asked.set()
            return asked.is_set()

        with pytest.raises(StartCancelled):
            successor.claim(cancelled=cancelled)
        assert asked.is_set()
        assert not is_asked_to_hand_over(writer)
    assert held_by(written)[0] == 2


@pytest.mark.parametrize("never_ending", [False, True])
def test_a_stop_of_a_stopped_stream_stops_the_run_that_is_on_its_way(
    written: Offline,
    never_ending: bool,  # noqa: FBT001
) -> None:
    stop_stream(written.folders, WHY, patience_seconds=1)
    with run_heartbeat(written.folders.control, "a-run"):
        late = on_its_way(written, never_ending=never_ending)
        assert stop_stream(written.folders, WHY, patience_seconds=1).ended_by == "a claim"
        with pytest.raises(NotWanted, match="is stopped"):
            late.claim(cancelled=lambda: False)
    assert held_by(written)[1] is Desired.STOPPED


def test_a_stop_between_the_command_to_start_and_the_first_look_of_its_run_is_kept(written: Offline) -> None:
    asked_at = check_startable(written.folders).desired_version
    stop_stream(written.folders, WHY, patience_seconds=1)
    with pytest.raises(NotWanted, match="is stopped"):
        on_its_way(written, never_ending=True, launch=Launch(desired_version=asked_at))


def test_a_start_by_a_person_after_the_stop_wins_over_it_and_over_what_was_on_its_way_before(written: Offline) -> None:
    before = on_its_way(written, never_ending=True)
    stop_stream(written.folders, WHY, patience_seconds=1)
    assert set_running(written.folders, check_startable(written.folders), "started by ann") == 4
    assert claimed(on_its_way(written, never_ending=True, launch=AUTOMATIC)) is Desired.RUNNING
    with pytest.raises(Fenced):
        before.claim(cancelled=lambda: False)
    stop_stream(written.folders, WHY, patience_seconds=1)
    assert claimed(on_its_way(written, never_ending=True)) is Desired.RUNNING


def test_a_stop_that_meets_a_handover_follows_it_to_the_next_writer(written: Offline) -> None:
    with ThreadPoolExecutor(1) as pool:
        with Heartbeat(written.folders.control, 2):
            stopping = pool.submit(stop_stream, written.folders, WHY, patience_seconds=WAIT_SECONDS_MAX)
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while read_stop_request(written.folders.control, 2) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            output = OutputLog(written.folders.table)
            output.commit(commit_claim(2, output.table_id, lambda _: None))
        stopped = stopping.result(WAIT_SECONDS_MAX)
    assert (stopped.ended_by, stopped.epoch, stopped.desired) == ("a claim", 4, "stopped")
