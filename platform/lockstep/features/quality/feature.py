"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="quality",
    commands=("lockstep.features.quality.commands",),
    forgetting=("lockstep.features.quality.kept_rows:forget_results",),
    jobs=("checks",),
    metrics=("lockstep.features.quality.metrics:read_rule_gauges",),
    stream_checks=("lockstep.features.quality.asset_check:make_table_check",),
)
