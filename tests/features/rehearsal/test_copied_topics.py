"""Copies of topics: names, shares of the load, and the error if Kafka forbids them."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError as ClientError

from lockstep.errors import KafkaError
from lockstep.features.rehearsal.copied_topics import (
    create_copies,
    delete_copies,
    explain_refusal,
    find_leftovers,
    make_copies_pattern,
    name_copies,
    share_load,
)
from lockstep.features.rehearsal.load_plan import PresentLoad
from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.kafka.client import make_admin_client
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.operations.plan_frame import Refused
from lockstep.settings import KafkaSettings
from tests.support.adding_stream import adding

STREAM = adding("t")
TOPICS = (("a", "1", 2), ("b", "2", 1))
VIEW = ClusterView(
    cluster_id="c",
    topics={name: Topic(name=name, topic_id=of, partitions=count, deletes_only=True) for name, of, count in TOPICS},
    ends={
        TopicIdPartition("1", 0): PartitionOffsets(10, 40, 40),
        TopicIdPartition("1", 1): PartitionOffsets(0, 10, 10),
        TopicIdPartition("2", 0): PartitionOffsets(5, 5, 5),
    },
)


def test_copies_of_a_stage_are_told_from_those_of_others_by_their_names() -> None:
    names = name_copies(STREAM, 2, ["books.eth"])
    assert names == {"books.eth": "lockstep.loadtest.adding.2.books.eth"}
    assert adding(make_copies_pattern(STREAM, 2)).topics.select(names.values()) == set(names.values())
    assert adding(make_copies_pattern(STREAM, 1)).topics.select(names.values()) == frozenset()
    assert find_leftovers([*names.values(), "books.eth", "lockstep.loadtest.adding2.1.x"], "adding") == (
        "lockstep.loadtest.adding.2.books.eth",
    )


def test_a_name_that_kafka_would_refuse_is_refused_before() -> None:
    with pytest.raises(Refused, match="more than 249 characters"):
        name_copies(STREAM, 1, ["x" * 240])


def test_without_a_present_load_partitions_share_by_what_kafka_has() -> None:
    nothing = PresentLoad(per_second=0.0, mean_per_second=0.0, partitions={}, seconds=1.0)
    assert share_load(nothing, VIEW, ["a", "b"]) == {("a", 0): 0.75, ("a", 1): 0.25}
    busy = PresentLoad(
        per_second=4.0,
        mean_per_second=1.0,
        partitions={TopicNamePartition("a", 1): 3.0, TopicNamePartition("b", 0): 1.0},
        seconds=1.0,
    )
    assert share_load(busy, VIEW, ["a", "b"]) == {TopicNamePartition("a", 1): 0.75, TopicNamePartition("b", 0): 0.25}


def test_where_kafka_forbids_topics_the_missing_rights_are_named() -> None:
    admin = make_admin_client(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    for code in (ClientError.TOPIC_AUTHORIZATION_FAILED, ClientError.POLICY_VIOLATION):
        refused = explain_refusal(admin, "books", "copy", ClientError(code))
        assert isinstance(refused, Refused)
        assert "CREATE" in refused.next_step
    assert not isinstance(explain_refusal(admin, "books", "copy", ClientError(ClientError.REQUEST_TIMED_OUT)), Refused)


def test_where_kafka_does_not_answer_the_error_says_so() -> None:
    """An equally long timeout in Python could expire first, with an empty message."""
    admin = make_admin_client(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    for _ in range(6):
        with pytest.raises(KafkaError, match="did not answer about the deletion of topic copy"):
            delete_copies(admin, ["copy"], 0.1)
        with pytest.raises(KafkaError, match="did not answer about the new topic copy"):
            create_copies(admin, "books", {"copy": 1}, 0.1)
