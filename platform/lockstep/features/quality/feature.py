"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="quality",
    commands=("lockstep.features.quality.commands",),
    jobs=("checks",),
    stream_checks=("lockstep.features.quality.asset_check:make_table_check",),
)
