"""`lockstep verify` without a broker: the complete proof of an offline stream's tables, over its log in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from lockstep.settings import KafkaSettings
from lockstep.table.layout import StreamFolders
from lockstep.verify import verify
from lockstep.verify.kafka_reader import BufferedRange, FoundTopic, Piece, WantedRange

if TYPE_CHECKING:
    from confluent_kafka import Message

    from lockstep.verify.report import VerifyReport
    from tests.support.offline_stream import Offline


@dataclass(frozen=True)
class MemoryTopicLog:
    """The log of an offline stream, with the interface of `KafkaTopicLog`."""

    offline: Offline
    first: int = 0

    def find_topics(self, topics: Iterable[str]) -> dict[str, FoundTopic]:
        """Return all topics, with one partition each."""
        return {topic: FoundTopic(self.offline.names + topic, 1) for topic in topics}

    def find_compacted(self, topics: Iterable[str]) -> frozenset[str]:
        """Return no topics."""
        del topics
        return frozenset()

    def read_ranges(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], BufferedRange]:
        """Return the stored ranges."""
        topics = self.offline.log.topics
        return {place: BufferedRange(self.first, len(topics[place[0]])) for place in partitions}

    def read(self, wanted: Sequence[WantedRange], *, committed: bool = True) -> Iterator[Piece]:
        """Read the messages, some at a time."""
        del committed
        for index, each in enumerate(wanted):
            messages = cast("list[Message]", self.offline.log.topics[each.topic])
            for at in range(each.start, each.until, PIECE_MESSAGES):
                until = min(at + PIECE_MESSAGES, each.until)
                yield Piece(index, messages[at:until], until)


PIECE_MESSAGES = 5
SETTINGS = KafkaSettings(bootstrap_servers="memory:0")


def prove(offline: Offline, folders: StreamFolders | None = None, *, first: int = 0) -> VerifyReport:
    """Prove its tables, or tables in other folders.

    Args:
        offline: The stream and its log.
        folders: Other folders.
        first: The first available offset of the log.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "KafkaTopicLog", lambda _: MemoryTopicLog(offline, first))
        return verify.verify_stream(offline.stream, folders or offline.folders, SETTINGS)
