"""Requests of a run to Kafka before a plan and before a commit."""

from __future__ import annotations

import dataclasses
import gc
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from lockstep import Every
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.kafka import admin
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.model.position import TopicIdPartition
from tests.support.feed import folded, session, update

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka.admin._config import ConfigResource

    from lockstep.engine.driver.metrics import BatchReport
    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

VALUES = session(4)


class Reports(list["BatchReport"]):
    """The reports of a run; a function is called after each commit, before the next plan."""

    def __init__(self, happen: Callable[[], None]) -> None:
        super().__init__()
        self._happen = happen

    def append(self, report: BatchReport) -> None:
        """Append a report and call the function."""
        super().append(report)
        self._happen()


def test_a_topic_re_created_after_its_description_is_found_before_the_commit(feed: Feed, runs: LocalRuns) -> None:
    """The plan uses an earlier description, and its task reads the new log at the old offset."""
    topic = feed.create("values")
    runs = runs.tuned(described_seconds=60.0)
    feed.send(topic, VALUES)
    read: list[tuple[int, int]] = []

    def noting(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            results = runner(plan)
            read.extend((item.reached.next_offset, item.counts.messages) for each in results for item in each.ranges)
            return results

        return run

    def replace_topic() -> None:
        if len(reports) == 1:
            feed.delete(topic)
            feed.create_again("values")
            feed.send(topic, [*VALUES, *(update(9 + n, a=1) for n in range(3))])

    reports = Reports(replace_topic)
    with pytest.raises(IntegrityLost, match="topic re-created"):
        dataclasses.replace(runs, reports=reports).run(trigger=Every(seconds=0.3), around=noting)
    assert read[0] == (len(VALUES), len(VALUES))
    assert len(read) > 1  # a batch of the new log was worked, and discarded
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(VALUES)])


def test_messages_that_come_during_a_commit_are_in_the_next_plan(feed: Feed, runs: LocalRuns) -> None:
    """The poll before that commit is not used for a plan."""
    topic = feed.create("values")
    stop = threading.Event()
    feed.send(topic, VALUES)

    def send_more() -> None:
        if len(reports) == 1:
            feed.send(topic, [update(6, a=1)])
        else:
            stop.set()

    reports = Reports(send_more)
    too_late = threading.Timer(30, stop.set)
    too_late.start()
    dataclasses.replace(runs, reports=reports).run(trigger=Every(seconds=0.3), stop=stop)
    too_late.cancel()
    assert [report.counts.messages for report in reports] == [len(VALUES), 1]


def test_a_view_of_many_partitions_is_asked_for_in_parts(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values", partitions=5)
    for partition in range(5):
        feed.send(topic, VALUES[: partition + 1], partition=partition)
    feed.expire(topic, 2, partition=3)
    cluster_admin = ClusterAdmin(make_admin_client(runs.settings.kafka), 15.0)
    whole = cluster_admin.view([topic])
    monkeypatch.setattr(admin, "REQUEST_PARTITIONS", 2)
    in_parts = cluster_admin.view_offsets(whole)
    assert cluster_admin.view([topic]) == whole == in_parts
    ends = [whole.ends[TopicIdPartition(whole.topics[topic].topic_id, partition)] for partition in range(5)]
    spans = [(each.start, each.stable_end, each.high_watermark) for each in ends]
    assert spans == [(0, 1, 1), (0, 2, 2), (0, 3, 3), (2, 4, 4), (0, 5, 5)]


def test_changed_retention_is_seen_after_a_while(feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who raises it against the alarm `headroom` would otherwise see the alarm until the run's end."""
    topic = feed.create("values", config={"retention.ms": "60000"})
    gone = feed.create("gone")
    cluster_admin = ClusterAdmin(make_admin_client(runs.settings.kafka), 15.0)
    assert cluster_admin.view([topic, gone]).topics[topic].retention_ms == 60_000
    feed.configure(topic, "retention.ms", "120000")
    feed.configure(topic, "cleanup.policy", "compact,delete")
    feed.delete(gone)
    assert cluster_admin.view([topic]).topics[topic].retention_ms == 60_000
    monkeypatch.setattr(admin, "POLICY_SECONDS", 0.0)
    found = cluster_admin.view([topic]).topics[topic]
    assert (found.retention_ms, found.deletes_only) == (120_000, False)


def test_what_one_look_has_found_is_its_own_while_another_one_asks_again(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls of several threads share a client."""
    first = feed.create("first")
    second = feed.create("second")
    client = make_admin_client(runs.settings.kafka)
    cluster_admin = ClusterAdmin(client, 15.0)
    describe = client.describe_configs
    cluster_admin.view([first])

    def describe_late(resources: list[ConfigResource], **more: Any) -> dict[ConfigResource, Future[Any]]:
        answers = describe(resources, **more)
        if [each.name for each in resources] == [second]:
            cluster_admin.view([first])
        return answers

    monkeypatch.setattr(admin, "POLICY_SECONDS", 0.0)
    monkeypatch.setattr(client, "describe_configs", describe_late)
    assert cluster_admin.view([first, second]).topics.keys() == {first, second}
    assert cluster_admin.view([second]).topics.keys() == {second}


def test_a_cluster_without_topics_of_a_stream_has_no_retention_to_ask_for(
    runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "POLICY_SECONDS", 0.0)
    assert ClusterAdmin(make_admin_client(runs.settings.kafka), 15.0).view([]).topics == {}


def test_retention_stays_known_while_kafka_does_not_answer_about_it(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values", config={"retention.ms": "60000"})
    client = make_admin_client(runs.settings.kafka)
    cluster_admin = ClusterAdmin(client, 15.0)
    before = cluster_admin.view([topic])

    def do_not_answer(resources: Sequence[ConfigResource], **_: object) -> dict[ConfigResource, Future[object]]:
        answer = Future[object]()
        answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))  # noqa: SLF001  # the client's name
        return dict.fromkeys(resources, answer)

    monkeypatch.setattr(client, "describe_configs", do_not_answer)
    monkeypatch.setattr(admin, "POLICY_SECONDS", 0.0)
    assert cluster_admin.view([topic]) == before


def test_descriptions_leave_nothing_in_memory(feed: Feed, runs: LocalRuns) -> None:
    """A run requests a description per batch and topic; a leak in each would fill a machine's memory within days."""
    topics = [feed.create("values"), feed.create("more")]
    client = make_admin_client(runs.settings.kafka)
    described = ClusterAdmin(client, 15.0).topics(topics)
    ids = _count_topic_ids()
    for cluster_admin in (*[ClusterAdmin(client, 15.0)] * 20, *(ClusterAdmin(client, 15.0) for _ in range(20))):
        assert cluster_admin.topics(topics) == described  # a new admin requests the rights to the topics as well
    assert _count_topic_ids() <= ids


def _count_topic_ids() -> int:
    return sum(isinstance(each, Uuid) for each in gc.get_objects())
