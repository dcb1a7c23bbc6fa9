"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="delivery",
    option="deliveries",
    commands=("lockstep.features.delivery.commands",),
    assets=("delivery",),
    jobs=("delivery",),
    followers=("lockstep.features.delivery.status:read_deliveries",),
    follower_proofs=("lockstep.features.delivery.prove:prove_deliveries",),
    kept_rows=("lockstep.features.delivery.kept_rows:find_delivered_rows",),
    drop_limits=("lockstep.features.delivery.kept_rows:find_droppable_hours",),
    diagnoses=("lockstep.features.delivery.diagnoses:check_deliveries",),
    stream_assets=("lockstep.features.delivery.asset:make_delivery_asset",),
)
