"""Brokers without topic ids: the start is refused by name, or topics are identified by their names."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import FuzzyWindow, NoIntegrity, Once, Ordered, Sequence, Strict, Suspend
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import KafkaError, LockstepError, TableError
from lockstep.kafka import admin as kafka_admin
from lockstep.kafka.topic_identity import TopicsWithoutIds
from lockstep.operations.inspect.plan import plan_restart
from lockstep.operations.inspect.topics import read_topics
from lockstep.settings import KafkaSettings, TopicIdentity
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session
from tests.support.local_runs import LocalRuns
from tests.support.older_broker import open_older_broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.integrity.base import IntegrityClass

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two addresses of a broker: direct, and through a proxy that hides topic ids."""
    with open_older_broker(tmp_path_factory.mktemp("older")) as (broker, _, address):
        yield broker.bootstrap_servers, address


def make_runs(
    older: tuple[str, str],
    tmp_path: Path,
    family: str,
    identity: TopicIdentity,
    integrity: IntegrityClass | None = None,
) -> tuple[LocalRuns, list[str]]:
    """Return runs over two topics of 10 and 30 updates, and the topics."""
    plain, address = older
    feed = Feed(plain, family)
    topics = [feed.create("first"), feed.create("second")]
    for topic, updates in zip(topics, (10, 30), strict=True):
        feed.send(topic, session(updates))
    kafka = KafkaSettings(bootstrap_servers=address, topic_identity=identity)
    stream = adding(feed.pattern) if integrity is None else adding(feed.pattern, integrity)
    return LocalRuns(stream, address, tmp_path, kafka=kafka), topics


def test_topics_without_ids_refuse_the_start_by_name(older: tuple[str, str], tmp_path: Path) -> None:
    """Two topics must not share a position: each batch would repeat the previous batch forever."""
    runs, topics = make_runs(older, tmp_path, "noid", TopicIdentity.ID)
    said = re.escape(f"{topics[0]} (one of 2 topics): they know Metadata up to version 9")
    for look in (runs.run, lambda: read_topics(runs.handle), lambda: plan_restart(runs.stream, runs.settings)):
        with pytest.raises(TopicsWithoutIds, match=said):
            look()
    with pytest.raises(TopicsWithoutIds, match=r"kafka\.topic_identity"):
        runs.run()
    assert not runs.folders.table.exists()


@pytest.mark.parametrize("integrity", [Ordered(), NoIntegrity()], ids=["ordered", "none"])
def test_topics_identified_by_name_are_read_once(
    older: tuple[str, str], tmp_path: Path, integrity: IntegrityClass
) -> None:
    runs, topics = make_runs(older, tmp_path, f"named{type(integrity).__name__}", TopicIdentity.NAME, integrity)
    assert runs.run() is RunOutcome.ENDED
    assert runs.run() is RunOutcome.ENDED
    for topic, updates in zip(topics, (10, 30), strict=True):
        assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(session(updates))])
    listed = read_topics(runs.handle)
    assert [(each.topic, each.topic_id, each.lag_messages) for each in listed.topics] == [
        (topic, f"name:{topic}", 0) for topic in topics
    ]
    proof = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert proof.status is InvariantStatus.PROVEN


CLASSES = [
    NoIntegrity(),
    Once(keep_ids=10),
    Ordered(),
    FuzzyWindow(lateness=timedelta(seconds=9)),
    Strict(evidence=Sequence()),
]


@pytest.mark.parametrize("integrity", CLASSES, ids=lambda each: type(each).__name__)
def test_no_class_lets_a_position_go_back(
    older: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, integrity: IntegrityClass
) -> None:
    """The commit does not trust that topic ids are distinct."""
    monkeypatch.setattr(kafka_admin, "find_identities", lambda ids, _: dict.fromkeys(ids, "shared"))
    family = f"shared{type(integrity).__name__}"
    runs, _ = make_runs(older, tmp_path, family, TopicIdentity.ID, integrity)
    with pytest.raises(TableError, match=r"has two positions|position of .* would go from"):
        runs.run()
    assert runs.handle.require_head().batch <= 1


CAPPED = {
    "strict": Strict(evidence=Sequence()),
    "strict, suspends": Strict(evidence=Sequence(), on_violation=Suspend(accept_loss=True)),
    "once": Once(keep_ids=10),
    "once, suspends": Once(keep_ids=10, on_violation=Suspend()),
}


@pytest.mark.parametrize("name", CAPPED)
def test_classes_that_promise_every_message_are_refused_where_topics_are_identified_by_name(
    older: tuple[str, str], tmp_path: Path, name: str
) -> None:
    family = f"capped{list(CAPPED).index(name)}"
    runs, topics = make_runs(older, tmp_path, family, TopicIdentity.NAME, CAPPED[name])
    with pytest.raises(LockstepError, match=rf"{topics[0]} \(one of 2\) is identified by its name"):
        runs.run()
    assert runs.handle.require_head().batch == 0


def test_the_proof_refuses_topics_without_ids(older: tuple[str, str], tmp_path: Path) -> None:
    runs, _ = make_runs(older, tmp_path, "unproven", TopicIdentity.NAME, Ordered())
    runs.run()
    kafka = KafkaSettings(bootstrap_servers=older[1])
    with pytest.raises(KafkaError, match="have no topic ids"):
        verify_stream(runs.stream, runs.folders, kafka)


def test_another_identity_is_another_topic(older: tuple[str, str], tmp_path: Path) -> None:
    """After an upgrade of the brokers, `Ordered` must not treat the topics as re-created and read them again."""
    runs, topics = make_runs(older, tmp_path, "upgraded", TopicIdentity.NAME, Ordered())
    runs.run()
    upgraded = LocalRuns(runs.stream, older[0], tmp_path)
    with pytest.raises(LockstepError, match=rf"knows topic {topics[0]} as name:{topics[0]}"):
        upgraded.run()
    assert {row.topic_id for row in upgraded.handle.positions.values()} == {f"name:{topic}" for topic in topics}


@pytest.mark.parametrize("integrity", [Ordered(), NoIntegrity()], ids=["ordered", "none"])
def test_a_topic_made_again_goes_on_from_the_old_position(
    older: tuple[str, str], tmp_path: Path, integrity: IntegrityClass
) -> None:
    """As docs/brokers.md warns, messages before that position are not read."""
    family = f"again{type(integrity).__name__}"
    runs, (first, _) = make_runs(older, tmp_path, family, TopicIdentity.NAME, integrity)
    runs.run()
    feed = Feed(older[0], family)
    before = runs.rows(first)
    feed.delete(first)
    feed.create_again("first")
    feed.send(first, session(40))
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(first)[: len(before)] == before
    assert [row[0] for row in runs.rows(first)[len(before) :]] == [at for at in range(11, 41) for _ in range(2)]
