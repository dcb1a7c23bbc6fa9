"""Declared streams and their positions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lockstep.addresses import to_uri
from lockstep.declare.stream import AnyStream, format_source
from lockstep.errors import LockstepError, TableError
from lockstep.operations.inspect.undeclared import UndeclaredTable, find_undeclared_table
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import try_read_head
from lockstep.table.follower_positions import FollowerPositions, read_follower_positions
from lockstep.table.layout import StreamFolders, require_root


class DeclaredStream(msgspec.Struct, frozen=True):
    """One stream.

    Attributes:
        name: Its name.
        topics: The pattern of its topics.
        exclude: The pattern of excluded topics; None without one.
        integrity: Its class with its evidence, as declared.
        promise: The promise of the class, in a sentence.
        trigger: Trigger of batches, as declared.
        lookups: The lookup tables, as declared.
        followers: Kind and name of the followers that have read it, such as derived tables.
        table: Folder of its table.
        desired: "running", "bounded", "stopped", "held" or "halted"; "no table yet" before the first run.
        reason: Reason of the desired state.
        batch: Number of the last committed batch; 0 before the first.
        description: Description from the declaration.
    """

    name: str
    topics: str
    exclude: str | None
    integrity: str
    promise: str
    trigger: str
    lookups: tuple[str, ...]
    followers: tuple[str, ...]
    table: str
    desired: str
    reason: str
    batch: int
    description: str


class UnknownStream(LockstepError):
    """No such stream is declared.

    Attributes:
        name: The unknown name.
        table: The table that a stream of this name has written; None without one.
    """

    def __init__(self, name: str, known: Mapping[str, AnyStream], table: UndeclaredTable | None = None) -> None:
        listed = ", ".join(sorted(known)) or "none is declared"
        problem = f"no stream {name!r} in assets/"
        step = f"use one of: {listed}"
        if table is not None:
            problem = f"{problem}, but {table.problem}"
            step = f"{table.next_step}; declared are: {listed}"
        super().__init__(problem, next_step=step)
        self.name = name
        self.table = table


def find_stream(name: str, known: Mapping[str, AnyStream], root: Path) -> AnyStream:
    """The stream with a name.

    Raises:
        UnknownStream: Lists the declared streams, and any table of that name below the table root.
    """
    if name not in known:
        raise UnknownStream(name, known, find_undeclared_table(name, root))
    return known[name]


def list_declared_streams(known: Mapping[str, AnyStream], root: Path) -> tuple[DeclaredStream, ...]:
    """All streams by name; the reason of a stream reports a table that cannot be read."""
    positions = read_follower_positions(root)
    return tuple(_declared(known[name], StreamFolders(name, root), positions) for name in sorted(known))


def _declared(stream: AnyStream, folders: StreamFolders, positions: FollowerPositions) -> DeclaredStream:
    desired, reason, batch = _standing(folders)
    return DeclaredStream(
        name=stream.name,
        topics=stream.topics.pattern,
        exclude=stream.topics.exclude,
        integrity=format_source(stream.integrity),
        promise=stream.integrity.guarantee(),
        trigger=format_source(stream.trigger, with_defaults=True),
        lookups=tuple(map(format_source, stream.lookups)),
        followers=tuple(str(each.follower) for each in positions.list_of(stream.name)),
        table=to_uri(folders.table),
        desired=desired,
        reason=reason,
        batch=batch,
        description=stream.description,
    )


def _standing(folders: StreamFolders) -> tuple[str, str, int]:
    try:
        head = try_read_head(folders)
        if head is None:
            require_root(folders.root)
    except TableError as error:
        return "unreadable", error.problem, 0
    if head is None:
        return "no table yet", f"lockstep start {folders.stream}", 0
    return head.desired.value, head.reason, head.batch


class PartitionPosition(msgspec.Struct, frozen=True, order=True):
    """Position of one partition: the next offset to read."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int


class Positions(msgspec.Struct, frozen=True):
    """All positions of a stream after one batch.

    Attributes:
        stream: Name of the stream.
        batch: Number of the last committed batch: the table holds all before these offsets, and nothing after.
        partitions: By topic and number.
    """

    stream: str
    batch: int
    partitions: tuple[PartitionPosition, ...]


def read_positions(handle: StreamHandle) -> Positions:
    """The committed positions.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head.
    """
    head = handle.require_head()
    rows = handle.positions.values()
    listed = sorted(PartitionPosition(row.topic, row.topic_id, row.partition, row.until) for row in rows)
    return Positions(handle.stream.name, head.batch, tuple(listed))


def format_spark_offsets(found: Positions) -> str:
    """The option `startingOffsets` of Spark's Kafka source: it continues at the stream's positions."""
    offsets: dict[str, dict[str, int]] = {}
    for item in found.partitions:
        offsets.setdefault(item.topic, {})[str(item.partition)] = item.next_offset
    return json.dumps(offsets, sort_keys=True)
