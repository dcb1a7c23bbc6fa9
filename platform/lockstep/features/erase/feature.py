"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="erase",
    head_fields=("erasure",),
    removed_sessions=("lockstep.features.erase.proof:ErasedSessions",),
    commit_kinds=(
        "lockstep.features.erase.commit_kinds:ERASE",
        "lockstep.features.erase.commit_kinds:ERASE_END",
        "lockstep.features.erase.commit_kinds:SIDE_REDACTION",
    ),
    commands=("lockstep.features.erase.commands",),
    clean_up=("lockstep.features.erase.clean_up:INTERRUPTED",),
)
