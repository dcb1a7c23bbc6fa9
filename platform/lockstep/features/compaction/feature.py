"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="compaction",
    commit_kinds=(
        "lockstep.features.compaction.commit_kinds:COMPACTION",
        "lockstep.features.compaction.commit_kinds:SIDE_COMPACTION",
    ),
    commands=("lockstep.features.compaction.commands",),
    assets=("compaction",),
    jobs=("compaction",),
    schedules=("minor_schedule",),
    stream_assets=("lockstep.features.compaction.asset:make_compaction_asset",),
    compaction_debt=("lockstep.features.compaction.debt:compute_debt",),
    wiring={"request_minor_compaction": "lockstep.features.compaction.asset:request_minor_compaction"},
)
