"""Tells Kafka where a stream stands, and asks it once: was there a table where none is now?"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from lockstep.engine.hands import AnyStream
from lockstep.engine.plan import Position
from lockstep.errors import KafkaError, TableError
from lockstep.kafka.discovery import Discovery
from lockstep.kafka.group import Group, Place
from lockstep.table import log
from lockstep.table.layout import StreamFolders

LOG = logging.getLogger("lockstep")

PUBLISH_SECONDS = 10.0
"""Lag tools look once a minute; a broker keeps each publication as a message."""


class Publisher:
    """Publishes positions now and then, on a thread of its own: it is a courtesy, and never holds up a batch."""

    def __init__(self, group: Group, courier: ThreadPoolExecutor) -> None:
        self._group, self._courier = group, courier
        self._published = time.monotonic() - PUBLISH_SECONDS

    def note(self, positions: Iterable[Position]) -> None:
        """Publish, unless that was done a moment ago."""
        if time.monotonic() - self._published >= PUBLISH_SECONDS:
            self.publish(positions)

    def publish(self, positions: Iterable[Position]) -> None:
        """Publish now."""
        self._published = time.monotonic()
        self._courier.submit(self._publish, {(p.topic, p.partition): p.next_offset for p in positions})

    def compare(self, positions: Iterable[Position]) -> None:
        """Warn when Kafka knows that the stream had come further than its table says."""
        self._courier.submit(self._compare, {(p.topic, p.partition): p.next_offset for p in positions})

    def _compare(self, offsets: dict[Place, int]) -> None:
        try:
            published = self._group.published(offsets)
        except KafkaError as error:
            LOG.warning("nobody can tell whether this table is the newest of its stream: %s", error.problem)
            return
        ahead = {place: offset - offsets[place] for place, offset in published.items() if offset > offsets[place]}
        if ahead:
            LOG.warning(
                "group %s in Kafka is ahead of this table by %s offsets in %s partitions: the table was restored from "
                "an older copy, or another table root is written for this stream; what is missing here is read again",
                self._group.name,
                sum(ahead.values()),
                len(ahead),
            )

    def _publish(self, offsets: dict[tuple[str, int], int]) -> None:
        try:
            self._group.publish(offsets)
        except KafkaError as error:
            LOG.warning("positions are not shown to lag tools: %s", error.problem)


def refuse_lost_table(stream: AnyStream, folders: StreamFolders, discovery: Discovery, group: Group) -> None:
    """A mistyped table root must not read everything again, as if the stream were new.

    Raises:
        TableError: There is no table, but Kafka knows how far one had come.
        KafkaError: Kafka does not answer.
    """
    if log.exists(folders.table):
        return
    topics = discovery.topics(stream.topics.select(discovery.topic_names())).values()
    known = group.published((topic.name, partition) for topic in topics for partition in range(topic.partitions))
    if any(known.values()) and not log.exists(folders.table):  # else another first start was faster
        raise TableError(
            f"{folders.table} does not exist, but stream {stream.name} had come to {sum(known.values())} offsets of "
            f"{len({topic for topic, _ in known})} topics, says group {group.name} in Kafka",
            next_step=f"correct table_root; or, to read all of it into a new table: lockstep reset {stream.name} --new",
        )
