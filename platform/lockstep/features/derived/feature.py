"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="derived",
    commands=("lockstep.features.derived.commands",),
    followers=("lockstep.features.derived.status:read_derived",),
    derived_assets=("lockstep.features.derived.asset:make_derived_asset",),
)
