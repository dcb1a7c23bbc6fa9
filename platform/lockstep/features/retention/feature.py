"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="retention",
    head_fields=("retention", "quarantine_retention"),
    commit_kinds=(
        "lockstep.features.retention.commit_kinds:RETENTION",
        "lockstep.features.retention.commit_kinds:QUARANTINE_RETENTION",
        "lockstep.features.retention.commit_kinds:SIDE_RETENTION",
    ),
    commands=("lockstep.features.retention.commands",),
    assets=("housekeeping",),
    jobs=("housekeeping",),
    stream_assets=("lockstep.features.retention.asset:make_housekeeping_asset",),
)
