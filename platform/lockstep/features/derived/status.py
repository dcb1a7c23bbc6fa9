"""Status of derived tables: how far they are behind the tables that they read. Reads only, without Spark."""

from __future__ import annotations

from pathlib import Path

from lockstep.declare.derived import Derived
from lockstep.errors import LockstepError
from lockstep.features.derived.derive import KIND, DerivedPlan, describe_next_run, plan_derived
from lockstep.operations.followers import DeclaredFollowers, FollowerStatus, describe_lost_position
from lockstep.table.follower_positions import FollowerName


def read_derived(declared: DeclaredFollowers) -> tuple[FollowerStatus, ...]:
    """Read the status of all derived tables, by name."""
    by_name = sorted(declared.derived, key=lambda derived: derived.name)
    return tuple(_read_one(derived, declared.root) for derived in by_name)


def _read_one(derived: Derived, root: Path) -> FollowerStatus:
    names = tuple(source.name for source in derived.sources)
    try:
        plan = plan_derived(derived, root)
    except LockstepError as error:
        return FollowerStatus(kind=KIND, name=derived.name, sources=names, problem=error.problem)
    behind = _count_behind(plan)
    lost = "" if behind is None else describe_lost_position(root, FollowerName(KIND, derived.name))
    return FollowerStatus(
        kind=KIND,
        name=derived.name,
        sources=names,
        behind=behind,
        problem=lost,
        next_run=describe_next_run(plan),
    )


def _count_behind(plan: DerivedPlan) -> int | None:
    behind = 0
    for source in plan.sources:
        if source.version is None or source.next_version is None:
            return None
        # A checkpoint may have read a version that was written after the head was read.
        behind += max(0, source.version + 1 - source.next_version)
    return behind if plan.sources else None
