"""A message that always kills its worker: found by halving, left out, judged by class; no other message is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep import Limits, NoIntegrity, Ordered
from lockstep.engine.driver import retries
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import folded, session, session_in, snapshot, update
from tests.support.plain_reader import read_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

KILLER = 37
MESSAGES = 100
UPDATES = [snapshot(1, a=1, b=2), *(update(1 + n, a=n, b=-n) for n in range(1, MESSAGES))]


class Died(Exception):
    """A worker ended for an unknown reason."""


class Deadly:
    """Runs bins unchanged, but fails each job that reads one of the given offsets of a topic as a message.

    Attributes:
        jobs: The ranges of each job so far, and whether it worked.
    """

    def __init__(self, topic: str, *offsets: int) -> None:
        self._topic, self._offsets = topic, set(offsets)
        self.jobs: list[tuple[tuple[tuple[int, int], ...], bool]] = []

    def around(self, runner: Runner) -> Runner:
        """Return the runner for a run."""

        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            ranges = [item for group in plan.bins for item in group]
            dies = any(
                item.position.topic == self._topic
                and self._offsets & set(range(item.position.next_offset, item.until)) - set(item.killing)
                for item in ranges
            )
            self.jobs.append((tuple((item.position.next_offset, item.until) for item in ranges), not dies))
            if dies:
                raise Died
            return runner(plan)

        return run


def kept(runs: LocalRuns) -> list[tuple[int, str, str]]:
    rows = DeltaTable(runs.folders.quarantine).to_pyarrow_table().sort_by("offset").to_pylist()
    return [(row["offset"], row["cause"], row["found"]) for row in rows]


def held(values: Sequence[bytes], *without: int) -> list[tuple[int, str, bytes]]:
    return [(at, "s", value) for at, value in enumerate(values) if at not in without]


def test_best_effort_keeps_it_in_quarantine_and_goes_on(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, UPDATES)
    deadly = Deadly(topic, KILLER)
    assert runs.of(adding(feed.pattern, NoIntegrity())).run(around=deadly.around) is RunOutcome.ENDED
    assert folded(held(UPDATES, KILLER)) == runs.rows(topic)
    assert read_until(runs.folders.ledger, topic) == MESSAGES
    assert kept(runs) == [(KILLER, "undecodable", "each worker that was given it died")]
    proof = verify_stream(adding(feed.pattern, NoIntegrity()), runs.folders, runs.settings.kafka, None)
    assert proof.status is InvariantStatus.PROVEN  # the proof did not decode it either
    assert sum(not worked for _, worked in deadly.jobs) <= 2 + 2 * MESSAGES.bit_length()


def test_an_ordered_stream_keeps_it_in_quarantine_and_waits_for_a_snapshot(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = [*UPDATES, snapshot(500, a=5), update(501, a=1)]
    feed.send(topic, values)
    runs = runs.of(adding(feed.pattern, Ordered()))
    assert runs.run(around=Deadly(topic, KILLER).around) is RunOutcome.ENDED
    assert folded(held(values, *range(KILLER, MESSAGES))) == runs.rows(topic)
    assert kept(runs)[0] == (KILLER, "undecodable", "each worker that was given it died")
    assert [(offset, cause) for offset, cause, _ in kept(runs)[1:]] == [
        (offset, "suspended") for offset in range(KILLER + 1, MESSAGES)
    ]


def test_a_strict_stream_halts_at_it_by_name(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, UPDATES)
    with pytest.raises(IntegrityLost, match=rf"undecodable at {topic}/0 offset {KILLER}, .*kills its worker"):
        runs.run(around=Deadly(topic, KILLER).around)
    assert folded(held(UPDATES[:KILLER])) == runs.rows(topic)
    assert read_until(runs.folders.ledger, topic) == KILLER


@pytest.mark.parametrize("offsets", [(0,), (MESSAGES - 1,), (36, 37), (3, 50, 99)])
def test_wherever_and_however_many_they_are_each_is_named(
    feed: Feed, runs: LocalRuns, offsets: tuple[int, ...]
) -> None:
    topic = feed.create("values")
    values = [snapshot(1 + n, a=n) for n in range(MESSAGES)]
    feed.send(topic, values)
    runs = runs.of(adding(feed.pattern, Ordered())).with_limits(Limits(batch_messages=64))
    assert runs.run(around=Deadly(topic, *offsets).around) is RunOutcome.ENDED
    assert kept(runs) == [(offset, "undecodable", "each worker that was given it died") for offset in offsets]
    assert read_until(runs.folders.ledger, topic) == MESSAGES


def test_partitions_without_it_commit_while_it_is_looked_for(feed: Feed, runs: LocalRuns) -> None:
    sick = feed.create("sick")
    well = feed.create("well", partitions=2)
    feed.send(sick, UPDATES)
    for partition in range(2):
        feed.send(well, session(30), partition=partition)
    seen: list[tuple[int, int]] = []
    deadly = Deadly(sick, KILLER)

    def watched(runner: Runner) -> Runner:
        inner: Callable[[BatchPlan], Sequence[TaskResult]] = deadly.around(runner)

        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            if any(item.killing for group in plan.bins for item in group):
                seen.append((read_until(runs.folders.ledger, well), read_until(runs.folders.ledger, well, 1)))
            return inner(plan)

        return run

    with pytest.raises(IntegrityLost):
        runs.run(around=watched)
    assert set(seen) == {(31, 31)}
    assert folded([(n, session_in(1), value) for n, value in enumerate(session(30))]) == runs.rows(well, 1)


def test_what_fails_without_the_message_too_is_raised_and_blames_none(feed: Feed, runs: LocalRuns) -> None:
    """A full disk or a lost Spark causes no quarantine."""
    feed.send(feed.create("values"), UPDATES)
    jobs: list[BatchPlan] = []

    def broken(_: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            jobs.append(plan)
            raise Died

        return run

    with pytest.raises(Died):
        runs.of(adding(feed.pattern, Ordered())).run(around=broken)
    assert kept(runs) == []
    assert jobs[-1].bins[0][0].killing == (0,)
    assert len(jobs) <= 3 + MESSAGES.bit_length()


def test_a_worker_that_dies_once_is_bad_luck_and_costs_one_more_try(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, UPDATES)
    jobs: list[bool] = []

    def once(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            jobs.append(True)
            if len(jobs) == 1:
                raise Died
            return runner(plan)

        return run

    assert runs.run(around=once) is RunOutcome.ENDED
    assert (len(jobs), folded(held(UPDATES))) == (2, runs.rows(topic))


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_workers_that_fail_by_themselves_for_a_while_blame_no_message(
    feed: Feed, runs: LocalRuns, failures: int
) -> None:
    """Three failures in a row, by an import, memory or an outage, must not blame the first message."""
    topic = feed.create("values")
    feed.send(topic, UPDATES[:2])
    jobs: list[bool] = []

    def starting(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            jobs.append(True)
            if len(jobs) <= failures:
                raise Died
            return runner(plan)

        return run

    assert runs.run(around=starting) is RunOutcome.ENDED
    assert folded(held(UPDATES[:2])) == runs.rows(topic)
    assert kept(runs) == []


def test_a_message_is_blamed_only_after_jobs_with_it_and_without_it_alternate(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, UPDATES[:2])
    deadly = Deadly(topic, 0)
    with pytest.raises(IntegrityLost, match="kills its worker"):
        runs.run(around=deadly.around)
    whole = ((0, 2),)
    first = ((0, 1),)
    tried = [(whole, False)] * 2 + [(first, False), (first, True)] * retries.CONTROLS
    assert deadly.jobs == tried


def test_a_worker_that_dies_at_changing_places_is_nobodys_fault(feed: Feed, runs: LocalRuns) -> None:
    """After repeated kills for lack of memory everything is read, and nothing is left out."""
    topic = feed.create("values")
    feed.send(topic, UPDATES)
    jobs: list[bool] = []

    def often(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            jobs.append(True)
            if len(jobs) in {1, 2, 3, 5}:
                raise Died
            return runner(plan)

        return run

    assert runs.run(around=often) is RunOutcome.ENDED
    assert folded(held(UPDATES)) == runs.rows(topic)
    assert kept(runs) == []
