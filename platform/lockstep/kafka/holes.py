"""Proves why offsets held no message, by a second read that sees uncommitted messages too."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.integrity.finding import Hole
from lockstep.kafka.client import Configuration, consumer
from lockstep.kafka.reader import Range, Unreadable, read


def explain(
    configuration: Configuration, topic: str, partition: int, gaps: Sequence[tuple[int, int]], *, deletes_only: bool
) -> list[Hole]:
    """The gaps with their causes, cut where the cause changes, in offset order.

    An offset that an uncommitted read sees belonged to an aborted transaction. What is still
    missing is a transaction's control record, provided that the topic only ever deletes whole
    segments; on a compacted topic it may be a message that was there once: unproven.
    """
    if not gaps:
        return []
    seen = _uncommitted(configuration, Range(topic, partition, gaps[0][0], gaps[-1][1]))
    missing_cause = "marker" if deletes_only and seen is not None else "unproven"
    holes: list[Hole] = []
    for start, until in gaps:
        for offset in range(start, until):
            cause = "aborted" if seen is not None and offset in seen else missing_cause
            if holes and holes[-1].until == offset and holes[-1].cause == cause and holes[-1].start >= start:
                holes[-1] = Hole(start=holes[-1].start, until=offset + 1, cause=cause)
            else:
                holes.append(Hole(start=offset, until=offset + 1, cause=cause))
    return holes


def _uncommitted(configuration: Configuration, item: Range) -> set[int] | None:
    """Offsets that hold any message at all; None when they could not be read."""
    reader = consumer({**configuration, "isolation.level": "read_uncommitted"})
    seen: set[int] = set()
    try:
        for run in read(reader, [item]):
            if isinstance(run, Unreadable):
                return None
            seen.update(message.offset() or 0 for message in run.messages)
    finally:
        reader.close()
    return seen
