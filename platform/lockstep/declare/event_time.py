"""How a stream treats event time: whose clock it believes, and what silence means."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from lockstep.errors import DeclarationError


@dataclass(frozen=True, kw_only=True)
class EventTime:
    """Event time of a stream.

    Each partition has a watermark: the largest event time it has seen (or what `Transform.watermark` says).
    Lateness, timers and the end of idle sessions are measured against it, so any split into batches gives the
    same rows.

    Attributes:
        max_skew: Event times further ahead of the moment a batch was planned than this move no watermark:
            the clock of their producer is wrong. An hour is more than clocks differ that are set at all.
        session_idle: A session that had no message for so long, by the watermark, ends; None for never.
        idle_advance: The watermark of a partition without messages for so long goes on by the clock, as much
            behind it; None to leave it where it is.
    """

    max_skew: timedelta = timedelta(hours=1)
    session_idle: timedelta | None = None
    idle_advance: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse what is no duration above zero."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if not isinstance(value, timedelta) or value <= timedelta(0):
                problem = "is not a duration above zero"
                raise DeclarationError(f"EventTime.{field.name}", value, problem, "for example timedelta(minutes=5)")
