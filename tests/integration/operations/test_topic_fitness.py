"""The doctor's verdict on a topic follows from the topic's settings and the class that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep import NoIntegrity, Sequence, Strict
from lockstep.errors import KafkaError
from lockstep.kafka.admin import TopicSettings, read_topic_settings
from lockstep.kafka.client import make_admin_client
from lockstep.operations.doctor.diagnosis import Level
from lockstep.operations.doctor.kafka import Fitness, check_fitness
from lockstep.settings import KafkaSettings

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed

STRICT: IntegrityClass = Strict(evidence=Sequence())
FUZZY: IntegrityClass = NoIntegrity()
SOUND = {"cleanup.policy": "delete", "min.insync.replicas": "2", "retention.ms": "604800000"}
EIGHT_MIB = 8 * 1024 * 1024


def looks(integrity: IntegrityClass, replicas: int = 3, in_sync: int = 3, **settings: str) -> dict[str, Fitness]:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    topic = TopicSettings(topic="t", replicas=replicas, in_sync=in_sync, settings={**SOUND, **dotted})
    return {look.setting: look for look in check_fitness(topic, integrity, message_bytes_max=EIGHT_MIB)}


def bad(found: dict[str, Fitness]) -> dict[str, Level]:
    return {name: look.level for name, look in found.items() if look.level is not Level.OK}


@pytest.mark.parametrize("integrity", [STRICT, FUZZY])
def test_a_topic_kept_as_it_should_be_gets_no_warning(integrity: IntegrityClass) -> None:
    found = looks(integrity)
    assert len(found) == 8
    assert bad(found) == {}


@pytest.mark.parametrize(
    ("change", "setting", "strict", "fuzzy"),
    [
        ({"cleanup_policy": "compact"}, "cleanup.policy", Level.ERROR, Level.OK),
        ({"cleanup_policy": "compact,delete"}, "cleanup.policy", Level.ERROR, Level.OK),
        ({"unclean_leader_election_enable": "true"}, "unclean.leader.election.enable", Level.ERROR, Level.OK),
        ({"min_insync_replicas": "1"}, "min.insync.replicas", Level.WARNING, Level.OK),
        ({"min_insync_replicas": "3"}, "min.insync.replicas", Level.WARNING, Level.OK),
        ({"in_sync": 1}, "min.insync.replicas", Level.ERROR, Level.ERROR),
        ({"replicas": 1, "in_sync": 1, "min_insync_replicas": "1"}, "replication.factor", Level.WARNING, Level.OK),
        ({"retention_ms": "3600000"}, "retention.ms", Level.WARNING, Level.WARNING),
        ({"retention_ms": "-1"}, "retention.ms", Level.OK, Level.OK),
        ({"retention_bytes": "1073741824"}, "retention.bytes", Level.WARNING, Level.OK),
        ({"message_timestamp_type": "LogAppendTime"}, "message.timestamp.type", Level.WARNING, Level.WARNING),
        ({"max_message_bytes": "9000000"}, "max.message.bytes", Level.WARNING, Level.WARNING),
    ],
)
def test_each_setting_is_judged_by_what_the_class_needs(
    change: dict[str, object], setting: str, strict: Level, fuzzy: Level
) -> None:
    for integrity, level in ((STRICT, strict), (FUZZY, fuzzy)):
        found = looks(integrity, **change)  # type: ignore[arg-type]  # one dict of all arguments
        assert bad(found) == ({} if level is Level.OK else {setting: level})
        assert bool(found[setting].remedy) is (level is not Level.OK)


def test_a_remedy_can_be_typed() -> None:
    found = looks(STRICT, cleanup_policy="compact")["cleanup.policy"]
    assert found.reason == "compaction removes messages in the middle, and Strict refuses such a topic"
    assert found.remedy == (
        "kafka-configs --alter --entity-type topics --entity-name t --add-config cleanup.policy=delete"
    )


def test_a_real_topic_is_asked_for_its_copies_and_settings(feed: Feed) -> None:
    admin = make_admin_client(KafkaSettings(bootstrap_servers=feed.bootstrap_servers))
    names = [feed.create(name, 2, {"retention.ms": "60000"}) for name in ("b", "a")]

    found = read_topic_settings(admin, names, 15.0)

    assert [topic.topic for topic in found] == sorted(names)
    assert (found[0].replicas, found[0].in_sync) == (1, 1)
    levels = {look.setting: look.level for look in check_fitness(found[0], STRICT, message_bytes_max=EIGHT_MIB)}
    assert {name for name, level in levels.items() if level is not Level.OK} == {"replication.factor", "retention.ms"}


def test_a_topic_that_is_not_there_is_an_error_and_no_sound_topic(broker: Broker, topic_family: str) -> None:
    admin = make_admin_client(KafkaSettings(bootstrap_servers=broker.bootstrap_servers))
    with pytest.raises(KafkaError, match="about how topics are kept: Broker: Unknown topic"):
        read_topic_settings(admin, [topic_family], 15.0)
