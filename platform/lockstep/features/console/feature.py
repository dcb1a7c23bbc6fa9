"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="console",
    needs=("quality",),
    commands=("lockstep.features.console.commands",),
)
