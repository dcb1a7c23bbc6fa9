"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="health",
    commands=("lockstep.features.health.commands",),
    stream_checks=("lockstep.features.health.asset_check:make_health_check",),
    wiring={"HealthWatcher": "lockstep.features.health.sensor:HealthWatcher"},
)
