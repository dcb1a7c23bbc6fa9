"""When the topics of a stream are looked at. Pure: no Kafka, no Dagster, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection

SWEEP_SECONDS = 300.0
"""How often all topics are looked at. The event costs some 25 ms, and a few kB of Dagster's storage."""
AGAIN_SECONDS = 60.0
"""After a new topic they are looked at again after a minute, by which time the stream should read it."""


class Sweep(msgspec.Struct, frozen=True):
    """When the topics were looked at last.

    Attributes:
        looked_at: When all topics were shown, in seconds since 1970 (UTC).
        behind: Whether more topics had changed than one look writes down.
    """

    looked_at: float = 0.0
    behind: bool = False


class TopicLook(msgspec.Struct, frozen=True):
    """A look at the topics.

    Attributes:
        shows_all: Whether the table of all topics is due whatever has changed, and with it the ledger.
        after: The sweep after it, if it leaves nothing over.
    """

    shows_all: bool
    after: Sweep


def due(wanted: Collection[str], registered: Collection[str], sweep: Sweep, now: float) -> TopicLook | None:
    """The look that is due: at once when a topic is new, else in turns; None when there is none."""
    if not set(wanted) <= set(registered):
        return TopicLook(shows_all=True, after=Sweep(looked_at=now - SWEEP_SECONDS + AGAIN_SECONDS))
    if not 0 <= now - sweep.looked_at < SWEEP_SECONDS:
        return TopicLook(shows_all=True, after=Sweep(looked_at=now))
    if sweep.behind:
        return TopicLook(shows_all=False, after=Sweep(looked_at=sweep.looked_at))
    return None
