"""A single odd answer of a broker neither moves a position nor drops a topic, under any class."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec
import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Node

from lockstep import Ordered
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.kafka.admin import ClusterAdmin, ClusterView
from lockstep.kafka.client import ClusterClient, OffsetAnswers, make_admin_client
from lockstep.model.position import TopicIdPartition
from lockstep.settings import KafkaSettings
from tests.faults.matrix.drivers import wait_until
from tests.integration.engine.test_expired import holes
from tests.support.adding_stream import adding
from tests.support.feed import folded, session, snapshot, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin._topic import TopicDescription

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

    Odd = Callable[[ClusterView], ClusterView]

VALUES = session(4)
LEADERS = 3


def answer_oddly(monkeypatch: pytest.MonkeyPatch, odd: Odd, *looks: int) -> None:
    """Change the cluster's answers in some polls of a run; other answers stay as they are."""
    asked = [0]
    view = ClusterAdmin.view

    def odd_view(admin: ClusterAdmin, names: Iterable[str]) -> ClusterView:
        found = view(admin, names)
        asked[0] += 1
        return odd(found) if asked[0] in looks else found

    monkeypatch.setattr(ClusterAdmin, "view", odd_view)


def without(topic: str) -> Odd:
    def odd(found: ClusterView) -> ClusterView:
        kept = {name: each for name, each in found.topics.items() if name != topic}
        ids = {each.topic_id for each in kept.values()}
        return msgspec.structs.replace(
            found, topics=kept, ends={key: each for key, each in found.ends.items() if key[0] in ids}
        )

    return odd


def starting_at(start: int) -> Odd:
    def odd(found: ClusterView) -> ClusterView:
        moved = {key: msgspec.structs.replace(each, start=start) for key, each in found.ends.items()}
        return msgspec.structs.replace(found, ends=moved)

    return odd


def another_life(found: ClusterView) -> ClusterView:
    topics = {name: msgspec.structs.replace(each, topic_id="odd") for name, each in found.topics.items()}
    return msgspec.structs.replace(
        found, topics=topics, ends={TopicIdPartition("odd", key.partition): each for key, each in found.ends.items()}
    )


@pytest.mark.parametrize("look", [1, 2, 3, 4])
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
def test_a_topic_that_is_unknown_once_is_read_all_the_same(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, look: int, *, known: bool
) -> None:
    """A bounded run under Strict must not succeed with the topic unread and a lag of 0."""
    topic = feed.create("values")
    if known:
        feed.send(topic, VALUES[:2])
        runs.run()
    feed.send(topic, VALUES[2:] if known else VALUES)
    answer_oddly(monkeypatch, without(topic), look)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(VALUES)])


@pytest.mark.parametrize("odd", [starting_at(4), another_life], ids=["log start", "topic id"])
@pytest.mark.parametrize("look", [1, 2, 3, 4])
def test_an_odd_log_start_or_topic_id_is_looked_at_again_before_a_position_moves(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, look: int, odd: Odd
) -> None:
    """A class that may skip must not lose rows and count them as expired."""
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, Ordered()))
    feed.send(topic, VALUES[:2])
    runs.run()
    feed.send(topic, VALUES[2:])
    answer_oddly(monkeypatch, odd, look)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(VALUES)])
    assert holes(runs, topic) == []


def test_a_new_topic_begins_at_the_lowest_of_its_log_starts(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values")
    feed.send(topic, VALUES)
    answer_oddly(monkeypatch, starting_at(3), 1)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(VALUES)])


def test_a_log_start_that_rises_from_look_to_look_halts_a_strict_stream(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention continues during the repeated polls: each shows a different log start, and all show a loss."""
    topic = feed.create("values")
    feed.send(topic, VALUES[:2])
    runs.run()
    feed.send(topic, [update(4 + n, a=1) for n in range(20)] + [snapshot(30, a=1)])
    rising = iter(range(4, 20))

    def expire_more(found: ClusterView) -> ClusterView:
        feed.expire(topic, next(rising))
        return found

    answer_oddly(monkeypatch, expire_more, *range(1, 9))
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    assert [(each.cause, each.offset) for each in lost.value.findings] == [("expired unread", 2)]


@pytest.mark.parametrize("request_name", ["describe_topics", "describe_configs"])
def test_a_start_asks_again_about_rights_and_settings_where_a_broker_is_silent(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    """The client waits for one broker, which may just have died; any other request makes it use another broker."""
    topic = feed.create("values")
    ask = getattr(ClusterClient, request_name)
    seconds = list[float]()
    feed.send(topic, VALUES)

    def ask_silent_one(client: ClusterClient, asked: object, *, request_timeout: float, **more: object) -> object:
        seconds.append(request_timeout)
        answers = ask(client, asked, request_timeout=request_timeout, **more)
        if len(seconds) > 1:
            return answers
        unanswered: Future[object] = Future()
        unanswered.set_exception(KafkaException(ClientError(ClientError._TIMED_OUT)))  # noqa: SLF001  # the client's name
        return dict.fromkeys(answers, unanswered)

    monkeypatch.setattr(ClusterClient, request_name, ask_silent_one)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(VALUES)])
    assert seconds[0] < runs.settings.kafka.timeout_seconds / 2


@pytest.mark.parametrize("timeout_seconds", [1.0, 3.0, 5.0, 15.0, 60.0])
def test_any_timeout_has_time_for_a_second_broker(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, timeout_seconds: float
) -> None:
    """Snapshots for metrics and sensors wait for 3 and 5 s."""
    topic = feed.create("values")
    admin = ClusterAdmin(make_admin_client(KafkaSettings(bootstrap_servers=feed.bootstrap_servers)), timeout_seconds)
    ask = ClusterClient.request_descriptions
    seconds = list[float]()

    def ask_silent_one(client: ClusterClient, names: list[str], request_timeout: float) -> object:
        seconds.append(request_timeout)
        if len(seconds) > 1:
            return ask(client, names, timeout_seconds=60.0)
        unanswered: Future[object] = Future()
        unanswered.set_exception(KafkaException(ClientError(ClientError._TIMED_OUT)))  # noqa: SLF001  # the client's name
        return unanswered

    monkeypatch.setattr(ClusterClient, "request_descriptions", ask_silent_one)
    assert set(admin.topics([topic])) == {topic}
    assert seconds[0] <= timeout_seconds / 3


class StuckLeader(ClusterClient):
    """A client that shows three leaders, of which the first does not answer about offsets."""

    def request_descriptions(
        self, names: Sequence[str], timeout_seconds: float
    ) -> Future[list[TopicDescription | ClientError]]:
        answer = super().request_descriptions(names, timeout_seconds)
        for topic in answer.result():
            assert not isinstance(topic, ClientError)
            for partition in topic.partitions:
                partition.leader = Node(partition.id % LEADERS, "127.0.0.1", 9092)
        return answer

    def request_offsets(
        self, asked: Sequence[TopicPartition], isolation: IsolationLevel, timeout_seconds: float
    ) -> Future[OffsetAnswers]:
        if any(place.partition % LEADERS == 0 for place in asked):
            return Future()
        return super().request_offsets(asked, isolation, timeout_seconds)


def test_a_leader_that_stays_silent_is_waited_for_once(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans ask about starts and then ends, commits about ends alone: neither forgets the other's silent leader."""
    topic = feed.create("values", partitions=2 * LEADERS)
    kafka = KafkaSettings(bootstrap_servers=feed.bootstrap_servers)
    usual = ClusterAdmin(make_admin_client(kafka), 60.0)
    wait_until(lambda: not usual.view([topic]).unavailable, "all partitions of the new topic answer")
    admin = ClusterAdmin(StuckLeader(kafka), 60.0)
    first = admin.view([topic])
    monkeypatch.setattr("lockstep.kafka.admin.SILENT_LEADER_SECONDS", 120.0)
    began = time.monotonic()
    for _ in range(3):
        view = admin.view([topic])
        committed = admin.view_for_commit([topic], view)
    assert time.monotonic() - began < 100
    assert {place.partition for place in first.unavailable} == {0, LEADERS}
    assert first.unavailable == view.unavailable == committed.unavailable
