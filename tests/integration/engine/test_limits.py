"""Runs whose ranges end at limits: the rows are the same, no message is blamed, and the table is proven."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.executor.limits import EngineLimit
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import Adding, Panel, Reading, Snapshot, Update, adding
from tests.support.feed import folded, session, session_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstep import Record
    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

USED: list[int] = []
"""The capacity that the messages of a range use, one entry a message."""
CAPACITY = 17


class Hungry(Adding):
    """Uses capacity for each message."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Return one row a value; raise MemoryError beyond the capacity."""
        USED.append(record.offset)
        if len(USED) > CAPACITY:
            raise MemoryError
        return super().on_update(state, message, record)


def free(*_: object) -> int:
    """Free the used capacity."""
    USED.clear()
    return 0


def freeing(runner: Runner) -> Runner:
    """Start each job with the full capacity."""

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        free()
        return runner(plan)

    return run


def prove(runs: LocalRuns) -> None:
    proof = verify_stream(runs.stream, runs.folders, runs.settings.kafka, None)
    assert proof.status is InvariantStatus.PROVEN, proof
    assert DeltaTable(runs.folders.quarantine).to_pyarrow_table().num_rows == 0


def test_ranges_that_end_by_the_bytes_of_their_rows_are_proven(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=3)
    for partition in range(3):
        feed.send(topic, session(400), partition=partition)
    runs = runs.tuned(rows_bytes=30_000, spill_bytes=10_000)
    assert runs.run() is RunOutcome.ENDED
    assert len([report for report in runs.reports if report.offsets]) > 1
    for partition in range(3):
        held = [(n, session_in(partition), value) for n, value in enumerate(session(400))]
        assert folded(held) == runs.rows(topic, partition)
    prove(runs)


def test_ranges_that_end_for_lack_of_memory_are_proven(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = feed.create("values", partitions=2)
    for partition in range(2):
        feed.send(topic, session(50), partition=partition)
    runs = runs.of(adding(feed.pattern, transform=Hungry()))
    monkeypatch.setattr(gc, "collect", free)  # an attempt's capacity is free after it
    assert runs.run(around=freeing) is RunOutcome.ENDED
    for partition in range(2):
        held = [(n, session_in(partition), value) for n, value in enumerate(session(50))]
        assert folded(held) == runs.rows(topic, partition)
    assert "ended earlier for lack of memory: MemoryError" in caplog.text
    monkeypatch.setattr("tests.integration.engine.test_limits.CAPACITY", 10**9)
    prove(runs)


def test_a_message_that_needs_more_alone_ends_the_run_and_halts_nothing(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values")
    feed.send(topic, session(50))
    runs = runs.of(adding(feed.pattern, transform=Hungry()))
    monkeypatch.setattr("tests.integration.engine.test_limits.CAPACITY", 0)
    with pytest.raises(EngineLimit, match=rf"{topic}/0@1: a task of this message alone lacks memory: MemoryError"):
        runs.run()
    monkeypatch.setattr("tests.integration.engine.test_limits.CAPACITY", 10**9)
    assert runs.run() is RunOutcome.ENDED  # it is not halted, and nothing is lost
    assert folded([(n, "s", value) for n, value in enumerate(session(50))]) == runs.rows(topic)
    prove(runs)
