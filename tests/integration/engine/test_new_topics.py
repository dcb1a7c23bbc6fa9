"""A continuous run without a sensor starts reading new topics."""

from __future__ import annotations

import dataclasses
import threading
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from lockstep import Earliest, Every, GroupOffsets, Topics
from lockstep.engine.driver import topic_changes
from lockstep.errors import KafkaUnreachable
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.consumer_group import ConsumerGroup
from tests.support.feed import folded, session, update
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

READ_SECONDS_MAX = 60.0


def begun(runs: LocalRuns, topic: str) -> int:
    """Return the ledger's end offset of a topic; -1 if the topic is unknown."""
    rows = [row for row in read_table(runs.folders.ledger).to_pylist() if row["topic"] == topic]
    return max((row["until"] for row in rows), default=-1)


def wait_until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READ_SECONDS_MAX
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_until_read(runs: LocalRuns, topic: str, until: int) -> None:
    wait_until(lambda: begun(runs, topic) == until)


def test_a_topic_that_appears_is_read_by_the_run_that_goes_on(feed: Feed, runs: LocalRuns) -> None:
    runs = runs.tuned(appear_seconds=0.2)
    first = feed.create("first")
    values = session(3)
    stop = threading.Event()
    feed.send(first, values)
    runs.run()
    going = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.2), "stop": stop})
    going.start()
    try:
        empty = feed.create("empty")
        new = feed.create("new", partitions=2)
        wait_until_read(runs, empty, 0)  # it counts as subscribed, though nothing is there
        feed.send(new, values, partition=1)
        wait_until_read(runs, new, len(values))
        feed.send(first, [update(5, a=1)])
        wait_until_read(runs, first, len(values) + 1)
    finally:
        stop.set()
        going.join()
    assert runs.rows(new, 1) == folded([(at, "s1", value) for at, value in enumerate(values)])
    assert len({row["epoch"] for row in read_table(runs.folders.ledger).to_pylist()}) == 2
    runs.run()
    assert runs.rows(new, 1) == folded([(at, "s1", value) for at, value in enumerate(values)])


def test_a_new_topic_whose_group_does_not_answer_delays_no_other_topic(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of a group may be silent for hours while the leaders of all topics answer."""
    topics = Topics(pattern=feed.pattern, start=GroupOffsets("old job"), start_by_topic={r".+\.first": Earliest()})
    runs = runs.of(dataclasses.replace(runs.stream, topics=topics)).tuned(appear_seconds=0.2)
    first = feed.create("first")
    values = session(3)
    stop = threading.Event()
    feed.send(first, values)
    runs.run()
    is_back = threading.Event()
    asked = list[float]()
    ask = ConsumerGroup.committed_by

    def ask_group(*asked_for: Any) -> Any:
        asked.append(time.monotonic())
        if not is_back.is_set():
            raise KafkaUnreachable("Kafka did not show offsets of group old job", next_step="wait")
        return ask(*asked_for)

    monkeypatch.setattr(ConsumerGroup, "committed_by", ask_group)
    monkeypatch.setattr(topic_changes, "JOIN_SECONDS", 1.0)
    going = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.2), "stop": stop})
    going.start()
    try:
        feed.send(first, [update(5, a=1)])
        wait_until_read(runs, first, len(values) + 1)
        new = feed.create("new")
        feed.send(new, values)
        wait_until(lambda: bool(asked))
        feed.send(first, [update(6, a=1)])
        wait_until_read(runs, first, len(values) + 2)
        assert begun(runs, new) == -1
        is_back.set()
        wait_until_read(runs, new, len(values))
    finally:
        stop.set()
        going.join()
    assert runs.rows(new) == folded([(at, "s", value) for at, value in enumerate(values)])
    assert min(later - earlier for earlier, later in pairwise(asked)) >= 1.0


@pytest.mark.parametrize("flaps", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_topic_that_flaps_is_read_once_it_stays(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, flaps: int
) -> None:
    """Each poll lists the topic with a new id: deleted topics are not read, and the lasting topic is not missed."""
    runs = runs.tuned(appear_seconds=0.05)
    first = feed.create("first")
    values = session(3)
    stop = threading.Event()
    begins = iter(range(flaps))
    feed.send(first, session(3))
    runs.run()
    listed = ClusterAdmin.topic_names
    flapping = f"{feed.family}.flapping"

    def re_create_first(admin: ClusterAdmin) -> frozenset[str]:
        if len(runs.reports) > 1 and (number := next(begins, None)) is not None:
            if number:
                feed.delete(flapping)
            feed.create_again("flapping")
            feed.send(flapping, [*values, update(5, a=number)])
        return listed(admin)

    monkeypatch.setattr(ClusterAdmin, "topic_names", re_create_first)
    going = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.05), "stop": stop})
    going.start()
    try:
        feed.send(first, [update(5, a=1)])
        wait_until_read(runs, flapping, len(values) + 1)
    finally:
        stop.set()
        going.join()
    assert next(begins, None) is None
    sent = [*values, update(5, a=flaps - 1)]
    assert runs.rows(flapping) == folded([(at, "s", value) for at, value in enumerate(sent)])
    assert len({row["epoch"] for row in read_table(runs.folders.ledger).to_pylist()}) == 2
    assert len({row["topic_id"] for row in read_table(runs.folders.ledger).to_pylist()}) == 2


def test_a_topic_that_is_gone_at_the_second_look_is_no_loss(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs.tuned(appear_seconds=0.2)
    first = feed.create("first")
    stop = threading.Event()
    listed = ClusterAdmin.topic_names
    gone = set[str]()
    feed.send(first, session(3))
    runs.run()

    def delete_after_first_look(admin: ClusterAdmin) -> frozenset[str]:
        names = listed(admin)
        for brief in {name for name in names if f"{feed.family}.brief" in name} - gone:
            feed.delete(brief)
            gone.add(brief)
        return names

    monkeypatch.setattr(ClusterAdmin, "topic_names", delete_after_first_look)
    going = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.1), "stop": stop})
    going.start()
    try:
        for number in range(3):
            brief = feed.create(f"brief{number}")
            wait_until(partial(gone.__contains__, brief))
            feed.send(first, [update(5 + number, a=1)])
            wait_until_read(runs, first, 5 + number)
        lasting = feed.create("lasting")
        wait_until_read(runs, lasting, 0)
    finally:
        stop.set()
        going.join()
    assert {row["topic"] for row in read_table(runs.folders.ledger).to_pylist()} == {first, lasting}
