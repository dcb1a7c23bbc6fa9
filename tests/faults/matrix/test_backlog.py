"""Large or blocked backlogs: batches keep their bounds, and messages that may not be read yet count as lag."""

from __future__ import annotations

import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lockstep import Every, Limits
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev.broker import Broker
from lockstep.kafka.progress import TopicLifecycle
from lockstep.operations.inspect.topics import read_topics
from tests.faults.matrix.drivers import wait_until
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, send_within, session, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import read_table, read_until

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 500
BACKLOG = 10 * BATCH
MEMORY_BYTES_MAX = 64 << 20
"""Limit of the additional memory for a backlog, compared with one batch."""


def numbered(first: int, count: int) -> list[bytes]:
    return [update(number, a=1) for number in range(first, first + count)]


def rows(values: list[bytes]) -> list[tuple[object, ...]]:
    return folded([(offset, "s", value) for offset, value in enumerate(values)])


@pytest.mark.slow
@pytest.mark.fault("F40")
def test_after_an_outage_a_backlog_is_read_in_batches_that_keep_their_bound(tmp_path: Path, topic_family: str) -> None:
    """The run survives the outage; the messages sent meanwhile fill ten batches. Seconds represent an hour here."""
    with Broker.start(tmp_path / "kafka") as broker, ThreadPoolExecutor(1) as pool:
        feed = Feed(broker.bootstrap_servers, topic_family)
        stop = threading.Event()
        runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path)
        runs = runs.with_limits(Limits(batch_messages=BATCH))
        topic = feed.create("values")
        values = session(BATCH - 1)
        feed.send(topic, values)
        running = pool.submit(runs.run, trigger=Every(seconds=0.2), stop=stop)
        try:
            wait_until(lambda: bool(runs.reports), "the first batch")
            broker.kill()
            before = memory_bytes()
            first = len(runs.reports)
            broker.restart()
            values += numbered(BATCH + 1, BACKLOG)
            feed.send(topic, values[BATCH:])
            wait_until(
                lambda: running.done() or sum(each.counts.messages for each in runs.reports) == len(values), "the rest"
            )
        finally:
            stop.set()
        assert running.result() is RunOutcome.STOPPED
        assert max(report.counts.messages for report in runs.reports) <= BATCH
        assert len(runs.reports) - first >= BACKLOG // BATCH
        assert rows(values) == runs.rows(topic)
        assert memory_bytes() - before < MEMORY_BYTES_MAX


def memory_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.fault("F37", "F56")
def test_what_lies_behind_an_open_transaction_is_lag_and_the_topic_not_drained(feed: Feed, runs: LocalRuns) -> None:
    """They are lag while it is open, in each run; then they are read, and its marker is explained."""
    topic = feed.create("values")
    producer = feed.transactional()
    opening = session(2)
    feed.send(topic, opening)
    producer.begin_transaction()
    send_within(producer, topic, [update(4, a=1)])
    feed.send(topic, [update(5, a=1)])
    for _ in range(2):
        assert runs.run() is RunOutcome.ENDED
        assert read_until(runs.folders.ledger, topic) == 3
        assert runs.rows(topic) == rows(opening)
    assert runs.reports[-1].lag_messages == 2
    newest = read_table(runs.folders.ledger).to_pylist()[-1]
    assert (newest["until"], newest["stable_end"], newest["high_watermark"]) == (3, 3, 5)
    (status,) = read_topics(runs.handle).topics
    assert (status.state, status.lag_messages) == (TopicLifecycle.ACTIVE, 2)
    feed.end_transaction(producer, topic)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == rows([*opening, update(4, a=1), update(5, a=1)])
    assert read_until(runs.folders.ledger, topic) == 6
    newest = read_table(runs.folders.ledger).to_pylist()[-1]
    assert [(hole["start"], hole["until"], hole["cause"]) for hole in newest["holes"]] == [(5, 6, "marker")]


@pytest.mark.fault("F37", "F56")
def test_a_transaction_that_stays_open_is_told_once_and_with_each_batch_until_it_ends(
    feed: Feed, runs: LocalRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """Three triggers represent the minimum of a minute."""
    runs = runs.tuned(stuck_seconds_min=0.0)
    topic = feed.create("values")
    other = feed.create("well")
    producer = feed.transactional()
    feed.send(topic, session(2))
    producer.begin_transaction()
    send_within(producer, topic, [update(4, a=1)])
    warning = f"{topic}/0: 1 offsets from 3 on wait behind an open transaction"
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runs.run, trigger=Every(seconds=0.2), stop=stop)
        try:
            wait_until(lambda: running.done() or warning in caplog.text, "the alarm")
            feed.send(other, session(2))
            wait_until(lambda: running.done() or bool(runs.reports[-1].stalls), "a batch of the other topic")
            (stall,) = runs.reports[-1].stalls
            assert stall.place == (topic, 0, 3)
            producer.commit_transaction()
            wait_until(lambda: running.done() or read_until(runs.folders.ledger, topic) == 5, "what waited")
            feed.send(other, [update(4, a=1)])
            wait_until(lambda: running.done() or not runs.reports[-1].stalls, "the end of the alarm")
        finally:
            stop.set()
        assert running.result() is RunOutcome.STOPPED
    assert caplog.text.count("wait behind an open transaction") == 1
