"""What befalls a topic's log: retention, truncation, other lives. On a real broker."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.engine.feed import ANSWER_SECONDS

if TYPE_CHECKING:
    from lockstep.rehearsal.broker import Broker


def expire(bootstrap_servers: str, topic: str, before: int) -> None:
    """Retention comes early: the log of partition 0 starts at this offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    place = TopicPartition(topic, 0, before)
    low: int = admin.delete_records([place])[place].result(ANSWER_SECONDS).low_watermark
    assert low == before


def truncate(broker: Broker, topic: str) -> None:
    """The disk of partition 0 is lost, and the broker comes back with an empty log of the same topic id."""
    broker.kill()
    shutil.rmtree(broker.folder / "data" / f"{topic}-0")
    broker.restart()
