"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="history",
    commands=("lockstep.features.history.commands",),
    stream_finders=("lockstep.features.history.shadow:find_shadow",),
    table_listers=("lockstep.features.history.shadow:list_shadow_names",),
)
