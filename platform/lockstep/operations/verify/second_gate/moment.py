"""Event time of one partition, as windows and timers of the proof see it. Pure."""

from __future__ import annotations

from lockstep.declare.place import Place
from lockstep.declare.record import Record

UNKNOWN_US = -(2**63)
"""The watermark before any time was seen."""
NO_LIMIT_US = 2**63 - 1


class Moment:
    """The watermark of a partition, and what is too far ahead to move it.

    Attributes:
        at_us: The watermark, in microseconds since 1970 (UTC).
        latest_us: Times beyond it are absurd.
    """

    __slots__ = ("at_us", "latest_us")

    def __init__(self) -> None:
        self.at_us, self.latest_us = UNKNOWN_US, NO_LIMIT_US

    def is_absurd(self, time_us: int) -> bool:
        """Whether nobody's clock can have shown it."""
        return time_us < 0 or time_us > self.latest_us

    def see(self, time_us: int) -> None:
        """Go on to a time: never back, and not to an absurd one."""
        if time_us > self.at_us and not self.is_absurd(time_us):
            self.at_us = time_us


def happened(place: Place, record: Record) -> int:
    """Event time of a message: its own, else Kafka's."""
    return place.event_time_us if place.event_time_us is not None else record.timestamp_ms * 1000
