"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="export",
    option="export",
    commands=("lockstep.features.export.commands",),
    assets=("export",),
    jobs=("export",),
    stream_assets=("lockstep.features.export.asset:make_export_asset",),
)
