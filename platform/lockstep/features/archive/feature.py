"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="archive",
    head_fields=("archive",),
    commit_kinds=("lockstep.features.archive.commit_kinds:ARCHIVE_RETENTION",),
    proofs=("lockstep.features.archive.proof:check_archive",),
    commands=("lockstep.features.archive.commands",),
    metrics=("lockstep.features.archive.metrics:read_archive_gauges",),
    clean_up=("lockstep.features.archive.retention:OLD_MESSAGES",),
)
