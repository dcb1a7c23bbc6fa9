"""Faults outside of the messages that a gate judges."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """A fault that a class of integrity answers, and the cause in its finding."""

    UNDECODABLE = "undecodable"
    """The decoder or `envelope` refused a message."""
    TRANSFORM_FAILED = "transform raised"
    """The transform raised at a message."""
    HOLE = "hole"
    """Offsets without a message, for which nothing in Kafka accounts."""
    EXPIRED = "expired unread"
    """Retention removed offsets before they were read."""
    TRUNCATED = "log truncated"
    """The log ends before the position, or was truncated there and has grown since: records that were read are gone."""
    RECREATED = "topic re-created"
    """The topic was re-created: same name, other topic id."""
    TOPIC_DELETED = "topic gone"
    """The topic was deleted."""
    PARTITIONS_ADDED = "partitions grew"
    """A topic has more partitions than when it was subscribed."""
    SESSION_SPLIT = "session in two partitions"
    """Messages of one session arrived in two partitions."""
