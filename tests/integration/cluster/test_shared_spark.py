"""Streams of one process on one real Spark: cancelled or late jobs of a stream do not affect other streams."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none

from lockstep import AvailableNow
from lockstep.engine.driver import run as engine_run
from lockstep.engine.driver.executors import count_running_tasks
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.engine.driver.shared_spark import StreamJobs
from lockstep.engine.executor.limits import EngineLimit
from lockstep.features.rehearsal.process_usage import WORKERS, find_role
from lockstep.settings import KafkaSettings, Settings, SparkSettings
from lockstep.spark.shutdown import end_jobs
from tests.integration.cluster.cluster_runs import wait_until
from tests.integration.cluster.streams import HOARD_BYTES, catching, hoarding
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from lockstep.declare.stream import AnyStream
    from lockstep.features.localdev.broker import Broker


CORES = 2
LIMIT_MB = 256
FAILURES = 2
"""Failures of a batch whose worker has too much memory, before its partitions are read alone and by halves."""


def hold(folder: Path) -> object:
    """Return work for tasks that ends once the file `released` exists."""

    def work(_: Iterable[int]) -> None:
        while not (folder / "released").exists():
            time.sleep(0.05)

    return work


@contextmanager
def stream_with_tasks(context: SparkContext, name: str, tasks: int, folder: Path) -> Iterator[Future[None]]:
    """Run tasks of a stream of this process until the end of the block."""
    folder.mkdir()
    jobs = StreamJobs(context, name)

    def run() -> None:
        with jobs.on_this_thread(name):
            context.parallelize(range(tasks), tasks).foreachPartition(hold(folder))  # type: ignore[arg-type]  # a function

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run)
        try:
            wait_until(lambda: (count_running_tasks(context, jobs.pool) or 0) >= min(tasks, CORES), f"tasks of {name}")
            yield job
        finally:
            (folder / "released").touch()


def test_the_end_of_the_jobs_of_a_stream_leaves_those_of_the_others(shared_spark: SparkSession, tmp_path: Path) -> None:
    context = shared_spark.sparkContext
    with (
        stream_with_tasks(context, "one", 1, tmp_path / "one") as one,
        stream_with_tasks(context, "other", 1, tmp_path / "other") as other,
    ):
        end_jobs(context, "one")
        with pytest.raises(Py4JError, match="cancelled"):
            one.result(60)
        assert not other.done()
        (tmp_path / "other" / "released").touch()
        assert other.result(60) is None


def test_a_batch_that_waits_for_the_cores_of_other_streams_is_not_late(
    broker: Broker,
    topic_family: str,
    shared_spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_run, "warm_up", lambda *_, **__: None)  # the batch waits for cores, not the start
    context = shared_spark.sparkContext
    feed = Feed(broker.bootstrap_servers, topic_family)
    deadline_seconds = 15.0
    topic = feed.create("values")
    first, *others = session(5)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    settings = Settings(kafka=kafka, table_root=tmp_path / "tables", local_root=tmp_path / "local")
    is_warm = threading.Event()

    def spark() -> SparkContext:
        is_warm.set()
        return context

    def run(batch_seconds: float) -> RunOutcome:
        stream = catching(feed.pattern, tmp_path, batch_seconds)
        return run_stream(stream, settings, spark=spark, stop=threading.Event(), trigger=AvailableNow())

    feed.send(topic, [first])
    assert run(300.0) is RunOutcome.ENDED  # the worker knows the stream
    feed.send(topic, others)
    is_warm.clear()
    with ThreadPoolExecutor(1) as pool:
        with stream_with_tasks(context, "busy", CORES + 1, tmp_path / "busy"):
            running = pool.submit(run, deadline_seconds)
            assert is_warm.wait(60)
            time.sleep(2 * deadline_seconds)
            assert not running.done()
        assert running.result(120) is RunOutcome.ENDED
    assert [each for each in caplog.records if "planning again" in each.getMessage()] == []
    table = LocalRuns(catching(feed.pattern, tmp_path, 300.0), broker.bootstrap_servers, tmp_path)
    assert table.rows(topic) == folded([(offset, "s", value) for offset, value in enumerate(session(5))])


def wait_a_moment(_: Iterable[int]) -> None:
    time.sleep(0.2)


def is_full_worker(process: psutil.Process) -> bool:
    try:
        return find_role(process) == WORKERS and process.memory_info().rss > LIMIT_MB * 1_000_000
    except psutil.NoSuchProcess:  # it has ended
        return False


def test_a_stream_that_fills_the_memory_of_workers_fails_by_name_and_the_others_go_on(
    broker: Broker, topic_family: str, shared_spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = Feed(broker.bootstrap_servers, topic_family)
    full = feed.create("full")
    other = feed.create("other")
    feed.send(full, session(8))
    feed.send(other, session(8))
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    settings = Settings(kafka=kafka, table_root=tmp_path / "tables", local_root=tmp_path / "local")

    def run(stream: AnyStream, memory_mb: int) -> RunOutcome:
        limited = settings.model_copy(update={"spark": SparkSettings(worker_memory_mb=memory_mb)})
        spark = shared_spark.sparkContext
        return run_stream(stream, limited, spark=lambda: spark, stop=threading.Event(), trigger=AvailableNow())

    hungry = hoarding(rf"{topic_family}\.full")
    with pytest.raises(EngineLimit, match=rf"memory of its worker: .* more than spark\.worker_memory_mb = {LIMIT_MB}"):
        run(hungry, LIMIT_MB)
    assert len([each for each in caplog.records if "planning again" in each.getMessage()]) == FAILURES
    assert run(adding(rf"{topic_family}\.other"), LIMIT_MB) is RunOutcome.ENDED
    assert [each for each in psutil.Process().children(recursive=True) if is_full_worker(each)] == []
    expected = folded([(offset, "s", value) for offset, value in enumerate(session(8))])
    assert LocalRuns(adding("other"), broker.bootstrap_servers, tmp_path).rows(other) == expected
    assert run(hungry, 30 * HOARD_BYTES // 1_000_000) is RunOutcome.ENDED  # no message is blamed
    assert LocalRuns(hungry, broker.bootstrap_servers, tmp_path).rows(full) == expected


def test_the_last_of_streams_that_keep_all_cores_busy_gets_its_turn(shared_spark: SparkSession) -> None:
    context = shared_spark.sparkContext
    names = [f"stream {number}" for number in range(4 * CORES)]
    rounds = 5
    ended = list[str]()

    def work(name: str) -> None:
        with StreamJobs(context, name).on_this_thread(name) as jobs:
            for _ in range(rounds):
                jobs.start([b"task"], [])
                context.parallelize(range(1), 1).foreachPartition(wait_a_moment)
                jobs.end()
                ended.append(name)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(work, names))
    assert set(ended[: 2 * len(names)]) == set(names)
