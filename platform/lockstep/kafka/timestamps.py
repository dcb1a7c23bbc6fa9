"""Kafka timestamps that a clock can have shown; others are counted, and left out of freshness."""

from __future__ import annotations

FIRST_TIMESTAMP_MS = 946_684_800_000
"""2000-01-01 (UTC). Seconds that a producer sends as milliseconds are in 1970; no such time is an age."""
NO_TIMESTAMP_MS = -1
"""Kafka's value for a message without a timestamp."""


def is_plausible_timestamp(timestamp_ms: int, latest_ms: int) -> bool:
    """Whether a clock can have shown a Kafka timestamp.

    Args:
        timestamp_ms: The timestamp, in ms since 1970 UTC.
        latest_ms: The latest plausible one: the time of reading plus what clocks may differ.
    """
    return FIRST_TIMESTAMP_MS <= timestamp_ms <= latest_ms
