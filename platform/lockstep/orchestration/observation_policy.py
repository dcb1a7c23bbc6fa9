"""Decides when the topics of a stream are observed in Dagster. Pure: no Dagster, no clock."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

SWEEP_SECONDS = 300.0
"""Interval of observations of all topics. The event costs some 25 ms, and a few kB of Dagster's storage."""
AGAIN_SECONDS = 60.0
"""After a new topic the next observation follows after a minute, by which time the stream should read it."""


class ObservationCursor(msgspec.Struct, frozen=True):
    """Progress of the observations.

    Attributes:
        looked_at: Time of the last observation of all topics, in seconds since 1970 (UTC).
        behind: Whether more topics had changed than one observation records.
    """

    looked_at: float = 0.0
    behind: bool = False


class TopicSnapshot(msgspec.Struct, frozen=True):
    """A due observation.

    Attributes:
        shows_all: Whether it must include the table of all topics, even without changes, and the ledger.
        after: The next cursor, if this observation leaves no topic over.
    """

    shows_all: bool
    after: ObservationCursor


def decide_observation(
    wanted: Collection[str], registered: Collection[str], sweep: ObservationCursor, now: float
) -> TopicSnapshot | None:
    """The due observation: at once for a new topic, otherwise at an interval; None when none is due."""
    if not set(wanted) <= set(registered):
        return TopicSnapshot(shows_all=True, after=ObservationCursor(looked_at=now - SWEEP_SECONDS + AGAIN_SECONDS))
    if not 0 <= now - sweep.looked_at < SWEEP_SECONDS:
        return TopicSnapshot(shows_all=True, after=ObservationCursor(looked_at=now))
    if sweep.behind:
        return TopicSnapshot(shows_all=False, after=ObservationCursor(looked_at=sweep.looked_at))
    return None
