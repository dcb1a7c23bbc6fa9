"""Source of the messages of a task: Kafka, with the worker's own consumer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import msgspec

from lockstep.engine.protocol import PlannedRange
from lockstep.kafka.client import Configuration, RangeConsumer, make_consumer
from lockstep.kafka.reader import (
    ONE_BATCH,
    MessageRun,
    Range,
    UnreadableRange,
    explain_missing_offsets,
    find_next_readable,
    read_patiently,
    read_ranges,
)
from lockstep.model.finding import Hole
from lockstep.model.tuning import DEFAULT_TUNING, Tuning

CONSUMERS_MAX = 2
"""Consumers kept by a worker: that of the installation, and the one that reads a single batch of a corrupt log. The
streams of a driver take turns in its workers, and one with a corrupt log must not close the consumer of the others."""


@lru_cache(maxsize=CONSUMERS_MAX)
def _cached_consumer(configuration: bytes) -> RangeConsumer:
    """The worker's consumer, cached between tasks: a new connection costs a round trip to each broker.

    Not after it was silent: librdkafka 2.16 ignores each leader of a re-created topic while its leader epoch is below
    that of the topic's predecessor.
    """
    return make_consumer(msgspec.msgpack.decode(configuration))


class MessageSource(Protocol):
    """Source of the messages of ranges."""

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun | UnreadableRange]:
        """Read all ranges at once, each in offset order."""
        ...

    def ahead(self, beyond: Range) -> Iterator[MessageRun | UnreadableRange]:
        """Read a range without folding it."""
        ...

    def readable_again(self, corrupt: Range) -> int | None:
        """The first readable offset of a range that starts with corrupt batches; None if it cannot be determined."""
        ...

    def explain(self, planned: PlannedRange, gaps: Sequence[tuple[int, int]]) -> list[Hole] | UnreadableRange:
        """Offsets without a message, each with its cause; or the reason why the cause is unknown now."""
        ...


@dataclass(frozen=True)
class KafkaSource:
    """The cluster's log, read with the worker's consumer."""

    configuration: Configuration
    tuning: Tuning = DEFAULT_TUNING

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun | UnreadableRange]:
        """See `MessageSource.read`."""
        single = ONE_BATCH if any(item.single_batches for item in ranges) else {}
        configuration = {**self.configuration, **single}
        if any(item.patient for item in ranges):
            yield from read_patiently(configuration, ranges, self.tuning)
            return
        for run in read_ranges(_cached_consumer(msgspec.msgpack.encode(configuration)), ranges, self.tuning):
            if isinstance(run, UnreadableRange) and not run.is_corrupt:
                # librdkafka 2.16 ignores each leader of a re-created topic while its leader epoch is below that of
                # the topic's predecessor: this consumer may never hear of the partition again.
                _cached_consumer.cache_clear()
            yield run

    def ahead(self, beyond: Range) -> Iterator[MessageRun | UnreadableRange]:
        """See `MessageSource.ahead`."""
        return self.read([beyond])

    def readable_again(self, corrupt: Range) -> int | None:
        """See `MessageSource.readable_again`."""
        return find_next_readable(self.configuration, corrupt, self.tuning)

    def explain(self, planned: PlannedRange, gaps: Sequence[tuple[int, int]]) -> list[Hole] | UnreadableRange:
        """See `MessageSource.explain`."""
        position = planned.position
        return explain_missing_offsets(
            self.configuration, position.topic, position.partition, gaps, self.tuning, patient=planned.patient
        )
