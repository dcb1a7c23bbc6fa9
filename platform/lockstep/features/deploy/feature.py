"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="deploy",
    commands=("lockstep.features.deploy.commands",),
    code_finders=("lockstep.features.deploy.releases:find_current_code",),
    code_listers=("lockstep.features.deploy.releases:list_named_digests",),
)
