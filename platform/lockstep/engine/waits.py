"""How long the oldest uncommitted message has waited, by this process's own clock. Pure."""

from __future__ import annotations

import math

import msgspec

IDLE_SECONDS = 1.0
"""Pause of a run that waits for anything but time: files to fill, a leader to come back. A bounded run that has just
committed does not pause. A look at Kafka costs some 10 ms of CPU."""


class Waits(msgspec.Struct, frozen=True):
    """Since when something waits.

    Attributes:
        since: Seconds of the process's monotonic clock; infinity when nothing waits. A run knows
            nothing of the time before its start, so it begins with "for ever".
    """

    since: float = -math.inf

    def looked(self, lag_messages: int, now: float) -> Waits:
        """After a look at Kafka."""
        if lag_messages == 0:
            return Waits(math.inf)
        return Waits(min(self.since, now))

    def planned(self, share: float, now: float) -> Waits:
        """After a batch took a share, from 0 to 1, of what waited: the oldest of each partition went first."""
        if math.isinf(self.since) or share >= 1:
            return Waits(now)
        return Waits(self.since + share * (now - self.since))

    def left_seconds(self, at_most: float, now: float) -> float:
        """Time until the oldest message has waited long enough."""
        return self.since + at_most - now
