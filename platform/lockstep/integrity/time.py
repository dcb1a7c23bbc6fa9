"""Event time of a partition, as gates and timers see it. Moves with the messages, never back. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lockstep.declare.place import Place
from lockstep.declare.record import Record
from lockstep.integrity.verdict import Judgement, Verdict

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
BEGINNING: Final = -(2**63)
"""The watermark of a partition that has seen no time."""


class PartitionTime:
    """The watermark of one partition while a range is folded.

    Attributes:
        watermark_us: Event time up to which the partition has come, in microseconds since 1970 (UTC).
        latest_us: Event times beyond it are absurd: when the batch was planned, and the allowed skew.
    """

    __slots__ = ("latest_us", "watermark_us")

    def __init__(self, watermark_us: int | None = None, latest_us: int = 2**63 - 1) -> None:
        self.watermark_us = BEGINNING if watermark_us is None else watermark_us
        self.latest_us = latest_us

    @property
    def known(self) -> int | None:
        """The watermark; None as long as no time was seen."""
        return None if self.watermark_us == BEGINNING else self.watermark_us

    def is_absurd(self, time_us: int) -> bool:
        """Whether no producer with a clock can mean it: before 1970, or further ahead than clocks differ."""
        return not 0 <= time_us <= self.latest_us

    def see(self, time_us: int) -> None:
        """Move the watermark up to a time; absurd ones move nothing."""
        if self.watermark_us < time_us <= self.latest_us and time_us >= 0:
            self.watermark_us = time_us


def time_of(place: Place, record: Record) -> int:
    """When a message happened: as it says, else Kafka's timestamp; microseconds since 1970 (UTC)."""
    return record.timestamp_ms * 1000 if place.event_time_us is None else place.event_time_us


def microseconds(duration: timedelta) -> int:
    """A duration in microseconds."""
    return duration // MICROSECOND


def absurd(happened_us: int) -> Verdict:
    """The verdict on a time that no clock shows."""
    return Verdict(Judgement.QUARANTINE, "absurd event time", "since 1970, not in the far future", str(happened_us))


def late(happened_us: int, floor_us: int) -> Verdict:
    """The verdict on a message beyond the bound of lateness."""
    return Verdict(Judgement.LATE, "late", f"event time {floor_us} or later", str(happened_us))
