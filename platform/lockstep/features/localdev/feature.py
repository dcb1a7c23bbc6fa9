"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="localdev",
    needs=("console", "quality"),
    commands=("lockstep.features.localdev.commands",),
)
