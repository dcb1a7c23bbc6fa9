"""Python workers on Spark that die by a kill, of memory, or of a message each time: rows stay those of the fold."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lockstep import AvailableNow, Limits, Ordered, Sequence, Strict
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.engine.driver.startup import Launch
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.model.tuning import Tuning
from tests.faults.matrix.drivers import alive
from tests.faults.matrix.oracle import rows_of_files
from tests.faults.matrix.streams import DEADLY, deadly
from tests.support.feed import Feed, folded, session, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lockstep.declare.stream import AnyStream
    from lockstep.features.localdev.broker import Broker
    from lockstep.integrity.base import IntegrityClass


ATTEMPTS = 3
"""Attempts of a task, by the master `local[2,3]`."""
FOR_EVER = 1_000
BEFORE = [*session(5), update(7, a=1)]
AFTER = [update(9, a=1), snapshot(10, a=5), update(11, a=1)]
MESSAGES = [*BEFORE, update(8, a=DEADLY), *AFTER]
AT = len(BEFORE)


@dataclass(frozen=True)
class Deaths:
    """A stream with a deadly message in one of two topics."""

    stream: AnyStream
    runs: LocalRuns
    trap: Path
    sick: str
    well: str
    spark: SparkSession

    def run(self) -> RunOutcome:
        """Run on Spark."""
        context = self.spark.sparkContext
        settings = self.runs.settings
        stop = threading.Event()
        launch = Launch(
            tuning=Tuning(small_batch_messages=1, bin_seconds=1e-9, straggler_task_seconds=2.0)
        )  # a few messages are spread over two tasks nevertheless
        return run_stream(
            self.stream, settings, spark=lambda: context, stop=stop, trigger=AvailableNow(), launch=launch
        )

    @property
    def pids(self) -> list[int]:
        """The workers that died."""
        return [int(path.name.split("-")[1]) for path in self.trap.iterdir()]


@pytest.fixture
def deaths(
    broker: Broker, topic_family: str, tmp_path: Path, shared_spark: SparkSession
) -> Callable[[str, int, IntegrityClass], Deaths]:
    feed = Feed(broker.bootstrap_servers, topic_family)
    trap = tmp_path / "trap"
    trap.mkdir()

    def made(way: str, count: int, integrity: IntegrityClass) -> Deaths:
        sick = feed.create("sick")
        well = feed.create("well")
        feed.send(sick, MESSAGES)
        feed.send(well, BEFORE)
        stream = deadly(way, trap, count, feed.pattern, Limits(), integrity)
        runs = LocalRuns(stream, broker.bootstrap_servers, tmp_path)
        return Deaths(stream, runs, trap, sick, well, shared_spark)

    return made


def rows(messages: list[bytes], *without: int) -> list[tuple[object, ...]]:
    return folded([(at, "s", value) for at, value in enumerate(messages) if at not in without])


STRICT = Strict(evidence=Sequence())


@pytest.mark.fault("F08", "F11")
@pytest.mark.parametrize("way", ["killed", "starved"])
def test_a_worker_that_dies_in_the_middle_is_replaced_within_the_batch(
    deaths: Callable[[str, int, IntegrityClass], Deaths], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A lack of memory is not blamed on the message read at that moment."""
    dying = deaths(way, 1, STRICT)
    assert dying.run() is RunOutcome.ENDED
    assert len(dying.pids) == 1
    assert way == "starved" or not any(map(alive, dying.pids))
    assert "planning again" not in caplog.text
    assert (dying.runs.rows(dying.sick), dying.runs.rows(dying.well)) == (rows(MESSAGES), rows(BEFORE))


def test_a_worker_that_stops_holds_up_the_partitions_of_its_own_task_only(
    deaths: Callable[[str, int, IntegrityClass], Deaths], caplog: pytest.LogCaptureFixture
) -> None:
    stopping = deaths("stopped", 1, STRICT)
    assert stopping.run() is RunOutcome.ENDED
    assert caplog.text.count("1 of 2 tasks are behind: their partitions are planned again") == 1
    assert (stopping.runs.rows(stopping.sick), stopping.runs.rows(stopping.well)) == (rows(MESSAGES), rows(BEFORE))
    batches = {
        row["topic"]: row["batch"] for row in read_table(stopping.runs.folders.ledger).to_pylist() if row["rows"]
    }
    assert (batches[stopping.well], batches[stopping.sick]) == (1, 2)


@pytest.mark.slow
@pytest.mark.fault("F09")
def test_a_batch_whose_task_ran_out_of_attempts_is_planned_again(
    deaths: Callable[[str, int, IntegrityClass], Deaths], caplog: pytest.LogCaptureFixture
) -> None:
    dying = deaths("killed", ATTEMPTS, STRICT)
    assert dying.run() is RunOutcome.ENDED
    assert len(dying.pids) == ATTEMPTS
    assert caplog.text.count("batch 1 failed, planning again") == 1
    assert (dying.runs.rows(dying.sick), dying.runs.rows(dying.well)) == (rows(MESSAGES), rows(BEFORE))


@pytest.mark.fault("F64")
def test_a_message_that_kills_its_worker_each_time_halts_a_strict_stream_by_its_offset(
    deaths: Callable[[str, int, IntegrityClass], Deaths],
) -> None:
    dying = deaths("killed", FOR_EVER, STRICT)
    match = rf"undecodable at {dying.sick}/0 offset {AT}, .*each worker that was given it died \(kills its worker\)"
    with pytest.raises(IntegrityLost, match=match) as lost:
        dying.run()
    assert "lockstep resume faulty" in lost.value.next_step
    assert len(dying.pids) >= 2 * ATTEMPTS
    assert (dying.runs.rows(dying.sick), dying.runs.rows(dying.well)) == (rows(BEFORE), rows(BEFORE))


@pytest.mark.slow
@pytest.mark.fault("F64")
def test_a_message_that_kills_its_worker_each_time_goes_to_quarantine_where_sessions_may_be_suspended(
    deaths: Callable[[str, int, IntegrityClass], Deaths],
) -> None:
    dying = deaths("killed", FOR_EVER, Ordered())
    assert dying.run() is RunOutcome.ENDED
    assert (dying.runs.rows(dying.sick), dying.runs.rows(dying.well)) == (rows(MESSAGES, AT, AT + 1), rows(BEFORE))
    kept = [(row["offset"], row["cause"], row["value"]) for row in rows_of_files(dying.runs.folders.quarantine)]
    assert kept == [(AT, "undecodable", MESSAGES[AT]), (AT + 1, "suspended", MESSAGES[AT + 1])]
