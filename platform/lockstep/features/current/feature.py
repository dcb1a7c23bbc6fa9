"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="current",
    option="current",
    commands=("lockstep.features.current.commands",),
    assets=("current",),
    jobs=("current",),
    query_tables=("lockstep.features.current.view:find_current_rows",),
    followers=("lockstep.features.current.status:read_current_tables",),
    follower_proofs=("lockstep.features.current.prove:prove_current",),
    stream_assets=("lockstep.features.current.asset:make_current_asset",),
)
