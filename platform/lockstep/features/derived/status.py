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
    return tuple(_read_one(each, declared.root) for each in sorted(declared.derived, key=lambda each: each.name))


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
    counts = [
        each.version + 1 - each.next_version
        for each in plan.sources
        if each.version is not None and each.next_version is not None
    ]
    return sum(max(0, count) for count in counts) if counts and len(counts) == len(plan.sources) else None
