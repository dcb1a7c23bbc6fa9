"""Makes a shadow the stream: back to the batch from which it started, and its rows from there on, in one commit.

docs/decisions/0028 is the protocol, docs/shadow.md the way through it. The plan is data; nothing is changed by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.control.heartbeat import is_writer_alive
from lockstep.declare.discovery import digest_code
from lockstep.engine.driver.planner import find_next_hour
from lockstep.engine.driver.startup import check_state_types
from lockstep.errors import Fenced, LockstepError, Overtaken, StateError, TableError, format_some
from lockstep.features.history.promotion_commit import PromotionCommit, commit_promotion, find_promoted_columns
from lockstep.features.history.rewind import (
    RewindReason,
    count_rows,
    count_rows_of,
    describe_gone,
    describe_unpublished,
    find_state_files,
    publish_positions,
    read_rewound_rows,
)
from lockstep.features.history.rewind_commit import list_undone
from lockstep.features.history.shadow import describe_migrated, make_moved_rows, require_shadow
from lockstep.kafka.admin import ClusterView
from lockstep.model.commit_hour import format_hour
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.followers import FollowerEffect, list_effects, make_effect_records
from lockstep.operations.kept_rows import find_undone_copies, refuse_undone_copies
from lockstep.operations.past_batches import list_files_of, read_head_of_batch
from lockstep.operations.plan_frame import (
    Description,
    Labelled,
    Obstacle,
    Plan,
    Prepared,
    Records,
    Refused,
    Unit,
    drop_accepted,
)
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import open_table, try_read_head
from lockstep.state.relocation import take_state
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, quarantine, side_tables
from lockstep.table.archive import ArchivedEnd, read_archived_ends
from lockstep.table.commit import HourClosed
from lockstep.table.create import create_late_table
from lockstep.table.head import FIRST_BATCH, Desired, Head, Origin, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName, LedgerRow
from lockstep.table.parquet import DataFile, DataFileWriter, find_wrong_files, list_named_files
from lockstep.table.positions import LedgerStamp, read_position
from lockstep.table.restore import commit_restored
from lockstep.table.schema_evolution import find_defaulted_columns, find_schema_changes
from lockstep.table.written_by import WrittenBy
from lockstep.table.written_files import delete_on_error, delete_unless_committed

PIECE_BYTES = 16 << 20
"""Data files are copied in pieces of this size."""


class PromotedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of which stream and shadow have read another offset.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: The position of the stream now.
        shadow_at: The position of the shadow, which the stream will have.
        behind: Offsets by which the shadow is behind: their rows go, until the next run has read them again.
        expired: Those of them that Kafka no longer has.
        is_gone: The topic was deleted or re-created: nothing of it can be read again.
    """

    topic: str
    partition: int
    position: int
    shadow_at: int
    behind: int
    expired: int
    is_gone: bool = False


class PromotionPlan(Plan, frozen=True, kw_only=True):
    """The plan of a promotion.

    Attributes:
        shadow: Name of the shadow.
        to_batch: The batch from which the shadow started: rows up to it stay as they are.
        last_batch: The last batch of the stream now.
        batch: The last batch afterwards.
        generation: The new generation.
        rows_gone: Rows of the stream after `to_batch`, which go.
        rows_added: Rows of the shadow, which replace them.
        quarantined: Messages of the shadow's quarantine and late table, which count from then on.
        files: Data files to copy.
        bytes: Their bytes.
        partitions: Partitions of which both have read another offset.
        migrated: Differences of the state types that `migrate` of the deployed code handles.
        followers: The derived tables, exports and other followers that have read the stream, with the effect on each.
        copies: The effect on copies of undone rows outside of the table.
    """

    PLAN: ClassVar[str] = "the promotion"

    shadow: str
    to_batch: int
    last_batch: int
    batch: int
    generation: int
    rows_gone: int
    rows_added: int
    quarantined: int
    files: int
    bytes: int
    partitions: tuple[PromotedPartition, ...]
    migrated: tuple[str, ...]
    followers: tuple[FollowerEffect, ...]
    copies: tuple[str, ...] = ()

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("shadow", self.shadow),
            Labelled("rows stay up to batch", self.to_batch),
            Labelled("rows that go", self.rows_gone),
            Labelled("rows that the shadow adds", self.rows_added),
            Labelled("messages for quarantine and late table", self.quarantined),
            Labelled("files to copy", self.files),
            Labelled("bytes to copy", self.bytes, Unit.BYTES),
            Labelled("last batch now", self.last_batch),
            Labelled("last batch afterwards", self.batch),
            Labelled("new generation", self.generation),
        )
        notes = (*describe_migrated(self.migrated), *self.copies)
        return self.make_description(
            "promotion",
            facts,
            records=(
                Records.of("partitions", self.partitions, "topic partition position shadow_at behind expired"),
                make_effect_records(self.followers),
            ),
            notes=notes,
        )


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a promotion.

    Attributes:
        plan: Its plan.
        version: Version of the output table after it.
        published: Whether Kafka shows the positions as group offsets; the next start publishes them again.
    """

    plan: PromotionPlan
    version: int
    published: bool

    def describe(self) -> Description:
        """Return its description."""
        plan = self.plan
        facts = (
            Labelled("promoted", plan.shadow),
            Labelled("by batch", plan.batch),
            Labelled("generation", plan.generation),
            Labelled("rows that went", plan.rows_gone),
            Labelled("rows that were added", plan.rows_added),
        )
        return Description(
            title=f"{plan.stream}: promoted and stopped",
            facts=facts,
            notes=describe_unpublished(self.published),
            records=(make_effect_records(plan.followers),),
            next_steps=(
                f"lockstep start {plan.stream}",
                f"to delete the shadow: lockstep shadow drop {plan.stream} --name {plan.shadow}",
                f"to take it back: lockstep rewind {plan.stream} --to {plan.last_batch} --why '...'",
            ),
        )


class _Prepared(msgspec.Struct, frozen=True):
    """A promotion, with what its commit needs: heads, folders of the shadow, positions with their state, files."""

    head: Head
    target: Head
    shadow: Head
    folders: StreamFolders
    begun: Mapping[TopicIdPartition, LedgerRow]
    reached: Mapping[TopicIdPartition, LedgerRow]
    needs: Mapping[Path, int]
    planned: PromotionPlan | None = None

    @property
    def plan(self) -> PromotionPlan:
        """Its plan."""
        if self.planned is None:
            raise ValueError("not planned yet")
        return self.planned


def promote_shadow(
    handle: StreamHandle,
    name: str,
    *,
    who: str,
    why: str,
    accept_behind: bool = False,
    accept_code: bool = False,
    accept_deleted: bool = False,
) -> Promoted:
    """Prepare a promotion and commit it. Raises as both do."""
    prepared = prepare_promotion(
        handle,
        name,
        cause=f"{why} ({who})",
        accept_behind=accept_behind,
        accept_code=accept_code,
        accept_deleted=accept_deleted,
    )
    return prepared.commit()


def prepare_promotion(
    handle: StreamHandle,
    name: str,
    *,
    cause: str = "",
    accept_behind: bool = False,
    accept_code: bool = False,
    accept_deleted: bool = False,
) -> Prepared[PromotionPlan, Promoted]:
    """Plan a promotion: a shadow becomes the stream; changes nothing.

    Takes one to three seconds, to see whether a writer is alive. The commit is of both heads that were planned on. The
    stream is stopped afterwards, the shadow stays until it is dropped.

    Args:
        handle: The stream, with its deployed declaration.
        name: Name of the shadow.
        cause: The reason and the operator.
        accept_behind: Promote although the shadow has not read as far as the stream.
        accept_code: Promote although the deployed code is not the shadow's.
        accept_deleted: Lose the rows of topics that were deleted or re-created, and that the shadow has not read.

    Raises:
        NoTable: The stream has never run.
        NotAShadow: It is not a shadow of the stream.
        Refused: A session was erased since its start.
        NotRewindable: The batch from which it started may be deleted.
        KafkaError: Kafka does not answer.

    The commit raises:
        Refused: Names every obstacle; or the shadow was dropped, or rows were dropped by retention meanwhile.
        NotRewindable: A batch was committed meanwhile.
        Overtaken: Another run or command claimed the table meanwhile.
    """
    prepared = _prepare(handle, name)
    accepted: dict[str, bool] = {RewindReason.BEHIND: accept_behind, RewindReason.CODE: accept_code}
    accepted[RewindReason.TOPIC] = accept_deleted
    plan = msgspec.structs.replace(prepared.plan, obstacles=drop_accepted(prepared.plan.obstacles, accepted))
    return Prepared(plan, partial(_carry_out, handle, msgspec.structs.replace(prepared, planned=plan), cause))


def _carry_out(handle: StreamHandle, prepared: _Prepared, cause: str) -> Promoted:
    """Commit a promotion.

    1. Copy the shadow's data files, state, ledger, quarantine and late table, all as of its last batch by then; nothing
       refers to the copies. Refuse a promotion that a copy of undone rows forbids by now.
    2. Commit: claim, restored batch, the shadow's columns, files and batches in one; again for a later hour if the
       hour was closed meanwhile.
    3. Bring the side tables up to it, as the next start would.
    4. Publish the positions; the next start does so too.
    """
    side_tables.catch_up_alongside_writer(handle.folders, prepared.head)
    landed, rows = _commit(handle, prepared, cause)  # 1, 2
    side_tables.SideLogs(handle.folders).catch_up(landed)  # 3
    return Promoted(plan=prepared.plan, version=landed.batch_version, published=publish_positions(handle, rows))  # 4


def _prepare(handle: StreamHandle, name: str) -> _Prepared:
    own, shadow, origin = require_shadow(handle.stream.name, name, handle.settings)
    with _refuse_dropped(handle.stream.name, own, shadow):
        return _prepare_from(handle, own, shadow, origin)


@contextmanager
def _refuse_dropped(stream: str, own: StreamFolders, shadow: Head) -> Iterator[None]:
    """Refuse a shadow that is dropped within the block, on any error of that; its name may start again there.

    Raises:
        Refused: It is not there any more.
    """
    # A deletion in parallel makes any step fail: only the head tells whether that was the cause.
    failure: Exception | None = None
    try:
        yield
    except (LockstepError, DeltaError, OSError) as error:
        failure = error
    problem = _find_change(own, shadow)
    if not problem:
        if failure is not None:
            raise failure
        return
    step = f"lockstep shadow list {stream} lists its shadows"
    raise Refused(stream, f"promotion of {own.stream}", [Obstacle(RewindReason.GONE, problem, step)]) from failure


def _find_change(own: StreamFolders, shadow: Head) -> str:
    """Why a shadow must not be promoted as it was read; empty without a reason."""
    try:
        head = try_read_head(own)
    except (LockstepError, DeltaError, OSError):
        head = None  # it is being deleted
    if head is None or head.table_id != shadow.table_id:
        return "it was dropped meanwhile; nothing was changed"
    if head.erasure != shadow.erasure:
        return "a session was erased from it meanwhile; nothing was changed"
    return ""


def _prepare_from(handle: StreamHandle, own: StreamFolders, shadow: Head, origin: Origin) -> _Prepared:
    folders = handle.folders
    head = handle.require_head()
    check_erasure(head, shadow, origin)
    target = read_head_of_batch(folders, head, origin.batch)
    # The ledger of the shadow may lack its last batch, which is promoted, too.
    side_tables.catch_up_alongside_writer(own, shadow)
    read = ledger.read_positions(own, shadow)
    newest = read_rewound_rows(folders, head, target, handle.positions).newest
    archived = read_archived_ends(folders, head)
    archives = head.archive is not None and handle.stream.archive is not None
    reached = {key: keep_retired(row, newest.get(key), archived.get(key)) for key, row in read.items()}
    first_rows = ledger.read_positions_at(own, FIRST_BATCH)
    target_rows = ledger.read_positions_at(folders, target.batch, full_batch=target.full_ledger_batch)
    begun = {key: _with_state_of(row, target_rows.get(key)) for key, row in first_rows.items()}
    now = dict(list_named_files(folders.table))
    then = list_files_of(folders, target)
    needs, damaged = find_state_files(folders, begun.values())
    back = {path: size for path, size in then.items() if path not in now}
    prepared = _Prepared(head, target, shadow, own, begun, reached, {**needs, **back})
    files = [*back.items(), *list_named_files(own.table, shadow.batch_version)]
    unarchived = list_unarchived(newest, reached, archived) if archives else []
    obstacles = [
        *_find_writers(handle, head, own, shadow),
        *_find_disagreement(head, origin, shadow, first_rows, target_rows),
        *_find_unfit_columns(folders, own, target, shadow),
        *_refuse_unarchived(head.stream, unarchived),
        *_find_gone(head.stream, files, damaged + find_state_files(own, reached.values())[1]),
    ]
    forgotten = ledger.read_forgotten(own.ledger, newest.keys() - read.keys())
    valid = shadow.valid_batches
    counted = {key: row for key, row in forgotten.items() if row.batch <= valid.get(row.generation, -1)}
    partitions = tuple(_compare(handle.readable, newest, {**counted, **read}))
    return msgspec.structs.replace(prepared, planned=_make_plan(handle, prepared, origin, partitions, obstacles))


def check_erasure(head: Head, shadow: Head, origin: Origin) -> None:
    """Refuse to bring back a session that the stream has erased since the shadow started.

    Raises:
        Refused: It has; or the shadow has erased one, whose digest is by its own table.
    """
    name = shadow.stream
    problem = ""
    if head.erasure is not None and origin.batch < head.erasure.batch:
        began = f"{name} started from batch {origin.batch}"
        problem = f"{began}; batch {head.erasure.batch} of {head.stream} erased a session, which it may bring back"
    elif shadow.erasure is not None:
        problem = f"{name} has erased a session by a digest of its table, which {head.stream} cannot check"
    if problem:
        step = f"lockstep shadow drop {head.stream} --name {name}; then start another shadow from a later batch"
        raise Refused(head.stream, f"promotion of {name}", [Obstacle(RewindReason.START, problem, step)])


def _make_plan(
    handle: StreamHandle,
    prepared: _Prepared,
    origin: Origin,
    partitions: tuple[PromotedPartition, ...],
    obstacles: Sequence[Obstacle],
) -> PromotionPlan:
    folders = handle.folders
    head = prepared.head
    own = prepared.folders
    shadow = prepared.shadow
    files = list_named_files(own.table, shadow.batch_version)
    migrated, unfit = _check_code(handle, own, origin, prepared.reached)
    copies = find_undone_copies(list_undone(folders, handle.stream, head, prepared.target))
    return PromotionPlan(
        stream=head.stream,
        shadow=own.stream,
        to_batch=prepared.target.batch,
        last_batch=head.batch,
        batch=head.batch + shadow.batch + 1,
        generation=head.generation + 1,
        rows_gone=count_rows(folders, None) - count_rows_of(folders, prepared.target),
        rows_added=count_rows(own, shadow.batch_version),
        quarantined=sum(_count_side(folder, shadow) for folder in (own.quarantine, own.late)),
        files=len(files),
        bytes=sum(size for _, size in files),
        partitions=partitions,
        migrated=migrated,
        followers=list_effects(folders.stream, folders.root, undone_after=prepared.target.batch),
        copies=copies.notes,
        obstacles=(*obstacles, *_find_behind(partitions, own.stream), *unfit, *copies.obstacles),
    )


def _with_state_of(row: LedgerRow, held: LedgerRow | None) -> LedgerRow:
    """A position from the shadow's start, with the address of the same state in the stream's own folder."""
    return msgspec.structs.replace(
        row,
        state_file=None if held is None else held.state_file,
        state_start=None if held is None else held.state_start,
        state_length=None if held is None else held.state_length,
    )


def keep_retired(row: LedgerRow, now: LedgerRow | None, archived: ArchivedEnd | None) -> LedgerRow:
    """A position of the shadow after a promotion, which has the archive of the stream. Pure.

    A topic that the stream has retired since, without a message, stays retired, as does a topic that is gone.

    Args:
        row: The position of the shadow.
        now: The newest row of the partition in the stream; None without a row.
        archived: The end of its archive.
    """
    row = msgspec.structs.replace(row, archived_until=None if archived is None else archived.until)
    if now is None or not now.retired:
        return row
    if now.until == row.until or now.is_gone:
        return row.with_retirement_of(now)
    return row


def _compare(
    view: ClusterView, now: Mapping[TopicIdPartition, LedgerRow], reached: Mapping[TopicIdPartition, LedgerRow]
) -> Iterable[PromotedPartition]:
    """Forgotten partitions are among both: their reads of a deleted topic count as well."""
    for key, row in sorted(now.items(), key=lambda item: (item[1].topic, item[1].partition)):
        shadow_at = reached[key].until if key in reached else row.joined_at
        if shadow_at == row.until or (key not in reached and row.until == row.joined_at):
            continue
        behind = max(0, row.until - shadow_at)
        ends = view.ends.get(key)
        yield PromotedPartition(
            topic=row.topic,
            partition=row.partition,
            position=row.until,
            shadow_at=shadow_at,
            behind=behind,
            expired=behind if ends is None else min(behind, max(0, ends.start - shadow_at)),
            is_gone=row.is_gone,
        )


def _find_writers(handle: StreamHandle, head: Head, own: StreamFolders, shadow: Head) -> Iterable[Obstacle]:
    for folders, written in ((handle.folders, head), (own, shadow)):
        if is_writer_alive(folders.control, written.epoch):
            step = f"lockstep stop {written.stream} --why '...'"
            yield Obstacle(RewindReason.WRITER, f"epoch {written.epoch} of {written.stream} is writing", step)
    if shadow.desired is Desired.HALTED:
        step = f"lockstep resume {shadow.stream}, or correct its code"
        yield Obstacle(RewindReason.HALTED, f"{shadow.stream} is halted: {shadow.reason}", step)


def _find_disagreement(
    head: Head,
    origin: Origin,
    shadow: Head,
    taken: Mapping[TopicIdPartition, LedgerRow],
    held: Mapping[TopicIdPartition, LedgerRow],
) -> Iterable[Obstacle]:
    again = f"start another shadow: lockstep shadow begin {head.stream} --name ... --from ..."
    if origin.table_id != head.table_id:
        yield Obstacle(RewindReason.START, f"{shadow.stream} started from another table of {head.stream}", again)
    apart = [row for key, row in held.items() if key not in taken or taken[key].until != row.until]
    if apart:
        places = format_some([f"{row.topic}/{row.partition}" for row in apart])
        problem = f"positions of batch {origin.batch} are not those with which {shadow.stream} started: {places}"
        yield Obstacle(RewindReason.START, problem, again)
    if shadow.retention is not None:
        yield Obstacle(RewindReason.DATA, f"{shadow.stream} has dropped rows by retention", again)
    if shadow.quarantine_retention is not None:
        problem = f"{shadow.stream} has dropped messages of quarantine and late table by retention"
        yield Obstacle(RewindReason.DATA, problem, again)


class Unarchived(NamedTuple):
    """Offsets of a partition that only a shadow has read, and that the stream has not archived.

    Attributes:
        row: The position of the shadow.
        start: First offset.
        offsets: Number of offsets.
    """

    row: LedgerRow
    start: int
    offsets: int


def list_unarchived(
    newest: Mapping[TopicIdPartition, LedgerRow],
    reached: Mapping[TopicIdPartition, LedgerRow],
    archived: Mapping[TopicIdPartition, ArchivedEnd],
) -> list[Unarchived]:
    """Messages that the archive would lack after a promotion, because the stream has not read them. Pure.

    Args:
        newest: The newest row of each partition in the stream.
        reached: The positions of the shadow; no run reads the topics that are gone.
        archived: The end of the archive in each partition.
    """
    ahead = list[Unarchived]()
    for key, row in reached.items():
        read = newest[key].until if key in newest else 0
        in_archive = archived[key].until if key in archived else None
        # Messages before it were read by the stream, or are in its archive.
        start = max(row.joined_at, read, in_archive or 0)
        if start < row.until and not row.is_gone:
            ahead.append(Unarchived(row, start, row.until - start))
    return ahead


def _refuse_unarchived(stream: str, ahead: Sequence[Unarchived]) -> Iterable[Obstacle]:
    """Refuse to pass over messages that the stream has not archived: its shadow archives nothing."""
    if ahead:
        worst = max(ahead, key=attrgetter("offsets"))
        total = sum(unarchived.offsets for unarchived in ahead)
        problem = (
            f"the archive of {stream} would lack {total} offsets that only the shadow has read, most of "
            f"{worst.row.topic}/{worst.row.partition}: {worst.offsets} from {worst.start} on"
        )
        step = f"lockstep run {stream} --available-now reads and archives them; then promote with --accept-behind"
        yield Obstacle(RewindReason.ARCHIVE, problem, step)


def _find_unfit_columns(folders: StreamFolders, own: StreamFolders, target: Head, shadow: Head) -> Iterable[Obstacle]:
    """Rows up to the target stay, with the columns of then."""
    staying = delta_log.open_delta_table(folders.table, version=target.files_version)
    try:
        find_promoted_columns(staying, _open_shadow(own, shadow).schema().fields)
    except TableError as error:
        problem = f"rows of {own.stream} do not fit those that stay: {error.problem}"
        step = f"keep {own.stream} as a separate stream, or start another shadow whose columns fit"
        yield Obstacle(RewindReason.UNFIT, problem, step)


def _find_behind(partitions: Sequence[PromotedPartition], name: str) -> Iterable[Obstacle]:
    gone = [(partition.topic, partition.behind) for partition in partitions if partition.behind and partition.is_gone]
    partitions = [partition for partition in partitions if not partition.is_gone]
    if late := [partition for partition in partitions if partition.behind]:
        worst = max(late, key=lambda partition: partition.behind)
        offsets = sum(partition.behind for partition in late)
        problem = (
            f"{name} is {offsets} offsets behind in {len(late)} partitions, most in {worst.topic}/{worst.partition}: "
            f"{worst.shadow_at} of {worst.position}"
        )
        step = f"lockstep run {name} --available-now; or --accept-behind: their rows go until they are read again"
        yield Obstacle(RewindReason.BEHIND, problem, step)
    if lost := sum(partition.expired for partition in partitions):
        problem = f"Kafka no longer has {lost} offsets that {name} has not read and the stream has"
        yield Obstacle(RewindReason.EXPIRED, problem, f"keep {name} as it is, or start another shadow")
    if gone:
        step = f"keep {name} as it is; or lose their rows: --accept-deleted"
        yield Obstacle(RewindReason.TOPIC, describe_gone(gone), step)


def _find_gone(stream: str, files: Iterable[tuple[Path, int]], damaged: Sequence[str]) -> Iterable[Obstacle]:
    step = f"restore them from a copy; lockstep repair {stream} checks all files"
    if wrong := find_wrong_files(files):
        problem = f"data files are missing or of another size: {format_some(wrong)}"
        yield Obstacle(RewindReason.DATA, problem, step)
    if damaged:
        yield Obstacle(RewindReason.STATE, f"state cannot be read: {format_some([*damaged])}", step)


def _check_code(
    handle: StreamHandle, own: StreamFolders, origin: Origin, reached: Mapping[TopicIdPartition, LedgerRow]
) -> tuple[tuple[str, ...], list[Obstacle]]:
    """Whether the deployed code is the shadow's, and whether it can continue the shadow's tables."""
    stream = handle.stream
    name = own.stream
    obstacles = list[Obstacle]()
    step = f"deploy the code of {name} for {stream.name}, then promote"
    if digest_code(stream) != origin.code_digest:
        problem = f"the deployed code of {stream.name} is not that of {name}"
        obstacles.append(Obstacle(RewindReason.CODE, problem, f"{step}; or --accept-code"))
    migrated = tuple[str, ...]()
    try:
        row_type = stream.types.row
        table = delta_log.open_delta_table(own.table)
        find_schema_changes(table, make_table_schema(row_type), defaulted=find_defaulted_columns(row_type))
        migrated = check_state_types(stream, own, reached.values())
    except (TableError, StateError) as error:
        problem = f"the deployed code cannot continue from {name}: {error.problem}"
        obstacles.append(Obstacle(RewindReason.UNFIT, problem, step))
    return migrated, obstacles


def _count_side(folder: Path, shadow: Head) -> int:
    return sum(table.num_rows for table in _read_side(folder, shadow))


def _commit(handle: StreamHandle, prepared: _Prepared, cause: str) -> tuple[Head, list[LedgerRow]]:
    output = open_table(handle.folders)
    for _ in range(2):
        hour = find_next_hour(output.base().head)
        made = list[Path]()
        with delete_on_error(made), _refuse_dropped(handle.stream.name, prepared.folders, prepared.shadow):
            planned, rows = _copy_all(handle, prepared, hour, cause, made)
            # After the copies, which take long: a row may have been copied elsewhere meanwhile.
            undone = list_undone(handle.folders, handle.stream, prepared.head, prepared.target)
            refuse_undone_copies(undone, PromotionPlan.PLAN)
        try:
            with delete_unless_committed(made):
                return commit_restored(output, commit_promotion(planned), hour).head, rows
        except HourClosed as error:
            closed = error
        except Fenced as fenced:
            raise Overtaken(prepared.head.stream, f"promotion of {prepared.folders.stream}", fenced) from fenced
    raise closed


def _copy_all(
    handle: StreamHandle, prepared: _Prepared, hour: str, cause: str, made: list[Path]
) -> tuple[PromotionCommit, list[LedgerRow]]:
    """Copy everything, and note each file as it is made; returns the commit, and the positions after it."""
    folders = handle.folders
    own = prepared.folders
    plan = prepared.plan
    head = prepared.head
    label = WrittenBy(plan.generation, head.epoch + 1, plan.batch).label
    now = ledger.read_clock()
    rows, needs = _copy_positions(folders, prepared, label, now, cause)
    made += needs
    name = LedgerFileName(format_hour(now), plan.generation, head.batch + FIRST_BATCH, plan.batch)
    file = ledger.write_ledger_parts(folders.ledger, (*_renumber_ledger(prepared), rows), name)
    made.append(folders.ledger / file.path)
    quarantined = _copy_side(own.quarantine, folders.quarantine, prepared, made)
    late = _copy_side(own.late, folders.late, prepared, made)
    if late:
        create_late_table(folders)
    needs |= {folders.ledger / file.path: file.size, **prepared.needs}
    needs |= {folders.quarantine / side_file.path: side_file.size for side_file in quarantined}
    needs |= {folders.late / side_file.path: side_file.size for side_file in late}
    planned = PromotionCommit(
        table=folders.table,
        seen=head,
        target=prepared.target,
        shadow=prepared.shadow,
        generation=plan.generation,
        batch=plan.batch,
        commit_hour=hour,
        files=tuple(_copy_data(own.table, prepared.shadow.batch_version, folders.table, hour, label, made)),
        fields=tuple(_open_shadow(own, prepared.shadow).schema().fields),
        ledger=file,
        quarantine=quarantined,
        late=late,
        at=now.timestamp(),
        cause=cause,
        needs=needs,
    )
    return planned, rows


def _copy_positions(
    folders: StreamFolders, prepared: _Prepared, label: str, now: datetime, cause: str
) -> tuple[list[LedgerRow], dict[Path, int]]:
    """The positions of the shadow as those of the last batch, and the file with a copy of their state."""
    plan = prepared.plan
    last = sorted(prepared.reached.values(), key=lambda row: (row.topic_id, row.partition))
    stamp = LedgerStamp(
        generation=plan.generation,
        batch=plan.batch,
        epoch=prepared.head.epoch + 1,
        committed_at=now,
        batch_seconds=0.0,
        restart_cause=f"shadow {plan.shadow} promoted: {cause}",
    )
    copied = take_state(
        prepared.folders.state,
        [(row.generation, read_position(row)) for row in last],
        folders.state,
        generation=plan.generation,
        label=label,
    )
    return make_moved_rows(stamp, last, copied), dict(copied.needs)


def _renumber_ledger(prepared: _Prepared) -> Iterator[list[LedgerRow]]:
    """The ledger of the shadow with batches and generation of the stream; its first batch has the stream's state."""
    counts = prepared.shadow.valid_batches
    for rows in ledger.iterate_rows(prepared.folders.ledger, last_batch=prepared.shadow.batch):
        yield [_renumber_row(prepared, row) for row in rows if row.batch <= counts.get(row.generation, -1)]


def _renumber_row(prepared: _Prepared, row: LedgerRow) -> LedgerRow:
    # The head of the shadow, which tells up to which batch losses are accepted, is not promoted.
    is_accepted = row.batch <= prepared.shadow.lost.accepted_batch
    losses = [msgspec.structs.replace(loss, is_accepted=loss.is_accepted or is_accepted) for loss in row.losses]
    renumbered = row
    if row.batch == FIRST_BATCH:
        renumbered = prepared.begun[row.key]
    return msgspec.structs.replace(
        renumbered,
        generation=prepared.plan.generation,
        batch=prepared.plan.last_batch + row.batch,
        epoch=prepared.head.epoch + 1,
        losses=losses,
    )


def _open_shadow(own: StreamFolders, shadow: Head) -> DeltaTable:
    """The table of a shadow right after its last batch, without later commits of its runs."""
    return delta_log.open_delta_table(own.table, version=shadow.batch_version)


def _copy_data(source: Path, version: int, target: Path, hour: str, label: str, made: list[Path]) -> Iterator[DataFile]:
    """The live files of a version of a table, copied under names of the promotion, synced."""
    storage = find_storage(source)
    for file in delta_log.read_live_files(source, version).values():
        path = f"commit_hour={hour}/promoted-{label}-{uuid.uuid4().hex}.parquet"
        pending = find_storage(target).open_pending(target / path)
        try:
            for start in range(0, file.size, PIECE_BYTES):
                pending.sink.write(storage.read_range(source / file.path, start, PIECE_BYTES))
            pending.finish()
        finally:
            pending.abandon()
        made.append(target / path)
        yield DataFile(path, file.size, file.rows, file.statistics, hour)


def _copy_side(source: Path, target: Path, prepared: _Prepared, made: list[Path]) -> tuple[SideFile, ...]:
    """The rows of a side table that count, in one file, with batches and generation of the stream."""
    if not delta_log.has_log(source):
        return ()
    parts = _read_side(source, prepared.shadow)
    first = next(parts, None)
    if first is None:
        return ()
    with DataFileWriter(target, quarantine.SCHEMA, commit_hour=None, prefix="quarantine") as writer:
        for rows in chain([first], parts):
            writer.write(_renumber_side(rows, prepared.plan))
        file = writer.finish()
    made.append(target / file.path)
    return (SideFile(path=file.path, size=file.size, rows=file.rows, statistics=file.statistics),)


def _renumber_side(rows: pa.Table, plan: PromotionPlan) -> pa.Table:
    generation = pa.array([plan.generation] * rows.num_rows, pa.int64())
    batch = pc.add(rows["batch"], plan.last_batch)
    rows = rows.set_column(rows.schema.get_field_index("generation"), "generation", generation)
    rows = rows.set_column(rows.schema.get_field_index("batch"), "batch", batch)
    return rows.cast(quarantine.SCHEMA)


def _read_side(folder: Path, shadow: Head) -> Iterator[pa.Table]:
    """The rows that count of each file of the quarantine or the late table, while there are any."""
    if not delta_log.has_log(folder):
        return
    live = pa.table(delta_log.open_delta_table(folder).get_add_actions()).column("path").to_pylist()
    valid = shadow.valid_batches
    for path in live:
        rows = pq.ParquetFile(find_storage(folder).open_source(folder / str(path))).read()
        written = rows.select(["generation", "batch"]).to_pylist()
        counts = pa.array([row["batch"] <= valid.get(row["generation"], -1) for row in written], pa.bool_())
        counting = rows.filter(counts)
        if counting.num_rows:
            yield counting
