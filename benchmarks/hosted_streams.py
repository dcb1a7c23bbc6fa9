"""The streams of the benchmark `host`: one topic each, updates of a state by rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from benchmarks.sensors import map_sensors
from lockstep import Every

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream

PREFIX = "hosted"


def make_hosted_streams(count: int, trigger_seconds: float) -> list[AnyStream]:
    """The streams."""
    return [
        dataclasses.replace(
            map_sensors(rf"{PREFIX}\.{number}"), name=f"{PREFIX}_{number}", trigger=Every(seconds=trigger_seconds)
        )
        for number in range(count)
    ]
