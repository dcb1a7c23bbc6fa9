"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="host",
    commands=("lockstep.features.host.commands",),
    starters=("lockstep.features.host.start:start_in_host",),
)
