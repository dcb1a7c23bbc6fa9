"""Faults of a topic's log on a real broker: retention, truncation, replacement."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition

from tests.support.feed import ANSWER_SECONDS, kept_admin

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker


def expire(bootstrap_servers: str, topic: str, before: int) -> None:
    """Delete messages early, as retention does: the log of partition 0 starts at this offset."""
    place = TopicPartition(topic, 0, before)
    low: int = kept_admin(bootstrap_servers).delete_records([place])[place].result(ANSWER_SECONDS).low_watermark
    assert low == before


def truncate(broker: Broker, topic: str) -> None:
    """Remove the disk of partition 0: the broker restarts with an empty log of the same topic id."""
    broker.kill()
    shutil.rmtree(broker.folder / "data" / f"{topic}-0")
    broker.restart()


def replace_cluster(broker: Broker) -> None:
    """Remove all data: another cluster answers at the same address."""
    broker.kill()
    shutil.rmtree(broker.folder / "data")
    broker.restart()


def cut(broker: Broker, topic: str, keep: int) -> None:
    """Cut the log of partition 0 as a crash before a sync does: by whole batches, from the first past `keep`."""
    broker.kill()
    (segment,) = (broker.folder / "data" / f"{topic}-0").glob("*.log")
    held = segment.read_bytes()
    size = 0
    while _last_offset(held, size) < keep:
        size += 12 + int.from_bytes(held[size + 8 : size + 12])
    assert size < len(held)
    segment.write_bytes(held[:size])
    for index in (*segment.parent.glob("*index"), *segment.parent.glob("*.snapshot")):
        index.unlink()  # they describe removed records; the broker rebuilds them
    broker.restart()


def _last_offset(held: bytes, at: int) -> int:
    """Return the last offset of the record batch that starts at this byte (Kafka's record format 2)."""
    return int.from_bytes(held[at : at + 8]) + int.from_bytes(held[at + 23 : at + 27])
