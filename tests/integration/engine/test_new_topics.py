"""A run that no sensor restarts takes up topics while it goes on."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from lockstep import Every
from lockstep.engine.driver.startup import Launch
from tests.support.feed import folded, session, update
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

READ_SECONDS_MAX = 60.0


def begun(runs: LocalRuns, topic: str) -> int:
    """Where the ledger stands in a topic; -1 while it does not know it."""
    rows = [row for row in read_table(runs.folders.ledger).to_pylist() if row["topic"] == topic]
    return max((row["until"] for row in rows), default=-1)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READ_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_topic_that_appears_is_read_from_the_next_batch_on(feed: Feed, runs: LocalRuns) -> None:
    """The tutorial says so; `lockstep run` never did, and said nothing."""
    runs = runs.tuned(appear_seconds=0.2)
    first, values, stop = feed.create("first"), session(3), threading.Event()
    feed.send(first, values)
    runs.run()
    adopting = {"trigger": Every(seconds=0.2), "stop": stop, "launch": Launch(cause="test", adopts_topics=True)}
    going = threading.Thread(target=runs.run, kwargs=adopting)
    going.start()
    try:
        empty, new = feed.create("empty"), feed.create("new", partitions=2)
        wait_until(lambda: begun(runs, empty) == 0)  # it counts as subscribed, though nothing is there
        feed.send(new, values, partition=1)
        wait_until(lambda: begun(runs, new) == len(values))
        feed.send(first, [update(5, a=1)])
        wait_until(lambda: begun(runs, first) == len(values) + 1)
    finally:
        stop.set()
        going.join()
    assert runs.rows(new, 1) == folded([(at, "s1", value) for at, value in enumerate(values)])
    runs.run()
    assert runs.rows(new, 1) == folded([(at, "s1", value) for at, value in enumerate(values)])
