"""Decides whether a host starts a stream. Pure: no clock, no files."""

from __future__ import annotations

import msgspec

from lockstep.engine.driver.startup import Launch
from lockstep.operations.durations import compute_back_off
from lockstep.table.head import Desired, Head

PAUSE_SECONDS = 5.0
PAUSE_SECONDS_MAX = 300.0
"""Pause before the next start of a stream that failed, doubled with each failure in a row."""
LASTING_SECONDS = 600.0
"""A run that lasted so long ends a row of failures."""


class StartDecision(msgspec.Struct, frozen=True):
    """The run to start, or the reason why there is none.

    Attributes:
        launch: Of the run; None to wait.
        reason: Why the stream waits; empty if it starts.
    """

    launch: Launch | None
    reason: str = ""


def decide_start(head: Head | None, cause: str) -> StartDecision:
    """Decide whether to start a stream.

    A stream that has never run continuously starts, as by hand. Otherwise its desired state decides, and stays.

    Args:
        head: The head of the table; None while there is none.
        cause: Cause of the start.
    """
    if head is None or head.epoch == 0 or head.desired is Desired.BOUNDED:
        version = 0 if head is None else head.desired_version
        return StartDecision(Launch(cause=cause, adopts_topics=True, desired_version=version))
    name = head.stream
    if head.desired is Desired.HALTED:
        return StartDecision(None, f"halted: lockstep status {name} has the findings, lockstep resume {name} ends it")
    if head.desired is not Desired.RUNNING:
        return StartDecision(None, f"{head.desired.value} ({head.reason}): lockstep start {name} starts it here")
    return StartDecision(Launch(cause=cause, adopts_topics=True, automatic=True))


def compute_pause_seconds(failures: int) -> float:
    """Seconds before the next start.

    Args:
        failures: Failed starts and runs in a row, 1 or more.
    """
    return compute_back_off(failures - 1, PAUSE_SECONDS, PAUSE_SECONDS_MAX)
