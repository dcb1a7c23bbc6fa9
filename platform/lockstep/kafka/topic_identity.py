"""The identity of a topic: its id, or its name on brokers without topic ids.

Metadata answers up to version 9 have no topic ids; the client returns the zero id for each topic. Topics that share an
id would share positions and states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from lockstep.errors import LockstepError
from lockstep.kafka.api_versions import METADATA, TOPIC_IDS_SINCE, read_api_versions
from lockstep.settings import KafkaSettings, TopicIdentity

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero id, in the client's spelling."""
NAMED = "name:"
"""Start of a topic's identity by name; no topic id has a colon."""


class TopicsWithoutIds(LockstepError):
    """The brokers have no topic ids, or one id for several topics."""


def find_identities(ids: Mapping[str, str], settings: KafkaSettings) -> dict[str, str]:
    """The identity of each topic, by name.

    Args:
        ids: Topic ids of the brokers' answer, by name.
        settings: How topics are identified, and how to reach the cluster.

    Raises:
        TopicsWithoutIds: Topics are identified by id, and some have no id, or share one.
    """
    if settings.topic_identity is TopicIdentity.NAME:
        return {name: NAMED + name for name in ids}
    distinct = set(ids.values())
    if NO_ID in distinct or len(distinct) < len(ids):
        times = Counter(ids.values())
        shared = sorted(name for name, topic_id in ids.items() if topic_id == NO_ID or times[topic_id] > 1)
        raise make_topics_without_ids(shared, read_api_versions(settings).get(METADATA))
    return dict(ids)


def is_named(topic_id: str) -> bool:
    """Whether this is the identity of a topic by its name: a re-created topic is read as the old topic."""
    return topic_id.startswith(NAMED)


def make_topics_without_ids(topics: Sequence[str], highest: int | None) -> TopicsWithoutIds:
    """The refusal of topics.

    Args:
        topics: Topics without a unique id, sorted.
        highest: Highest version of `Metadata` that the brokers know; None if unknown.
    """
    versions = "their API versions are not known"
    if highest is not None:
        versions = f"they know {METADATA} up to version {highest}"
    return TopicsWithoutIds(
        f"the brokers have no separate topic id for {topics[0]} (one of {len(topics)} topics): {versions}, and topic "
        f"ids need version {TOPIC_IDS_SINCE}",
        next_step="upgrade the brokers, or set kafka.topic_identity to name: a topic that was re-created is then not "
        "recognized, and the classes Strict and Once are refused (docs/brokers.md)",
    )
