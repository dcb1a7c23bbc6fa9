"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="export",
    needs=("compaction",),
    option="export",
    commands=("lockstep.features.export.commands",),
    assets=("export",),
    jobs=("export",),
    followers=("lockstep.features.export.status:read_exports",),
    kept_rows=("lockstep.features.export.kept_rows:find_exported_rows",),
    undone_rows=("lockstep.features.export.undone:find_undone_rows",),
    copied_since=("lockstep.features.export.kept_rows:has_exported_rows",),
    withdrawal=("lockstep.features.export.kept_rows:withdraw_exported",),
    clean_up=("lockstep.features.export.clean_up:LEFTOVERS",),
    drop_limits=("lockstep.features.export.clean_up:find_droppable_hours",),
    stream_assets=("lockstep.features.export.asset:make_export_asset",),
)
