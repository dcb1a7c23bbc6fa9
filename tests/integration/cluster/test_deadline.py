"""The hard deadline of a batch: it is cancelled and planned again without traces. Batches by file size have none."""

from __future__ import annotations

import dataclasses
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lockstep import AvailableNow, FileSize
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.engine.driver.spark_job import BatchTimeout, warm_up
from lockstep.errors import EnvironmentProblem
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.layout import StreamFolders
from tests.integration.cluster.cluster_runs import wait_until
from tests.integration.cluster.streams import CATCH, Late, catching
from tests.support.feed import Feed, folded, session, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lockstep.declare.options import Trigger
    from lockstep.declare.stream import AnyStream
    from lockstep.features.localdev.broker import Broker


MESSAGES = [*session(5), update(7, a=CATCH)]


@dataclasses.dataclass(frozen=True)
class Caught:
    """A stream whose first batch is caught in its last message."""

    stream: AnyStream
    settings: Settings
    topic: str
    trap: Path
    stop: threading.Event
    spark: SparkSession

    def run(self, trigger: Trigger) -> RunOutcome:
        """Run the stream on Spark."""
        context = self.spark.sparkContext
        return run_stream(self.stream, self.settings, spark=lambda: context, stop=self.stop, trigger=trigger)

    def assert_whole(self) -> None:
        """Assert the rows of the plain fold."""
        table = LocalRuns(self.stream, self.settings.kafka.bootstrap_servers, self.settings.table_root.parent)
        expected = folded([(offset, "s", value) for offset, value in enumerate(MESSAGES)])
        assert expected == table.rows(self.topic)

    @property
    def tries(self) -> int:
        """The number of tasks that read the last message."""
        return sum(1 for _ in self.trap.glob("task-*"))


@pytest.fixture
def caught(broker: Broker, topic_family: str, tmp_path: Path, shared_spark: SparkSession) -> Callable[[float], Caught]:
    feed = Feed(broker.bootstrap_servers, topic_family)
    trap = tmp_path / "trap"
    trap.mkdir()

    def made(batch_seconds: float) -> Caught:
        topic = feed.create("values")
        feed.send(topic, MESSAGES)
        stream = catching(feed.pattern, trap, batch_seconds)
        settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers),
            table_root=tmp_path / "tables",
            local_root=tmp_path / "local",
        )
        return Caught(stream, settings, topic, trap, threading.Event(), shared_spark)

    return made


@pytest.mark.slow  # the deadline leaves time for a new Python worker to start on a busy machine
def test_a_batch_past_its_deadline_is_cancelled_and_worked_again(caught: Callable[[float], Caught]) -> None:
    stream = caught(45.0)
    assert stream.run(AvailableNow()) is RunOutcome.ENDED
    assert stream.tries >= 2
    stream.assert_whole()


def test_a_batch_that_is_late_each_time_ends_the_run_with_its_limit(caught: Callable[[float], Caught]) -> None:
    made = caught(0.01)
    stream = dataclasses.replace(made, stream=dataclasses.replace(made.stream, transform=Late()))
    with pytest.raises(BatchTimeout, match=r"timed out after 0\.01 s") as late:
        stream.run(AvailableNow())
    assert "Limits(batch_seconds=...)" in late.value.next_step


def test_a_batch_that_fills_a_file_has_no_deadline(caught: Callable[[float], Caught]) -> None:
    stream = caught(0.01)
    folders = StreamFolders(stream.stream.name, stream.settings.table_root)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream.run, FileSize("1 MB"))
        try:
            wait_until((stream.trap / "caught").exists, "a task in the middle")
            (stream.trap / "released").touch()
            wait_until(lambda: any(folders.table.glob("commit_hour=*/*.parquet")), "its file")
        finally:
            stream.stop.set()
        assert running.result() is RunOutcome.STOPPED
    assert stream.tries == 1
    stream.assert_whole()


def test_a_first_task_that_does_not_end_ends_the_start_with_the_setting_to_look_at(spark: SparkSession) -> None:
    """Spark waits forever without a message, for example if executors have fewer cores than a task needs."""
    with pytest.raises(EnvironmentProblem, match=r"did not end within 0.2 s, with 1 executors"):
        warm_up(spark.sparkContext, pickle.dumps(Hanging()), 0.2, cancelled=lambda: False)


def test_a_stop_ends_the_wait_for_the_first_task(spark: SparkSession) -> None:
    warm_up(spark.sparkContext, pickle.dumps(Hanging()), 60.0, cancelled=lambda: True)


def test_a_worker_that_cannot_load_the_stream_is_named_by_its_error(spark: SparkSession) -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"load the stream: ModuleNotFoundError: .*'no_such_module'; "
    ) as refused:
        warm_up(spark.sparkContext, b"cno_such_module\nStream\n.", 60.0, cancelled=lambda: False)
    assert "spark.pyspark.python" in refused.value.next_step


class Hanging:
    """Takes a second to load."""

    def __reduce__(self) -> tuple[Callable[[float], None], tuple[float]]:
        return time.sleep, (1.0,)
