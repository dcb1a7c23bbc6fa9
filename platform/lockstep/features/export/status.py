"""Status of exports: hours to write and to withdraw. Reads only."""

from __future__ import annotations

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.export.export import KIND, ExportPlan, WaitReason, plan_export
from lockstep.operations.durations import format_count
from lockstep.operations.followers import DeclaredFollowers, FollowerStatus, describe_lost_position
from lockstep.operations.stream_table import NoTable
from lockstep.table.follower_positions import FollowerName, Reads
from lockstep.table.layout import StreamFolders


def read_exports(declared: DeclaredFollowers) -> tuple[FollowerStatus, ...]:
    """Read the status of the exports of all streams that declare an export."""
    exporting = (stream for stream in declared.streams if stream.export is not None)
    return tuple(_read_one(stream, declared) for stream in exporting)


def _read_one(stream: AnyStream, declared: DeclaredFollowers) -> FollowerStatus:
    status = FollowerStatus(kind=KIND, name=stream.name, sources=(stream.name,), reads=Reads.HOURS)
    try:
        plan = plan_export(stream, StreamFolders(stream.name, declared.root), target_bytes=declared.target_bytes)
    except NoTable:
        return msgspec.structs.replace(status, next_run="waits for a table")
    except LockstepError as error:
        return msgspec.structs.replace(status, problem=f"{error.problem}; {error.next_step}")
    lost = describe_lost_position(declared.root, FollowerName(KIND, stream.name)) if plan.exported else ""
    behind = len(plan.hours) + len(plan.undone)
    return msgspec.structs.replace(status, behind=behind, next_run=describe_next_run(plan), problem=lost)


def describe_next_run(plan: ExportPlan) -> str:
    """Describe the next run of an export in a few words."""
    work = {"withdraws": len(plan.undone), "writes": len(plan.hours)}
    if any(work.values()):
        return ", ".join(f"{verb} {format_count(count, 'hour')}" for verb, count in work.items() if count)
    waiting = [each for each in plan.waiting if each.reason is not WaitReason.OPEN]
    if waiting:
        return f"has nothing to do: {waiting[0].oldest_hour} waits, {waiting[0].reason.value}"
    return "has nothing to do"
