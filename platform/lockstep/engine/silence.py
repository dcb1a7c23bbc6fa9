"""Partitions in which nothing comes: their watermark goes on by the clock, where the stream says so."""

from __future__ import annotations

import time
from collections.abc import Mapping

from lockstep.declare.event_time import EventTime
from lockstep.engine.plan import Position
from lockstep.integrity.time import microseconds
from lockstep.kafka.audit import Key
from lockstep.kafka.discovery import Ends


class Silence:
    """How long each partition has been silent, by this machine's monotonic clock."""

    def __init__(self, event_time: EventTime) -> None:
        advance = event_time.idle_advance
        self._advance_us = None if advance is None else microseconds(advance)
        self._since: dict[Key, tuple[int, float]] = {}

    def moved_on(
        self, positions: Mapping[Key, Position], ends: Mapping[Key, Ends], now_us: int, clock: float | None = None
    ) -> dict[Key, int]:
        """The watermarks of silent partitions; each moves on once in the time that makes it silent.

        Args:
            positions: Where each partition stands.
            ends: Where Kafka ends.
            now_us: The time, microseconds since 1970 (UTC).
            clock: Seconds of a monotonic clock; by default this machine's.
        """
        if self._advance_us is None:
            return {}
        clock, moved = time.monotonic() if clock is None else clock, {}
        for key, position in positions.items():
            offset, since = self._since.get(key, (-1, clock))
            drained = key in ends and ends[key].high_watermark <= position.next_offset
            if not drained or offset != position.next_offset:
                self._since[key] = (position.next_offset, clock)
            elif (clock - since) * 1_000_000 >= self._advance_us:
                self._since[key] = (position.next_offset, clock)
                if position.watermark_us is not None and now_us - self._advance_us > position.watermark_us:
                    moved[key] = now_us - self._advance_us
        return moved
