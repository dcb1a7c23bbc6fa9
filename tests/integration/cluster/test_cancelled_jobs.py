"""Jobs cancelled from outside on a real Spark: planned again or an error of the run, never a message's fault."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep import AvailableNow
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from tests.integration.cluster.cluster_runs import wait_until
from tests.integration.cluster.streams import CATCH, catching
from tests.support.feed import Feed, folded, session, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from lockstep.features.localdev.broker import Broker


CANCELS = 2
MESSAGES = [*session(5), update(7, a=CATCH)]


def cancel_stages(context: SparkContext) -> None:
    """Cancel the active stages, like a stage's kill link."""
    for stage in context.statusTracker().getActiveStageIds():
        context._jsc.sc().cancelStage(stage)  # noqa: SLF001  # pyspark has no such call


def cancel_each_job(context: SparkContext) -> None:
    """Cancel the active jobs, like a job's kill link."""
    for job in context.statusTracker().getActiveJobsIds():
        context._jsc.sc().cancelJob(job)  # noqa: SLF001  # pyspark has no such call


WAYS: dict[str, Callable[[SparkContext], None]] = {
    "all jobs": lambda context: context.cancelAllJobs(),
    "each job": cancel_each_job,
    "each stage": cancel_stages,
}


@dataclasses.dataclass(frozen=True)
class Caught:
    """A stream whose batch is caught in its last message.

    Attributes:
        runs: Its tables.
        topic: The only topic.
        trap: Folder of the caught fold's files.
        context: Spark.
    """

    runs: LocalRuns
    topic: str
    trap: Path
    context: SparkContext

    def cancel(self, way: Callable[[SparkContext], None]) -> None:
        """Cancel twice: the first unknown failure repeats a batch, the second starts the search for a message."""
        for number in range(CANCELS):
            wait_until((self.trap / "caught").exists, "a task in the middle")
            if number < CANCELS - 1:
                (self.trap / "caught").unlink()
            way(self.context)

    def run(self) -> RunOutcome:
        """Run the stream on Spark."""
        never = threading.Event()
        return run_stream(
            self.runs.stream, self.runs.settings, spark=lambda: self.context, stop=never, trigger=AvailableNow()
        )


@pytest.fixture
def caught(broker: Broker, topic_family: str, tmp_path: Path, shared_spark: SparkSession) -> Caught:
    feed = Feed(broker.bootstrap_servers, topic_family)
    trap = tmp_path / "trap"
    trap.mkdir()
    topic = feed.create("values")
    feed.send(topic, MESSAGES)
    runs = LocalRuns(catching(feed.pattern, trap, 300.0), broker.bootstrap_servers, tmp_path)
    return Caught(runs, topic, trap, shared_spark.sparkContext)


@pytest.mark.parametrize("way", WAYS)
def test_a_cancelled_batch_is_planned_again_and_blames_no_message(
    way: str, caught: Caught, caplog: pytest.LogCaptureFixture
) -> None:
    canceller = threading.Thread(target=caught.cancel, args=(WAYS[way],))
    canceller.start()
    try:
        ended = caught.run()
    finally:
        (caught.trap / "released").touch()
        canceller.join()

    assert ended is RunOutcome.ENDED
    expected = folded([(offset, "s", value) for offset, value in enumerate(MESSAGES)])
    assert caught.runs.rows(caught.topic) == expected
    folders = caught.runs.folders
    assert DeltaTable(folders.quarantine).to_pyarrow_table().num_rows == 0
    said = "JobCancelled: a job of the run was cancelled from outside: [SPARK_JOB_CANCELLED]"
    causes = [record.exc_info[1] for record in caplog.records if record.exc_info]  # PySpark may reformat the text
    assert sum(f"{type(cause).__name__}: {cause}".startswith(said) for cause in causes) == CANCELS
    (batch,) = {row["batch"] for row in read_table(folders.ledger).to_pylist() if row["rows"]}
    assert batch == 1  # one batch, as planned: a search would have halved it


STOPPED = """
import threading, time
from lockstep.engine.driver.executors import SparkStopped, count_cores, explain_foreign_end
from lockstep.settings import SparkSettings
from lockstep.spark.session import start_context

context = start_context(SparkSettings(master="local[1]"), "stopped")

def stop():
    while not context.statusTracker().{asked}():
        time.sleep({pause})
    context._jsc.sc().stop()

threading.Thread(target=stop).start()
for _ in range(2):
    try:
        context.parallelize([0], 1).foreach(lambda _: time.sleep(600))
    except Exception as error:
        print(type(explain_foreign_end(context, error)).__name__, flush=True)
try:
    count_cores(context)
except SparkStopped:
    print("between two batches", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "pause"), [("getActiveStageIds", 0.1), ("getActiveJobsIds", 0)], ids=["runs", "submitted"]
)
def test_a_spark_that_is_stopped_from_outside_is_named_by_the_job_by_the_next_one_and_between_them(
    asked: str, pause: float
) -> None:
    script = STOPPED.format(asked=asked, pause=pause)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert said.stdout.splitlines() == ["SparkStopped", "SparkStopped", "between two batches"], said.stderr
