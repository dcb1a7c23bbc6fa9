"""Status of current tables: how far they are behind the tables of their streams. Reads only."""

from __future__ import annotations

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.current.refresh import KIND, describe_next_refresh, plan_current
from lockstep.operations.followers import DeclaredFollowers, FollowerStatus, describe_lost_position
from lockstep.operations.stream_table import NoTable
from lockstep.table.follower_positions import FollowerName
from lockstep.table.layout import StreamFolders


def read_current_tables(declared: DeclaredFollowers) -> tuple[FollowerStatus, ...]:
    """Read the status of the current tables of all streams that declare it."""
    return tuple(_read_one(stream, declared) for stream in declared.streams if stream.current)


def _read_one(stream: AnyStream, declared: DeclaredFollowers) -> FollowerStatus:
    status = FollowerStatus(kind=KIND, name=stream.name, sources=(stream.name,))
    try:
        plan = plan_current(stream, StreamFolders(stream.name, declared.root))
    except NoTable:
        return msgspec.structs.replace(status, next_run="waits for a table")
    except LockstepError as error:
        return msgspec.structs.replace(status, problem=f"{error.problem}; {error.next_step}")
    is_made = plan.batch is not None
    lost = describe_lost_position(declared.root, FollowerName(KIND, stream.name)) if is_made else ""
    behind = None if plan.batch is None else max(0, plan.newest_batch - plan.batch)
    return msgspec.structs.replace(status, behind=behind, next_run=describe_next_refresh(plan), problem=lost)
