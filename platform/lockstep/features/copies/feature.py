"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="copies",
    head_fields=("imported",),
    needs=("history",),
    clean_up=("lockstep.features.copies.clean_up:PARTIAL_FILES",),
    commit_kinds=("lockstep.features.copies.commit_kinds:IMPORT",),
    commands=("lockstep.features.copies.commands",),
)
