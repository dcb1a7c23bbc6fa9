"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="history",
    head_fields=("savepoints", "origin", "promotion"),
    proofs=("lockstep.features.history.proof:check_origin",),
    commit_kinds=(
        "lockstep.features.history.commit_kinds:REWIND",
        "lockstep.features.history.commit_kinds:SAVEPOINT",
        "lockstep.features.history.commit_kinds:SHADOW",
        "lockstep.features.history.commit_kinds:PROMOTE",
    ),
    commands=("lockstep.features.history.commands",),
    kept_rows=("lockstep.features.history.kept_rows:find_shadowed_rows",),
    forgetting=("lockstep.features.history.kept_rows:forget_dropped",),
    clean_up=("lockstep.features.history.clean_up:DROPPED",),
    stream_finders=("lockstep.features.history.shadow:find_shadow",),
    table_listers=("lockstep.features.history.shadow:list_shadow_names",),
)
