"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="erase",
    head_fields=("erasure",),
    commands=("lockstep.features.erase.commands",),
    clean_up=("lockstep.features.erase.clean_up:INTERRUPTED",),
)
