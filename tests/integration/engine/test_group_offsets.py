"""Positions as offsets of a group: lag tools show them, and a missing table is not silently recreated."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from lockstep.engine.driver.committer import Publisher, check_table_present
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import LockstepError, TableError
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import Position, TopicNamePartition
from lockstep.operations.lifecycle import reset_new
from tests.support.feed import folded, session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


def group_of(runs: LocalRuns) -> ConsumerGroup:
    return ConsumerGroup(runs.settings.kafka, runs.stream.name)


def test_the_group_of_a_stream_stands_where_the_table_does(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=2)
    feed.send(topic, session(4), partition=0)
    feed.send(topic, session(8), partition=1)
    runs.run()
    expected = {TopicNamePartition(topic, 0): 5, TopicNamePartition(topic, 1): 9}
    assert expected == group_of(runs).published(expected)


def test_a_table_that_is_gone_is_refused_until_it_is_reset(feed: Feed, runs: LocalRuns) -> None:
    """A mistyped root has the same symptom, so a run never reads everything again by itself."""
    topic = feed.create("values")
    feed.send(topic, session(4))
    runs.run()
    shutil.rmtree(runs.folders.table.parent)
    with pytest.raises(TableError, match="had come to 5 offsets of 1 topics") as refused:
        runs.run()
    assert "lockstep reset adding" in refused.value.next_step
    assert not runs.folders.table.exists()
    reset_new(runs.stream.name, runs.settings)
    assert runs.run() is RunOutcome.ENDED
    assert folded([(n, "s", value) for n, value in enumerate(session(4))]) == runs.rows(topic)


def test_a_first_start_that_another_one_overtakes_does_not_take_its_table_for_lost(feed: Feed, runs: LocalRuns) -> None:
    """Between its check of the table and its request to Kafka, the other start creates its table and positions."""
    feed.send(feed.create("values"), session(4))

    class AskedLate(ConsumerGroup):
        def published(self, places: Iterable[TopicNamePartition]) -> dict[TopicNamePartition, int]:
            runs.run()
            return super().published(places)

    kafka = runs.settings.kafka
    late = AskedLate(kafka, runs.stream.name)
    admin = ClusterAdmin(make_admin_client(kafka), kafka.timeout_seconds)
    check_table_present(runs.stream, runs.folders, admin, late)
    assert any(late.published([TopicNamePartition(f"{feed.family}.values", 0)]).values())


def test_a_table_that_exists_is_not_reset(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    runs.run()
    with pytest.raises(LockstepError, match="only a stream without a table can be reset"):
        reset_new(runs.stream.name, runs.settings)


def test_a_group_that_is_not_there_is_forgotten_without_complaint(runs: LocalRuns) -> None:
    nobody = ConsumerGroup(runs.settings.kafka, "nobody-ever")
    assert nobody.published([TopicNamePartition("no-topic", 0)]) == {}
    nobody.forget()


def test_positions_that_kafka_refuses_again_and_again_are_warned_of_once(
    feed: Feed, runs: LocalRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer has joined the group, so Kafka accepts offsets from its members only."""
    topic = feed.create("values")
    group = group_of(runs)
    member = Consumer({"bootstrap.servers": feed.bootstrap_servers, "group.id": group.name})
    member.subscribe([topic])
    while not member.assignment():
        member.poll(0.1)
    with ThreadPoolExecutor(1) as background:
        publisher = Publisher(group, background)
        for offset in (1, 2):
            publisher.publish([Position(topic=topic, topic_id="id", partition=0, next_offset=offset)])
            background.submit(int).result()  # it is refused before the next publication
    member.close()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("positions are not shown to lag tools")
    assert group.published([TopicNamePartition(topic, 0)]) == {}
