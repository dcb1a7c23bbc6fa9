"""Shadows: a separate stream with new code, that started with the state and the positions of another stream's batch.

docs/decisions/0028 lists the inherited parts, with reasons; docs/shadow.md is the way through it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
from deltalake.exceptions import DeltaError

from lockstep.control.heartbeat import is_writer_alive
from lockstep.declare.discovery import digest_code, find_code, load_streams
from lockstep.declare.naming import NAME
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.planner import find_next_hour
from lockstep.engine.driver.startup import check_state_types
from lockstep.errors import LockstepError, TableError, format_some
from lockstep.features.history.commit_kinds import SHADOW
from lockstep.features.history.rewind import (
    SAVEPOINT_NAME,
    RewindReason,
    count_archived,
    describe_gone,
    find_state_files,
    find_target,
    read_rewound_rows,
)
from lockstep.features.history.savepoint import drop_named_savepoint, make_savepoint
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.plan_frame import (
    Description,
    Labelled,
    Obstacle,
    Plan,
    Prepared,
    Records,
    Unit,
    drop_accepted,
    make_changed,
)
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import try_read_head
from lockstep.operations.whole_stream import delete_stream
from lockstep.settings import Settings
from lockstep.state.relocation import RelocatedState, take_state
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.create import open_tables
from lockstep.table.first_batch import FirstBatch, check_empty, commit_first_batch
from lockstep.table.head import FIRST_BATCH, FIRST_GENERATION, Head, Origin, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import LedgerStamp, make_kept_row, read_position
from lockstep.table.schema_evolution import find_defaulted_columns
from lockstep.table.written_by import WrittenBy

SUFFIX = "_shadow"
"""Of the default name."""

PIN = "shadow-"
"""Names of savepoints that keep the first batches of shadows start so."""
PIN_CHARACTERS = 47
PIN_DIGEST_CHARACTERS = 12
"""Of a name that does not fit: with the dot the 60 characters that the name of a savepoint may have."""


DROPPED = ".dropped"
"""Ends the name of the folder of a shadow that is being deleted; the name of no stream has a dot."""


class ShadowedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a shadow.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        begins_at: The first offset that the shadow reads.
        position: The position of the stream.
        archived: Offsets up to `position` that the shadow reads from the archive: Kafka no longer has them.
        expired: Offsets from `begins_at` on that neither Kafka nor the archive has; of a topic that is deleted, up to
            `position`.
        is_gone: The topic was deleted or re-created; the shadow does not read it.
    """

    topic: str
    partition: int
    begins_at: int
    position: int
    archived: int
    expired: int
    is_gone: bool = False


class ShadowPlan(Plan, frozen=True, kw_only=True):
    """The plan of a shadow's start.

    Attributes:
        name: Name of the shadow: its tables, and its consumer group.
        from_batch: The batch whose state and positions it inherits.
        last_batch: The last batch of the stream now.
        partitions: The inherited partitions, and newer partitions of its topics, which it reads from their
            first offset.
        to_read: Offsets up to the positions of the stream.
        state_bytes: Bytes of state files that are read for the copy.
        migrated: Differences of the state types that `migrate` handles.
    """

    PLAN: ClassVar[str] = "the shadow"

    name: str
    from_batch: int
    last_batch: int
    partitions: tuple[ShadowedPartition, ...]
    to_read: int
    state_bytes: int
    migrated: tuple[str, ...]

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("shadow", self.name),
            Labelled("from batch", self.from_batch),
            Labelled("last batch of the stream", self.last_batch),
            Labelled("state files to read", self.state_bytes, Unit.BYTES),
            Labelled("offsets up to the stream", self.to_read),
            Labelled("of these from the archive", sum(each.archived for each in self.partitions)),
        )
        records = (Records.of("partitions", self.partitions, "topic partition begins_at position archived expired"),)
        return self.make_description("shadow", facts, records=records, notes=describe_migrated(self.migrated))


def describe_migrated(migrated: Iterable[str]) -> tuple[str, ...]:
    """List the differences of state types that `migrate` handles."""
    return tuple(f"migrated: {each}" for each in migrated)


class ShadowShown(msgspec.Struct, frozen=True, kw_only=True):
    """A shadow, for people.

    Attributes:
        name: Its name.
        stream: The stream that it is a shadow of.
        from_batch: The batch of that stream from which it started.
        begun_at: When (UTC).
        code: The place of its declaration; empty for `assets/`.
        batch: Its last batch.
        desired: Its desired state.
        cause: The reason and the operator.
    """

    name: str
    stream: str
    from_batch: int
    begun_at: datetime
    code: str
    batch: int
    desired: str
    cause: str

    def describe(self) -> Description:
        """Return its description after its start."""
        return Description(
            title=f"{self.name}: started",
            facts=(Labelled("stream", self.stream), Labelled("from batch", self.from_batch)),
            next_steps=(
                f"lockstep run {self.name} --available-now, then lockstep shadow diff {self.stream} {self.name}",
            ),
        )


class ShadowCodeChanged(LockstepError):
    """The code of a shadow differs from its code at the start: its rows would be those of two folds.

    Attributes:
        name: Name of the shadow.
    """

    def __init__(self, name: str, origin: Origin) -> None:
        super().__init__(
            f"the code of shadow {name} at {origin.code} differs from its code at the start",
            next_step=f"put that code back; or start again: lockstep shadow drop {origin.stream} --name {name}",
        )
        self.name = name


class NotAShadow(LockstepError):
    """A stream that is not a shadow of the other.

    Attributes:
        name: The stream.
    """

    def __init__(self, stream: str, name: str) -> None:
        super().__init__(
            f"{name} is not a shadow of {stream}", next_step=f"lockstep shadow list {stream} lists its shadows"
        )
        self.name = name


def load_shadow_code(code: str, stream: str, name: str) -> AnyStream:
    """The declaration of a shadow: the stream of its name, the stream's, or the only one; renamed.

    It neither exports nor delivers nor drops rows: dataset and targets are the stream's, and a promotion needs all
    rows.

    Args:
        code: The folder of a checkout, a file, or the name of a module.
        stream: The stream that it is a shadow of.
        name: The name of the shadow.

    Raises:
        LockstepError: The code does not exist, or declares several other streams.
        DeclarationError: The name is not one.
    """
    streams = load_streams(code)
    if name not in streams and stream not in streams and len(streams) != 1:
        listed = ", ".join(sorted(streams)) or "none"
        step = f"declare {stream} or {name} there; it declares: {listed}"
        raise LockstepError(f"{code} does not declare which stream is the shadow of {stream}", next_step=step)
    declared = streams.get(name) or streams.get(stream) or next(iter(streams.values()))
    return name_shadow(declared, name)


def name_shadow(stream: AnyStream, name: str) -> AnyStream:
    """The declaration as that of a shadow."""
    # Rows and messages stay for a comparison; copies elsewhere are those of the stream.
    keeping = dataclasses.replace(stream, retention=None, quarantine_retention=None)
    return dataclasses.replace(keeping, name=name, current=False, export=None, deliveries=())


def find_shadow(name: str, settings: Settings) -> AnyStream | None:
    """The declaration of a shadow that is not in `assets/`, from the code that its table names; None for no shadow.

    Raises:
        ShadowCodeChanged: It differs from the shadow's code at the start.
        LockstepError: It cannot be loaded.
    """
    head = try_read_head(StreamFolders(name, settings.table_root))
    origin = None if head is None else head.origin
    if origin is None or not origin.code:
        return None
    declared = load_shadow_code(origin.code, origin.stream, name)
    if digest_code(declared) != origin.code_digest:
        raise ShadowCodeChanged(name, origin)
    return declared


class ShadowsFound(msgspec.Struct, frozen=True):
    """The shadows of some streams in a table root.

    Attributes:
        shadows: The shadows, by name.
        unread: Why other tables could not be read, by name; the newest head in their logs names none of the streams.
    """

    shadows: tuple[ShadowShown, ...]
    unread: Mapping[str, str]


def list_shadows(stream: str, root: Path) -> tuple[ShadowShown, ...]:
    """The shadows of a stream below a table root, by name. Raises as `read_shadows`."""
    return read_shadows({stream}, root).shadows


def list_shadow_names(streams: Collection[str], root: Path) -> list[str]:
    """The names of the shadows of these streams, also of damaged ones."""
    names = list[str]()
    for name in _list_names(root):
        folders = StreamFolders(name, root)
        source = None
        try:
            head = try_read_head(folders)
            if head is not None and head.origin is not None:
                source = head.origin.stream
        except TableError:
            source = _find_source(folders)
        except (DeltaError, PermissionError):  # a table of somebody else
            continue
        if source in streams:
            names.append(name)
    return names


def _list_names(root: Path) -> Iterable[str]:
    return filter(NAME.fullmatch, sorted(find_storage(root).list_names(root)))


def read_shadows(streams: Collection[str], root: Path) -> ShadowsFound:
    """The shadows of streams below a table root; a table of somebody else, or a damaged one, hides none.

    Raises:
        TableError: A shadow of one of the streams has a foreign commit, or does not match its head.
    """
    shadows = list[ShadowShown]()
    unread = dict[str, str]()
    for name in _list_names(root):
        folders = StreamFolders(name, root)
        try:
            head = try_read_head(folders)
        except (TableError, DeltaError, PermissionError) as error:
            if isinstance(error, TableError) and _find_source(folders) in streams:
                raise
            unread[name] = str(error).splitlines()[0]
            continue
        if head is not None and head.origin is not None and head.origin.stream in streams:
            shadows.append(_show(name, head, head.origin))
    return ShadowsFound(tuple(shadows), unread)


def _find_source(folders: StreamFolders) -> str | None:
    """The stream that the newest readable head in the log of a table names as its source."""
    for version in reversed(delta_log.list_versions(folders.table)):
        with suppress(TableError):
            entry = delta_log.read_entry(folders.table, version)
            if entry is not None and entry.head is not None:
                return None if entry.head.origin is None else entry.head.origin.stream
    return None


def _show(name: str, head: Head, origin: Origin) -> ShadowShown:
    return ShadowShown(
        name=name,
        stream=origin.stream,
        from_batch=origin.batch,
        begun_at=datetime.fromtimestamp(origin.at, UTC),
        code=origin.code,
        batch=head.batch,
        desired=head.desired.value,
        cause=origin.cause,
    )


class _PlannedShadow(msgspec.Struct, frozen=True):
    plan: ShadowPlan
    head: Head
    target: Head
    rows: tuple[LedgerRow, ...]


def _plan(source: StreamHandle, name: str, start: str) -> _PlannedShadow:
    folders = source.folders
    head = source.require_head()
    own = try_read_head(StreamFolders(name, folders.root))
    if own is not None:
        check_empty(own)
    target = find_target(folders, head, start)
    read = read_rewound_rows(folders, head, target, source.positions)
    rows = read.placed
    files, damaged = find_state_files(folders, rows)
    partitions = tuple(_compare_with_kafka(source, (*rows, *read.unplaced), read.newest))
    return _PlannedShadow(
        ShadowPlan(
            stream=head.stream,
            name=name,
            from_batch=target.batch,
            last_batch=head.batch,
            partitions=partitions,
            to_read=sum(max(0, partition.position - partition.begins_at) for partition in partitions),
            state_bytes=sum(files.values()),
            migrated=() if damaged else check_state_types(source.stream, folders, rows),
            obstacles=tuple(_find_obstacles(head.stream, damaged, partitions)),
        ),
        head,
        target,
        rows,
    )


def _compare_with_kafka(
    source: StreamHandle, rows: Iterable[LedgerRow], newest: Mapping[TopicIdPartition, LedgerRow]
) -> Iterable[ShadowedPartition]:
    there = {topic.topic_id for topic in source.view.topics.values()}
    selected = source.stream.topics.select(row.topic for row in newest.values())
    for row in sorted(rows, key=lambda row: (row.topic, row.partition)):
        key = row.key
        ends = source.readable.ends.get(key)
        now = newest.get(key)
        position = row.until if now is None else now.until
        has_gone = now is not None and now.is_gone
        # Nothing was read of it since, so that the shadow has nothing to read.
        if row.retired and position == row.until:
            continue
        is_gone = row.topic_id not in there and row.topic in selected
        first = row.until
        if ends is not None:
            first = ends.start
        elif is_gone:
            # Nothing of a deleted topic can be read again.
            first = position
        expired = max(0, first - row.until)
        yield ShadowedPartition(
            topic=row.topic,
            partition=row.partition,
            begins_at=row.until,
            position=position,
            archived=count_archived(ends, row.until + expired, position),
            expired=expired,
            is_gone=has_gone,
        )


def _find_obstacles(stream: str, damaged: Sequence[str], partitions: Sequence[ShadowedPartition]) -> Iterable[Obstacle]:
    if damaged:
        problem = f"state of that batch cannot be read: {format_some([*damaged])}"
        yield Obstacle(RewindReason.STATE, problem, f"start from another batch; lockstep repair {stream}")
    if lost := [each for each in partitions if each.expired and not each.is_gone]:
        worst = max(lost, key=lambda each: each.expired)
        problem = (
            f"neither Kafka nor the archive has {sum(each.expired for each in lost)} of the offsets from there on, in "
            f"{len(lost)} partitions, most of {worst.topic}/{worst.partition}: {worst.expired} from {worst.begins_at} "
            "on"
        )
        step = "start from a later batch: lockstep savepoint make keeps it before Kafka deletes the messages after it"
        yield Obstacle(RewindReason.EXPIRED, problem, step)
    if gone := [each for each in partitions if each.expired and each.is_gone]:
        step = "start from a later batch; or leave them out: --accept-deleted, as does its promotion"
        yield Obstacle(RewindReason.TOPIC, describe_gone([(each.topic, each.expired) for each in gone]), step)


def begin_shadow(
    source: StreamHandle, name: str, start: str, *, code: str, who: str, why: str, accept_deleted: bool = False
) -> ShadowShown:
    """Prepare a shadow and commit it. Raises as both do."""
    return prepare_shadow(source, name, start, code=code, who=who, why=why, accept_deleted=accept_deleted).commit()


def prepare_shadow(
    source: StreamHandle,
    name: str,
    start: str,
    *,
    code: str = "",
    who: str = "",
    why: str = "",
    accept_deleted: bool = False,
) -> Prepared[ShadowPlan, ShadowShown]:
    """Plan a shadow; changes nothing. `lockstep run` runs it once it is started.

    Args:
        source: The stream, with the code of the shadow: its declaration under the stream's own name.
        name: Name of the shadow.
        start: The batch, as `find_target` takes it.
        code: The place of the declaration; empty if `assets/` declares the shadow under its name.
        who: The operator.
        why: The reason.
        accept_deleted: Start without the messages of topics that were deleted or re-created.

    Raises:
        NoTable: The stream has never run.
        NotRewindable, TableError, LockstepError: As `find_target`; or there is a table of that name.
        StateTypeChanged: The new code cannot read the state.
        KafkaError: Kafka does not answer.

    The commit raises:
        Refused: Names every obstacle.
    """
    planned = _plan(source, name, start)
    obstacles = drop_accepted(planned.plan.obstacles, {RewindReason.TOPIC: accept_deleted})
    planned = msgspec.structs.replace(planned, plan=msgspec.structs.replace(planned.plan, obstacles=obstacles))
    return Prepared(planned.plan, partial(_carry_out, source, planned, code, who, why))


def _carry_out(source: StreamHandle, planned: _PlannedShadow, code: str, who: str, why: str) -> ShadowShown:
    """Start a shadow.

    1. Keep the batch of the stream with a savepoint, so that a promotion finds it.
    2. Create the tables; copy the state into a file that nothing refers to yet.
    3. Commit its first batch: the positions, with the copied state. If killed before, repeat the start.
    4. Bring its ledger up to it, as its next start would.
    """
    name = planned.plan.name
    _keep_batch(source.folders, name, planned.target.batch, who)  # 1
    try:
        landed = _begin(source, planned, code, f"{why} ({who})")  # 2, 3
    finally:
        _keep_origin(source.folders, name, who)
    side_tables.SideLogs(StreamFolders(name, source.folders.root)).catch_up(landed)  # 4
    shadows = list_shadows(source.stream.name, source.folders.root)
    return next(shadow for shadow in shadows if shadow.name == name)


def _keep_batch(folders: StreamFolders, name: str, batch: int, who: str) -> None:
    """Keep a batch with the savepoint of a shadow; one of a beginning that was killed may keep another batch."""
    head = try_read_head(folders)
    savepoints = () if head is None else head.savepoints
    pinned = [savepoint.batch for savepoint in savepoints if savepoint.name == make_pin(name)]
    if pinned != [batch]:
        release_pin(folders, name, who)
        make_savepoint(folders, make_pin(name), who=who, why=f"shadow {name}", at=str(batch))


def _keep_origin(folders: StreamFolders, name: str, who: str) -> None:
    """Keep the batch from which the shadow of a name started: of two starts, the loser may keep another batch."""
    own = try_read_head(StreamFolders(name, folders.root))
    # Read again: another start may have committed the shadow from another batch.
    if own is not None and own.origin is not None and own.origin.stream == folders.stream:
        _keep_batch(folders, name, own.origin.batch, who)


def make_pin(name: str) -> str:
    """Name of the savepoint that keeps the batch from which a shadow started; no two shadows share one.

    A long name is cut and ends with a digest, after a dot, which no name of a shadow has.
    """
    pin = f"{PIN}{name}"
    if SAVEPOINT_NAME.fullmatch(pin):
        return pin
    return f"{pin[:PIN_CHARACTERS]}.{hashlib.sha256(name.encode()).hexdigest()[:PIN_DIGEST_CHARACTERS]}"


def _begin(source: StreamHandle, prepared: _PlannedShadow, code: str, cause: str) -> Head:
    """Steps 3 and 4."""
    target = prepared.target
    declared = source.stream
    folders = StreamFolders(prepared.plan.name, source.folders.root)
    row_type = declared.types.row
    output = open_tables(
        folders,
        make_table_schema(row_type),
        prepared.head.cluster_id,
        defaulted=find_defaulted_columns(row_type),
        keeps_late=declared.integrity.keeps_late,
    )
    now = ledger.read_clock()
    # Into the folder of the shadow: the stream may delete its own state files.
    copied, file = _copy(source.folders, folders, prepared, now, cause)
    origin = Origin(
        stream=target.stream,
        table_id=target.table_id,
        batch=target.batch,
        digest=copied.digest,
        code=find_code(code),
        code_digest=digest_code(declared),
        at=now.timestamp(),
        cause=cause,
    )
    start = FirstBatch(
        taken_over=origin,
        table_id=output.table_id,
        commit_hour=find_next_hour(output.base().head),
        ledger=file,
        at=now.timestamp(),
        accepts_burst=target.accepts_burst,
        needs={**copied.needs, folders.ledger / file.path: file.size},
    )
    return output.commit(commit_first_batch(start, SHADOW)).head


def _copy(
    source: StreamFolders, folders: StreamFolders, prepared: _PlannedShadow, now: datetime, cause: str
) -> tuple[RelocatedState, SideFile]:
    """The copied state, and the ledger file that refers to it."""
    target = prepared.target
    stamp = LedgerStamp(
        generation=FIRST_GENERATION,
        batch=FIRST_BATCH,
        epoch=FIRST_BATCH,
        committed_at=now,
        batch_seconds=0.0,
        restart_cause=f"shadow from batch {target.batch} of {target.stream}: {cause}",
    )
    rows = sorted(prepared.rows, key=lambda each: (each.topic_id, each.partition))
    copied = take_state(
        source.state,
        [(row.generation, read_position(row)) for row in rows],
        folders.state,
        generation=FIRST_GENERATION,
        label=WrittenBy(FIRST_GENERATION, FIRST_BATCH, FIRST_BATCH).label,
    )
    return copied, ledger.write_ledger(folders.ledger, make_moved_rows(stamp, rows, copied))


def make_moved_rows(stamp: LedgerStamp, rows: Iterable[LedgerRow], copied: RelocatedState) -> list[LedgerRow]:
    """The ledger rows of positions whose state was copied. Pure."""
    return [
        msgspec.structs.replace(
            make_kept_row(stamp, position, retired=row.retired), newest_timestamp=row.newest_timestamp
        )
        for row, position in zip(rows, copied.positions, strict=True)
    ]


class ShadowDropPlan(Plan, frozen=True, kw_only=True):
    """The deletion of a shadow.

    Attributes:
        name: Its name.
        batch: Its last batch; 0 after an incomplete start.
    """

    PLAN: ClassVar[str] = "the deletion of the shadow"

    name: str
    batch: int

    def describe(self) -> Description:
        """Return its description."""
        facts = (Labelled("shadow that goes, with all its tables", self.name), Labelled("last batch", self.batch))
        return self.make_description("deletion of a shadow", facts)


class ShadowDropped(msgspec.Struct, frozen=True):
    """A shadow that was deleted.

    Attributes:
        name: Its name.
        stream: The stream that it was a shadow of.
        batch: Its last batch; 0 after an incomplete start.
    """

    name: str
    stream: str
    batch: int

    def describe(self) -> Description:
        """Return its description."""
        facts = (Labelled("stream, which is not touched", self.stream), Labelled("last batch", self.batch))
        return Description(title=f"{self.name}: deleted", facts=facts)


def require_shadow(stream: str, name: str, settings: Settings) -> tuple[StreamFolders, Head, Origin]:
    """A shadow of a stream.

    Raises:
        NotAShadow: It is none, or of another stream.
    """
    folders = StreamFolders(name, settings.table_root)
    head = try_read_head(folders)
    if head is None or head.origin is None or head.origin.stream != stream:
        raise NotAShadow(stream, name)
    return folders, head, head.origin


def drop_shadow(stream: str, name: str, settings: Settings, *, who: str) -> ShadowDropped:
    """Prepare the deletion of a shadow and commit it. Raises as both do."""
    return prepare_drop(stream, name, settings, who=who).commit()


def prepare_drop(stream: str, name: str, settings: Settings, *, who: str) -> Prepared[ShadowDropPlan, ShadowDropped]:
    """Plan the deletion of a shadow: its tables, its state, its consumer group and the savepoint of its start.

    Also the rest of a start that was killed before its commit: the savepoint, and tables with a copy of the state.
    A kill leaves a whole shadow or none that is seen, and the savepoint goes last. Safe to
    repeat. Housekeeping and an erasure delete the rest of a killed deletion; in an object store, repeat
    it, and no other shadow of the name starts before.

    Raises:
        NotAShadow: It is none: a stream is never deleted by this.

    The commit raises:
        Refused: It is being written, or was written meanwhile.
        KafkaError: Kafka does not answer; nothing was deleted.
    """
    folders = StreamFolders(name, settings.table_root)
    owner = StreamFolders(stream, settings.table_root)
    head = try_read_head(folders)
    if not _is_unfinished(head, owner, name):
        folders, head, _ = require_shadow(stream, name, settings)
    obstacles = list[Obstacle]()
    if head is not None and is_writer_alive(folders.control, head.epoch):
        step = f"lockstep stop {name}"
        obstacles.append(Obstacle(RewindReason.WRITER, f"epoch {head.epoch} is writing", step))
    batch = 0 if head is None else head.batch
    plan = ShadowDropPlan(stream=stream, obstacles=tuple(obstacles), name=name, batch=batch)

    def act() -> ShadowDropped:
        if try_read_head(folders) != head:
            raise make_changed(stream, plan.PLAN, f"{name} was written after batch {batch}")
        ConsumerGroup(settings.kafka, name).forget()
        delete_stream(folders, folders.root / f".{name}{DROPPED}")
        release_pin(owner, name, who)
        return ShadowDropped(name, stream, batch)

    return Prepared(plan, act)


def _is_unfinished(head: Head | None, owner: StreamFolders, name: str) -> bool:
    """Whether the start of a shadow is incomplete, or its deletion ended before the savepoint was deleted."""
    return (head is None or not (head.epoch or head.batch)) and has_pin(owner, name)


def list_dropped(root: Path) -> list[Path]:
    """Folders of shadows whose deletion was killed, or is under way: nothing reads them any more."""
    names = (name for name in find_storage(root).list_names(root) if name.startswith(".") and name.endswith(DROPPED))
    return sorted(root / name for name in names if NAME.fullmatch(name[1 : -len(DROPPED)]))


def delete_dropped(root: Path) -> None:
    """Delete what killed deletions of shadows left below a table root; safe next to another process that does so."""
    for folder in list_dropped(root):
        find_storage(root).delete_folder(folder)


def has_pin(folders: StreamFolders, name: str) -> bool:
    """Whether a stream has the savepoint that keeps the beginning of a shadow."""
    head = try_read_head(folders)
    return head is not None and any(each.name == make_pin(name) for each in head.savepoints)


def release_pin(folders: StreamFolders, name: str, who: str) -> None:
    """Delete the savepoint that kept the start of a shadow, if it exists."""
    if has_pin(folders, name):
        drop_named_savepoint(folders, make_pin(name), who=who, why=f"shadow {name} is gone")
