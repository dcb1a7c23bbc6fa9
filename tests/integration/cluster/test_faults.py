"""Killed, stopped and caught executors and workers: the rows equal the plain fold's rows."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lockstep.table.ledger import read_ledger
from tests.integration.cluster.cluster_runs import wait_until
from tests.integration.cluster.paced_feed import PacedFeed
from tests.integration.cluster.streams import CATCH
from tests.support.descendants import list_descendants
from tests.support.feed import folded, session, session_in, update
from tests.support.plain_reader import first_difference, named_files, read_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.cluster.cluster_runs import ClusterRuns
    from tests.support.feed import Feed
    from tests.support.spark_cluster import Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

STOPPED_SECONDS = 60.0
DEADLINE_SECONDS = 60.0
PARTITIONS = 3
TURNS = 5
REPLACED_SECONDS_MAX = 120.0
"""Counted after the turns, during which the executor is late twice."""


def test_killed_and_stopped_machines_lose_nothing_and_double_nothing(runs: ClusterRuns, feed: Feed) -> None:
    topics = [feed.create("one", PARTITIONS), feed.create("two", PARTITIONS)]
    partitions = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    with PacedFeed(feed, partitions) as paced:
        driver = runs.start("--seconds", "1")
        runs.wait_for_batches(3)
        runs.wait_for_hot_state()
        during(runs, paced, "quiet", lambda: runs.wait_for_batches(10))
        during(runs, paced, "executor killed (-9)", lambda: kill_an_executor(runs))
        during(runs, paced, "worker killed (-9)", lambda: kill_a_worker(runs))
        during(runs, paced, "executor stopped for 60 s", lambda: stop_an_executor(runs))
        during(runs, paced, "quiet again", lambda: runs.wait_for_batches(10))
    sent = {partition: len(lane.values) for partition, lane in paced.lanes.items()}
    wait_until(lambda: runs.read_until() == sent, "the end of the topics")
    driver.stop()
    assert driver.outcome == "stopped"
    for (topic, partition), lane in paced.lanes.items():
        assert first_difference(folded(lane.messages), runs.rows(topic, partition)) is None
        assert read_until(runs.folders.ledger, topic, partition) == len(lane.values)


def test_a_task_that_wakes_up_after_its_batch_was_worked_elsewhere_writes_nothing_visible(
    runs: ClusterRuns, feed: Feed
) -> None:
    topic = feed.create("values", PARTITIONS)
    for partition in range(PARTITIONS):
        feed.send(topic, [*session(50), update(52, a=CATCH)], partition=partition)
    # Spark's timeout exceeds the deadline, as Spark would drop the executor first otherwise.
    runs.start("--seconds", "1", "--deadline", str(DEADLINE_SECONDS), network_timeout="300s")
    wait_until((runs.trap / "caught").exists, "a task in the middle")
    zombie = int((runs.trap / "caught").read_text())
    (worker,) = [worker for worker in runs.cluster.workers if zombie in list_descendants(worker.process.pid)]
    stopped = stop(worker)
    waited = wait_until(lambda: committed(runs, 52 * PARTITIONS), "the batch on the other executor")
    say(f"batch of a stopped executor: worked elsewhere after {waited:.1f} s with a deadline of {DEADLINE_SECONDS} s")
    before = files(runs)
    (runs.trap / "released").touch()
    os.kill(zombie, signal.SIGCONT)
    wait_until(lambda: bool(files(runs) - before), "the file that the zombie writes")
    late = files(runs) - before
    wake(stopped)
    feed.send(topic, [update(53, a=1)])
    wait_until(lambda: committed(runs, 52 * PARTITIONS + 1), "a batch after it")
    assert not late & set(named_files(runs.folders.table))
    for partition in range(PARTITIONS):
        values = [*session(50), update(52, a=CATCH), *([update(53, a=1)] if partition == 0 else [])]
        assert folded([(offset, session_in(partition), value) for offset, value in enumerate(values)]) == runs.rows(
            topic, partition
        )


def test_an_executor_whose_python_is_stopped_holds_up_its_own_partitions_only(runs: ClusterRuns, feed: Feed) -> None:
    """Its JVM still sends heartbeats and gets tasks. Two cores make no difference (measured)."""
    topics = [feed.create("one", PARTITIONS), feed.create("two", PARTITIONS)]
    partitions = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    with PacedFeed(feed, partitions) as paced:
        driver = runs.start("--seconds", "1")
        runs.wait_for_batches(3)
        runs.wait_for_hot_state()
        during(runs, paced, "quiet", lambda: runs.wait_for_batches(10))
        during(runs, paced, "Python of an executor stopped", lambda: stop_python(runs, paced))
        during(runs, paced, "quiet again", lambda: runs.wait_for_batches(10))
    sent = {partition: len(lane.values) for partition, lane in paced.lanes.items()}
    wait_until(lambda: runs.read_until() == sent, "the end of the topics")
    driver.stop()
    for (topic, partition), lane in paced.lanes.items():
        assert first_difference(folded(lane.messages), runs.rows(topic, partition)) is None


def test_a_master_that_is_started_again_disturbs_nobody(runs: ClusterRuns, feed: Feed) -> None:
    topic = feed.create("values", PARTITIONS)
    partitions = [(topic, partition) for partition in range(PARTITIONS)]
    with PacedFeed(feed, partitions) as paced:
        driver = runs.start("--seconds", "1")
        runs.wait_for_batches(3)
        executors = [pid for worker in runs.cluster.workers for pid in worker.executors()]
        runs.cluster.restart_master()
        during(runs, paced, "master started again", lambda: runs.wait_for_batches(10))
        runs.cluster.wait_for_workers(2)
        assert [pid for worker in runs.cluster.workers for pid in worker.executors()] == executors
        during(runs, paced, "executor killed (-9) after it", lambda: kill_an_executor(runs))
    sent = {partition: len(lane.values) for partition, lane in paced.lanes.items()}
    wait_until(lambda: runs.read_until() == sent, "the end of the topic")
    driver.stop()
    assert driver.outcome == "stopped"


def test_a_run_whose_workers_are_all_gone_ends_and_says_so(runs: ClusterRuns, feed: Feed) -> None:
    """A restarted master without the application has the same effect. The deadline passes long before the end."""
    topic = feed.create("values")
    feed.send(topic, session(5))
    driver = runs.start("--seconds", "1", "--deadline", "3", "--patience", "40")
    runs.wait_for_batches(1)
    for worker in runs.cluster.workers:
        worker.kill()
    feed.send(topic, [update(7, a=1)])
    assert driver.ended() is None
    assert "planning again" not in "\n".join(driver.lines)
    assert f"{runs.cluster.master} has left this application without any executor" in "\n".join(driver.lines)
    assert runs.read_until() == {(topic, 0): 6}


def stop_python(runs: ClusterRuns, paced: PacedFeed) -> None:
    """SIGSTOP all Python of an executor: all partitions continue, and the stopped executor is replaced."""
    worker = runs.cluster.workers[0]
    (executor,) = worker.executors()
    stopped = list_descendants(executor)
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    for turn in range(1, TURNS + 1):
        sent = {partition: len(lane.values) for partition, lane in paced.lanes.items()}
        waited = wait_until(lambda: has_read(runs, sent), "all partitions")  # noqa: B023
        say(f"Python of an executor stopped: turn {turn} of all partitions after {waited:.1f} s")
    waited = wait_until(
        lambda: bool(set(worker.executors()) - {executor}), "an executor in its place", REPLACED_SECONDS_MAX
    )
    say(f"Python of an executor stopped: another executor after {waited:.1f} s more")
    runs.wait_for_batches(10)
    wake(stopped)


def has_read(runs: ClusterRuns, sent: dict[tuple[str, int], int]) -> bool:
    read = runs.read_until()
    return all(read[partition] >= count for partition, count in sent.items())


def kill_an_executor(runs: ClusterRuns) -> None:
    """Kill an executor; its worker replaces it."""
    worker = runs.cluster.workers[0]
    (killed,) = worker.executors()
    os.kill(killed, signal.SIGKILL)
    waited = wait_until(lambda: bool(set(worker.executors()) - {killed}), "an executor in its place")
    say(f"executor killed: another after {waited:.1f} s, next batch {runs.wait_for_batches(2):.1f} s later")


def kill_a_worker(runs: ClusterRuns) -> None:
    """Kill a worker with its executor, and add a new worker."""
    worker = runs.cluster.workers[1]
    below = list_descendants(worker.process.pid)
    worker.kill()
    waited = runs.wait_for_batches(1)
    say(f"worker killed: next batch after {waited:.1f} s")
    gone = wait_until(lambda: not any(map(alive, below)), "end of the executor of the killed worker")
    say(f"worker killed: no process of it left after {gone:.1f} s more")
    fresh = runs.cluster.add_worker()
    wait_until(lambda: bool(fresh.executors()), "an executor on the new worker")
    wait_until(lambda: any(fresh.local_root.rglob("*.lmdb")), "hot state on the new worker")


def stop_an_executor(runs: ClusterRuns) -> None:
    """Stop an executor's JVM and Python, like a machine that hangs."""
    worker = runs.cluster.workers[0]
    before = runs.batches
    began = time.monotonic()
    stopped = stop(worker)
    waited = runs.wait_for_batches(2)
    say(f"executor stopped: two more batches after {waited:.1f} s")
    time.sleep(max(0.0, STOPPED_SECONDS - (time.monotonic() - began)))
    say(f"executor stopped: {runs.batches - before} batches in {STOPPED_SECONDS:.0f} s")
    wake(stopped)
    runs.wait_for_batches(3)


def stop(worker: Worker) -> list[int]:
    """SIGSTOP a worker's executors with their descendants and return their process ids."""
    executors = worker.executors()
    pids = [pid for executor in executors for pid in (executor, *list_descendants(executor))]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def wake(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def files(runs: ClusterRuns) -> set[str]:
    """Return the table's Parquet files, with or without a commit that names them."""
    table = runs.folders.table
    return {str(path.relative_to(table)) for path in table.glob("commit_hour=*/*.parquet")}


def committed(runs: ClusterRuns, messages: int) -> bool:
    return sum(runs.read_until().values()) == messages


def during(runs: ClusterRuns, paced: PacedFeed, what: str, action: Callable[[], object]) -> None:
    """Run an action, then report the freshness of each partition during it."""
    began = time.time()
    action()
    until = time.time()
    seen = paced.freshness(read_ledger(runs.folders.ledger), began, until)
    for (topic, partition), seconds in seen.items():
        if seconds:
            middle = seconds[len(seconds) // 2]
            worst = seconds[-1]
            say(f"{what}: {topic.rsplit('.', 1)[1]}/{partition} visible after p50 {middle:.1f} s, most {worst:.1f} s")


def say(line: str) -> None:
    """Print a figure; figures are not asserted."""
    sys.stdout.write(f"{line}\n")
