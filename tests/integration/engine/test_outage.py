"""Kafka is killed and restarted: a continuous run keeps its claim and continues, a bounded run ends with an error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Never

import pytest

from lockstep import AvailableNow, Every
from lockstep.cli.app import KAFKA_AWAY, find_exit_code
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.engine.driver.startup import Launch
from lockstep.errors import KafkaUnreachable
from lockstep.features.localdev.broker import Broker
from lockstep.settings import KafkaSettings
from lockstep.table.head import Desired
from tests.integration.engine.test_brokers import Going
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult

PATIENCE = {"patience_seconds": 1.0, "retry_seconds": 0.1, "retry_seconds_max": 0.5}
AWAY_SECONDS = 4.0
"""Four times as long as a bounded run waits."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that these tests kill."""
    with Broker.start(tmp_path_factory.mktemp("outage")) as started:
        yield started


def make_runs(broker: Broker, root: Path, family: str) -> LocalRuns:
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, timeout_seconds=1.0)
    runs = LocalRuns(
        adding(Feed(broker.bootstrap_servers, family).pattern), broker.bootstrap_servers, root, kafka=kafka
    )
    return runs.tuned(**PATIENCE)


def make_patient(runs: LocalRuns) -> LocalRuns:
    """The same runs with a patience that a broker's restart on a slow machine does not reach."""
    return replace(runs, kafka=None).tuned(patience_seconds=120.0)


def test_a_run_keeps_its_claim_and_goes_on_within_two_batches(broker: Broker, tmp_path: Path) -> None:
    going = Going((broker,), tmp_path, "kept")
    going.runs = going.runs.tuned(**PATIENCE)
    with going:
        epoch = going.runs.handle.require_head().epoch
        batches = len(going.runs.reports)
        broker.kill()
        time.sleep(AWAY_SECONDS)
        broker.restart()
        for number in going.sent:
            going.send_next(number)
        going.wait_until(lambda: all(going.is_read(number) for number in going.sent))
        assert going.runs.handle.require_head().epoch == epoch
        with_messages = [each for each in going.runs.reports[batches:] if each.offsets]
        assert len(with_messages) <= len(going.sent) + 2  # each send may be a separate batch
    going.assert_whole()


def test_a_run_that_waits_is_stopped_at_once(broker: Broker, tmp_path: Path) -> None:
    going = Going((broker,), tmp_path, "stopped")
    brief = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, timeout_seconds=5.0)  # a stop waits for a request
    going.runs = replace(going.runs, kafka=brief).tuned(**PATIENCE)
    with going:
        broker.kill()
        try:
            time.sleep(3.0)
            began = time.monotonic()
            assert going.stop() is RunOutcome.STOPPED
            assert time.monotonic() - began < 30
        finally:
            broker.restart()


def test_a_bounded_run_gives_up_with_an_exit_code_of_its_own_and_the_next_one_goes_on(
    broker: Broker, tmp_path: Path
) -> None:
    runs = make_runs(broker, tmp_path, "bounded")
    feed = Feed(broker.bootstrap_servers, "bounded")
    topic = feed.create("values")
    values = session(4)
    feed.send(topic, values)
    kill_once = threading.Event()

    def run_and_kill(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            if not kill_once.is_set():
                kill_once.set()
                broker.kill()
            return runner(plan)

        return run

    try:
        with pytest.raises(KafkaUnreachable) as gave_up:
            runs.run(around=run_and_kill)
    finally:
        broker.restart()
    assert find_exit_code(gave_up.value) == KAFKA_AWAY
    assert make_patient(runs).run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(values)])


class Reached(Exception):
    """The start reached Spark."""


def reach() -> Never:
    raise Reached


@pytest.mark.parametrize("has_run", [False, True])
def test_a_restart_waits_for_kafka_and_a_first_start_gives_up(broker: Broker, tmp_path: Path, *, has_run: bool) -> None:
    """A first start must not wait forever for a mistyped address."""
    family = f"started-{has_run}"
    runs = make_runs(broker, tmp_path, family)
    feed = Feed(broker.bootstrap_servers, family)
    feed.send(feed.create("values"), session(2))
    if has_run:
        make_patient(runs).run()
    launch = Launch(cause="test", tuning=runs.tuning)
    broker.kill()
    with ThreadPoolExecutor(max_workers=1) as executor:
        start = executor.submit(
            run_stream, runs.stream, runs.settings, spark=reach, stop=threading.Event(), trigger=Every(1), launch=launch
        )
        try:
            if has_run:
                time.sleep(AWAY_SECONDS)
                assert not start.done()
            else:
                assert isinstance(start.exception(120), KafkaUnreachable)
        finally:
            broker.restart()
        if has_run:
            assert isinstance(start.exception(120), Reached)


@pytest.mark.slow
def test_a_start_that_waits_is_stopped_before_it_claims(broker: Broker, tmp_path: Path) -> None:
    runs = make_runs(broker, tmp_path, "unclaimed")
    feed = Feed(broker.bootstrap_servers, "unclaimed")
    feed.send(feed.create("values"), session(2))
    make_patient(runs).run(trigger=AvailableNow())
    epoch = runs.handle.require_head().epoch
    stop = threading.Event()
    broker.kill()
    try:
        threading.Timer(3.0, stop.set).start()
        launch = Launch(cause="test", tuning=runs.tuning)
        outcome = run_stream(runs.stream, runs.settings, spark=reach, stop=stop, trigger=Every(1), launch=launch)
    finally:
        broker.restart()
    assert outcome is RunOutcome.STOPPED
    assert runs.handle.require_head().epoch == epoch
    assert runs.handle.require_head().desired is not Desired.RUNNING
