"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="retention",
    head_fields=("retention", "quarantine_retention"),
    commands=("lockstep.features.retention.commands",),
    assets=("housekeeping",),
    jobs=("housekeeping",),
    stream_assets=("lockstep.features.retention.asset:make_housekeeping_asset",),
)
