"""Status of derived tables: how far they are behind the tables that they read. Reads only, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path

from lockstep.declare.derived import Derived
from lockstep.errors import LockstepError
from lockstep.features.derived.derive import DerivedPlan, find_last_run, plan_derived
from lockstep.operations.followers import FollowerStatus
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders


def read_derived(declared: Iterable[Derived], root: Path) -> tuple[FollowerStatus, ...]:
    """Status of all these derived tables, by name."""
    return tuple(_read_one(each, root) for each in sorted(declared, key=lambda each: each.name))


def _read_one(derived: Derived, root: Path) -> FollowerStatus:
    names = tuple(source.name for source in derived.sources)
    try:
        plan = plan_derived(derived, root)
    except LockstepError as error:
        return FollowerStatus(name=derived.name, sources=names, problem=error.problem)
    read_at = [_find_read_at(root, each.stream, each.next_version) for each in plan.sources]
    known = [moment for moment in read_at if moment is not None]
    return FollowerStatus(
        name=derived.name,
        sources=names,
        behind_commits=_count_behind(plan),
        freshness_seconds=max(0.0, time.time() - min(known)) if known and len(known) == len(read_at) else None,
        last_run=find_last_run(derived, root),
        next_run=describe_next_run(plan),
    )


def _count_behind(plan: DerivedPlan) -> int | None:
    counts = [
        each.version + 1 - each.next_version
        for each in plan.sources
        if each.version is not None and each.next_version is not None
    ]
    return sum(max(0, count) for count in counts) if counts and len(counts) == len(plan.sources) else None


def _find_read_at(root: Path, stream: str, next_version: int | None) -> float | None:
    """The time of the newest commit that was read, in seconds since 1970."""
    if not next_version:
        return None
    entry = delta_log.read_entry(StreamFolders(stream, root).table, next_version - 1)
    return None if entry is None or entry.written_at is None else entry.written_at.astimezone(UTC).timestamp()


def describe_next_run(plan: DerivedPlan) -> str:
    """What the next run of a derived table does, in some words."""
    if plan.rebuild is not None:
        return f"rebuilds it: {plan.rebuild.value}"
    if any(each.version is None for each in plan.sources):
        return "waits for a table"
    return "goes on" if plan.is_due else "has nothing to do"
