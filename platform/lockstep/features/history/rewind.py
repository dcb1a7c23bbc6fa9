"""Rewinds a stream: rows, state and positions go back to an earlier batch in one commit.

docs/decisions/0025 is the protocol, docs/rewind.md the way through it. The plan is data; nothing is changed by it, and
a rewind is refused by name wherever the plan finds that something is gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
import pyarrow.compute as pc

from lockstep.control.heartbeat import is_writer_alive
from lockstep.engine.driver.planner import find_next_hour
from lockstep.errors import Fenced, KafkaError, LockstepError, Overtaken, format_some
from lockstep.features.history.rewind_commit import (
    RewindCommit,
    commit_rewind,
    find_savepoint,
    list_undone,
)
from lockstep.integrity.resume_options import show_range
from lockstep.kafka.admin import ClusterView, PartitionOffsets
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import Position, SegmentRef, TopicIdPartition, TopicNamePartition
from lockstep.operations.followers import FollowerEffect, list_effects, make_effect_records
from lockstep.operations.kept_rows import UndoneBatches, find_undone_copies, refuse_undone_copies
from lockstep.operations.past_batches import list_files_of, read_head_of_batch
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Plan, Prepared, Records, drop_accepted
from lockstep.operations.quarantine import Place
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import open_table
from lockstep.state.changelog import StateDamaged, read_header
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.archive import ArchivedEnd, read_archived_ends
from lockstep.table.commit import HourClosed
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.parquet import find_wrong_files, list_named_files
from lockstep.table.positions import GROWN, LedgerStamp, make_kept_row, read_position
from lockstep.table.restore import commit_restored

SAVEPOINT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,59}")
"""It starts with a letter and has no slash, so that it cannot be a batch, a time or a message."""


class RewindReason(StrEnum):
    """Why a rewind, a shadow, its promotion or an import is refused."""

    WRITER = "a writer is alive"
    NO_CHANGE = "nothing would change"
    DATA = "data files are gone"
    STATE = "state files are gone"
    EXPIRED = "neither Kafka nor the archive has the messages"
    HALTED = "the shadow is halted"
    GONE = "the shadow was dropped"
    START = "the shadow did not begin from that batch"
    BEHIND = "the shadow has not read as far"
    CODE = "the deployed code is not the shadow's"
    UNFIT = "the deployed code, or the rows that stay, do not fit the shadow"
    CLUSTER = "the cluster is another one"
    POSITION = "the position in the mirrored cluster is not proven"
    NUMBERS = "the numbers of sessions may be offsets"
    TABLE = "the table root has the stream already"
    ARCHIVE = "the archive would lack messages"
    TOPIC = "the topic is gone, or another one"
    TRUNCATED = "the log ends before the position"


class RewoundPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose position changes.

    Attributes:
        topic: Topic name.
        topic_id: Kafka's id of the topic.
        partition: Partition number.
        position: Its position now.
        back_to: Its position afterwards.
        log_start: First offset that Kafka still has; None if it does not have or show the topic.
        read_again: Offsets that the next run reads again.
        archived: Those of them that it reads from the archive: Kafka no longer has them.
        expired: Those of them that neither Kafka nor the archive has; all, of a topic that is gone.
        is_gone: The topic was deleted or re-created; it stays retired.
    """

    topic: str
    topic_id: str
    partition: int
    position: int
    back_to: int
    log_start: int | None
    read_again: int
    archived: int
    expired: int
    is_gone: bool = False


class RewindPlan(Plan, frozen=True, kw_only=True):
    """The plan of a rewind.

    Attributes:
        to_batch: The batch to which it goes back.
        to_at: When that batch was committed (UTC).
        last_batch: The last batch now.
        generation: The generation that starts with it.
        batches: Batches that count now and would not any more.
        rows: Rows of the table that go; negative if a rewind to an undone batch restores rows.
        quarantined: Messages of these batches in the quarantine and in the late table, which no longer count.
        restores_undone: An earlier rewind undid the target: it is restored.
        decisions: What operators accepted since the target; the next run may ask again.
        topics: Topics that were added since; they are read again from their first position.
        partitions: Partitions whose position changes.
        read_again: Offsets that the next run reads again.
        archived: Those of them that it reads from the archive.
        cpu_seconds: CPU time of the tasks that read these offsets before, to be expected again.
        followers: The derived tables, exports and other followers that have read the stream, with the effect on each.
        copies: The effect on copies of undone rows outside of the table.
    """

    PLAN: ClassVar[str] = "the rewind"

    to_batch: int
    to_at: datetime | None
    last_batch: int
    generation: int
    batches: int
    rows: int
    quarantined: int
    restores_undone: bool
    decisions: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: tuple[RewoundPartition, ...]
    read_again: int
    archived: int
    cpu_seconds: float
    followers: tuple[FollowerEffect, ...]
    copies: tuple[str, ...] = ()

    def describe(self) -> Description:
        """Return its description."""
        back = "undone by an earlier rewind, it is restored" if self.restores_undone else ""
        accepted = [f"accepted since, to be accepted again: {decision}" for decision in self.decisions]
        adopted = [f"adopted later, read again from its first offset: {topic}" for topic in self.topics]
        facts = (
            Labelled("back to batch", self.to_batch, note=back),
            Labelled("committed at", self.to_at),
            Labelled("last batch now", self.last_batch),
            Labelled("batches that go", self.batches),
            Labelled("rows that go", self.rows),
            Labelled("messages that leave quarantine and late table", self.quarantined),
            Labelled("offsets to read again", self.read_again),
            Labelled("of these from the archive", self.archived),
            Labelled("CPU seconds when they were read", self.cpu_seconds),
            Labelled("new generation", self.generation),
        )
        notes = (*accepted, *adopted, *self.copies)
        return self.make_description(
            "rewind",
            facts,
            records=(
                Records.of(
                    "partitions",
                    self.partitions,
                    "topic partition position back_to read_again log_start archived expired",
                ),
                make_effect_records(self.followers),
            ),
            notes=notes,
        )


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a rewind.

    Attributes:
        plan: Its plan.
        batch: The batch that is the rewind.
        version: Version of the output table after it.
        published: Whether Kafka shows the positions as group offsets; the next start publishes them again.
    """

    plan: RewindPlan
    batch: int
    version: int
    published: bool

    def describe(self) -> Description:
        """Return its description."""
        plan = self.plan
        start = f"lockstep start {plan.stream} in Dagster, or lockstep run {plan.stream} [--available-now] here"
        facts = (
            Labelled("back at batch", plan.to_batch),
            Labelled("by batch", self.batch),
            Labelled("generation", plan.generation),
            Labelled("rows that went", plan.rows),
        )
        return Description(
            title=f"{plan.stream}: rewound and stopped",
            facts=facts,
            notes=describe_unpublished(self.published),
            records=(make_effect_records(plan.followers),),
            next_steps=(
                f"deploy the corrected code, then {start}",
                f"to take it back: lockstep rewind {plan.stream} --to {plan.last_batch} --why '...'",
            ),
        )


def describe_unpublished(published: bool) -> tuple[str, ...]:  # noqa: FBT001  # a field of the results
    """Note that Kafka did not take the positions; nothing if it did."""
    if published:
        return ()
    return ("Kafka did not take the group offsets, the next start publishes them",)


def find_target(folders: StreamFolders, head: Head, to: str) -> Head:
    """The head right after the batch that `--to` means.

    Args:
        folders: Folders of the stream.
        head: The head now.
        to: A batch number; a time (UTC unless it has a zone): the last batch by then; TOPIC/PARTITION@OFFSET: the
            last batch before that message; or the name of a savepoint.

    Raises:
        NotRewindable: The batch does not exist, or its files may be deleted.
        TableError: The savepoint does not exist.
        LockstepError: The text is none of these, or the message was not read.
    """
    if to.isdecimal():
        batch = int(to)
    elif "@" in to:
        batch = _find_batch_before(folders, head, to)
    elif SAVEPOINT_NAME.fullmatch(to):
        batch = find_savepoint(head, to).batch
    else:
        batch = _find_batch_at(folders, _parse_time(to))
    return read_head_of_batch(folders, head, batch)


def _parse_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        step = (
            "a batch (4711), a time (2026-11-20T14:00), a message (TOPIC/PARTITION@OFFSET) or the name of a savepoint"
        )
        raise LockstepError(f"{text!r} names no batch", next_step=step) from None
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time


def _find_batch_at(folders: StreamFolders, at: datetime) -> int:
    head = delta_log.find_head_at(folders.table, at)
    if head is None:
        step = f"lockstep history {folders.stream} shows where the log starts"
        raise LockstepError(
            f"the log of {folders.stream} does not go back to {at:%Y-%m-%d %H:%M:%S %Z}", next_step=step
        )
    return head.batch


def _find_batch_before(folders: StreamFolders, head: Head, text: str) -> int:
    """The last batch that counts before the one that read a message, or passed over it."""
    try:
        place = Place.parse(text)
    except ValueError as wrong:
        raise LockstepError(f"{text!r} is not a message", next_step=str(wrong)) from None
    columns = ["batch", "generation", "topic_id", "topic", "partition", "start", "until"]
    rows = ledger.read_columns(folders.ledger, columns, first_batch=head.rewind_floor)
    here = rows.filter((pc.field("topic") == place.topic) & (pc.field("partition") == place.partition)).to_pylist()
    valid = head.valid_batches
    counts = [row for row in here if row["batch"] <= valid.get(row["generation"], -1)]
    # Of several topics of the name the last one is meant: an offset of the others was another message.
    life = [row for row in counts if row["topic_id"] == counts[-1]["topic_id"]]
    # Also the range that passed over the offset, as over a hole.
    first = next((row for row in life if row["until"] > place.offset), None)
    step = f"lockstep topics {folders.stream} shows the positions; lockstep message shows a message"
    if first is None:
        raise LockstepError(f"{text} has not been read by {folders.stream} since its rewind floor", next_step=step)
    if first["start"] > place.offset:
        problem = f"{text} was read before batch {first['batch']}, the first from the rewind floor on, or never"
        raise LockstepError(problem, next_step=step)
    return int(first["batch"]) - 1


class PlannedRewind(msgspec.Struct, frozen=True):
    """A plan, with what its commit needs.

    Attributes:
        plan: The plan.
        head: The head for which it was made.
        target: The head right after the batch to which it goes back.
        rows: The positions after the rewind, before they have the stamp of its batch.
        needs: Files that it brings back or refers to, with the least size of each.
        undone: The batches that it undoes.
    """

    plan: RewindPlan
    head: Head
    target: Head
    rows: tuple[LedgerRow, ...]
    needs: Mapping[Path, int]
    undone: UndoneBatches


def rewind_stream(handle: StreamHandle, to: str, *, who: str, why: str, accept_expired: bool = False) -> Rewound:
    """Prepare a rewind and commit it. Raises as both do."""
    return prepare_rewind(handle, to, cause=f"{why} ({who})", accept_expired=accept_expired).commit()


def prepare_rewind(
    handle: StreamHandle, to: str, *, cause: str = "", accept_expired: bool = False
) -> Prepared[RewindPlan, Rewound]:
    """Plan a rewind; changes nothing. Takes one to three seconds, to see whether a writer is alive.

    Its commit is of the head that was planned on. The stream is stopped afterwards.

    Args:
        handle: The stream.
        to: The target, as `find_target` takes it.
        cause: The reason and the operator.
        accept_expired: Rewind although some messages are neither in Kafka nor in the archive: their rows are removed,
            and not read again.

    Raises:
        NoTable: The stream has never run.
        NotRewindable, TableError, LockstepError: As `find_target`.
        KafkaError: Kafka does not answer.

    The commit raises:
        Refused: Names every obstacle; or rows were dropped by retention meanwhile.
        NotRewindable, TableError: A batch was committed meanwhile, or a file that it needs is gone.
        Overtaken: Another run or command claimed the table meanwhile.
    """
    planned = plan_rewind(handle, to)
    obstacles = drop_accepted(planned.plan.obstacles, {RewindReason.EXPIRED: accept_expired})
    plan = msgspec.structs.replace(planned.plan, obstacles=obstacles)
    return Prepared(plan, partial(_carry_out, handle, msgspec.structs.replace(planned, plan=plan), cause))


def _carry_out(handle: StreamHandle, planned: PlannedRewind, cause: str) -> Rewound:
    """Commit, then publish the positions; the next start does so too."""
    landed = commit_prepared_rewind(handle.folders, planned, cause)
    return Rewound(
        plan=planned.plan,
        batch=landed.batch,
        version=landed.batch_version,
        published=publish_positions(handle, planned.rows),
    )


def plan_rewind(handle: StreamHandle, to: str) -> PlannedRewind:
    """Plan a rewind, with what its commit needs. Raises as `prepare_rewind` does."""
    folders = handle.folders
    head = handle.require_head()
    target = find_target(folders, head, to)
    target_rows = ledger.read_positions_at(folders, target.batch, full_batch=target.full_ledger_batch)
    since = _RewoundBatches(folders, head, find_common_batch(head, target))
    newest = {**since.forgotten, **handle.positions}
    rows = tuple(make_rewound_rows(target_rows, newest, since.first, read_archived_ends(folders, head)))
    back = _list_files_to_restore(folders, target)
    state, damaged = find_state_files(folders, rows)
    unread = (*rows, *make_unplaced_rows(target_rows, newest, since.first))
    partitions = tuple(_compare(handle.readable, newest, unread))
    undone = list_undone(folders, handle.stream, head, target)
    copies = find_undone_copies(undone)
    obstacles = (
        *_find_obstacles(handle, head, target, partitions),
        *copies.obstacles,
        *_find_gone(folders, back.items(), damaged),
    )
    plan = RewindPlan(
        stream=head.stream,
        to_batch=target.batch,
        to_at=_find_commit_time(folders, target),
        last_batch=head.batch,
        generation=head.generation + 1,
        batches=len(since.batches),
        rows=count_rows(folders, None) - count_rows_of(folders, target),
        quarantined=since.set_aside,
        restores_undone=target.batch > head.valid_batches.get(target.generation, -1),
        decisions=since.decisions,
        topics=tuple(sorted({row.topic for row in rows} - {row.topic for row in target_rows.values()})),
        partitions=partitions,
        read_again=sum(partition.read_again for partition in partitions),
        archived=sum(partition.archived for partition in partitions),
        cpu_seconds=round(since.cpu_seconds, 1),
        followers=list_effects(folders.stream, folders.root, undone_after=find_common_batch(head, target)),
        copies=copies.notes,
        obstacles=obstacles,
    )
    return PlannedRewind(plan, head, target, rows, {**state, **back}, undone)


def _list_files_to_restore(folders: StreamFolders, target: Head) -> dict[Path, int]:
    """The files of a batch that the table does not name any more, with their sizes."""
    now = dict(list_named_files(folders.table))
    return {path: size for path, size in list_files_of(folders, target).items() if path not in now}


def find_common_batch(head: Head, target: Head) -> int:
    """The last batch that counts both for a head and for a target: the target, unless a rewind undid it. Pure."""
    ours = head.valid_batches
    theirs = target.valid_batches
    shared = ours.keys() & theirs.keys()
    return max((min(ours[generation], theirs[generation]) for generation in shared), default=0)


class _RewoundBatches:
    """The ledger's facts on the batches that count after a batch, read file by file: a month of them needs no memory.

    Attributes:
        batches: Their numbers.
        set_aside: Messages in quarantine and late table.
        cpu_seconds: CPU time of their tasks.
        decisions: What operators accepted, in order of batches.
        first: The first row of each partition.
        forgotten: The last row of each partition that was forgotten: it is not among the positions.
    """

    def __init__(self, folders: StreamFolders, head: Head, batch: int) -> None:
        self.batches = set[int]()
        self.set_aside = 0
        self.cpu_seconds = 0.0
        self.first = dict[TopicIdPartition, LedgerRow]()
        self.forgotten = dict[TopicIdPartition, LedgerRow]()
        noted = list[tuple[int, str]]()
        counts = head.valid_batches
        for rows in ledger.iterate_rows(folders.ledger, first_batch=batch + 1, last_batch=head.batch):
            for row in rows:
                if row.batch > counts.get(row.generation, -1):
                    continue
                self.batches.add(row.batch)
                self.set_aside += row.quarantined + row.late
                self.cpu_seconds += row.cpu_seconds
                noted += [(row.batch, decision) for decision in _describe_decisions(row)]
                key = row.key
                if row.batch < self.first.setdefault(key, row).batch:
                    self.first[key] = row
                if row.lifecycle == ledger.FORGOTTEN and row.batch >= self.forgotten.setdefault(key, row).batch:
                    self.forgotten[key] = row
        # By the batch alone: decisions of one batch stay in the order of its rows.
        noted.sort(key=lambda item: item[0])
        self.decisions = tuple(decision for _, decision in noted)


class RewoundRows(msgspec.Struct, frozen=True):
    """The partitions as of a batch, as after a rewind to it.

    Attributes:
        placed: The positions: see `make_rewound_rows`.
        unplaced: Partitions without a position that are read all the same: see `make_unplaced_rows`.
        newest: The newest row of each partition now, also of those that were forgotten since the batch.
    """

    placed: tuple[LedgerRow, ...]
    unplaced: tuple[LedgerRow, ...]
    newest: Mapping[TopicIdPartition, LedgerRow]


def read_rewound_rows(
    folders: StreamFolders, head: Head, target: Head, now: Mapping[TopicIdPartition, LedgerRow]
) -> RewoundRows:
    """The positions of a batch, as a rewind to it would have them.

    Args:
        folders: Folders of the stream.
        head: Its head.
        target: The head right after the batch.
        now: The newest row of each partition, without those that are forgotten.

    Raises:
        TableError: A ledger file is missing or damaged.
    """
    target_rows = ledger.read_positions_at(folders, target.batch, full_batch=target.full_ledger_batch)
    since = _RewoundBatches(folders, head, find_common_batch(head, target))
    newest = {**since.forgotten, **now}
    return RewoundRows(
        placed=tuple(make_rewound_rows(target_rows, newest, since.first, read_archived_ends(folders, head))),
        unplaced=tuple(make_unplaced_rows(target_rows, newest, since.first)),
        newest=newest,
    )


def make_rewound_rows(
    held: Mapping[TopicIdPartition, LedgerRow],
    now: Mapping[TopicIdPartition, LedgerRow],
    since: Mapping[TopicIdPartition, LedgerRow],
    archived: Mapping[TopicIdPartition, ArchivedEnd],
) -> Iterable[LedgerRow]:
    """The positions after a rewind, before they have the stamp of its batch. Pure.

    Topics that were added since the target keep their first position, so that an offset that expired since is found
    missing; partitions that a topic got after its first batch do not: their growth is judged again. A topic that was
    retired since, without a message, stays retired, as does a topic that is gone: nothing of it can be read again. What
    the archive has is not archived again.

    Args:
        held: The newest row of each partition as of the target.
        now: The newest row of each partition, also of those that were forgotten since.
        since: The first row of each partition after the target.
        archived: The end of the archive in each partition.
    """
    judged_names = _list_judged_names(held, now)
    added = dict[TopicIdPartition, LedgerRow]()
    for key, row in since.items():
        if key not in held and not _is_judged_again(row, now.get(key), judged_names):
            added[key] = _before_first_message(row)
    for key, row in (*held.items(), *added.items()):
        # Nothing is left to read of it; otherwise its messages are read again.
        stays_retired = key in now and (now[key].until == row.until or now[key].is_gone)
        rewound = row.with_retirement_of(now[key]) if stays_retired else row
        archived_until = archived[key].until if key in archived else None
        yield msgspec.structs.replace(rewound, archived_until=archived_until)


def make_unplaced_rows(
    held: Mapping[TopicIdPartition, LedgerRow],
    now: Mapping[TopicIdPartition, LedgerRow],
    since: Mapping[TopicIdPartition, LedgerRow],
) -> Iterable[LedgerRow]:
    """Partitions without a position after a rewind that the next run reads again: their growth is judged again. Pure.

    Args:
        held: The newest row of each partition as of the target.
        now: The newest row of each partition, also of those that were forgotten since.
        since: The first row of each partition after the target.
    """
    judged_names = _list_judged_names(held, now)
    for key, row in since.items():
        if key not in held and _is_judged_again(row, now.get(key), judged_names):
            yield _before_first_message(row)


def _list_judged_names(
    held: Mapping[TopicIdPartition, LedgerRow], now: Mapping[TopicIdPartition, LedgerRow]
) -> Collection[str]:
    """Names of the topics as of the target whose next life an audit finds: the end of none of them is recorded."""
    return {row.topic for key, row in held.items() if key not in now or not now[key].is_gone}


def _is_judged_again(first: LedgerRow, now: LedgerRow | None, known: Collection[str]) -> bool:
    """Whether the audit judges a partition after the rewind: new partitions of a topic, other topics of its name.

    Args:
        first: The first row of the partition after the target.
        now: Its newest row: a topic that is gone is not found by an audit.
        known: Names of the topics whose next life it finds.
    """
    return (first.topic in known or first.lifecycle == GROWN) and (now is None or not now.is_gone)


def _before_first_message(row: LedgerRow) -> LedgerRow:
    position = Position(
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        next_offset=row.start,
        joined_at=row.joined_at,
    )
    stamp = LedgerStamp(
        generation=row.generation,
        batch=row.batch,
        epoch=row.epoch,
        committed_at=row.committed_at,
        batch_seconds=0.0,
        restart_cause=None,
    )
    return make_kept_row(stamp, position, retired=False)


def _find_obstacles(
    handle: StreamHandle, head: Head, target: Head, partitions: Sequence[RewoundPartition]
) -> Iterable[Obstacle]:
    if is_writer_alive(handle.folders.control, head.epoch):
        step = f"lockstep stop {head.stream} --why '...'; the plan does not change anything"
        yield Obstacle(RewindReason.WRITER, f"epoch {head.epoch} is writing", step)
    if target.batch == head.batch:
        step = "choose an earlier batch; lockstep history lists them"
        yield Obstacle(RewindReason.NO_CHANGE, f"batch {head.batch} is the last batch", step)
    if lost := [partition for partition in partitions if partition.expired and not partition.is_gone]:
        worst = max(lost, key=lambda partition: partition.expired)
        offsets = sum(partition.expired for partition in lost)
        problem = (
            f"neither Kafka nor the archive has {offsets} of the offsets to be read again, in {len(lost)} partitions, "
            f"most of {worst.topic}/{worst.partition}: {worst.expired} from {worst.back_to} on"
        )
        step = "go back to a later batch, or lose their rows: --accept-expired; a strict stream halts there"
        yield Obstacle(RewindReason.EXPIRED, problem, step)
    if gone := [partition for partition in partitions if partition.expired and partition.is_gone]:
        unread = [(partition.topic, partition.expired) for partition in gone]
        step = "go back to a later batch, or lose their rows: --accept-expired"
        yield Obstacle(RewindReason.EXPIRED, describe_gone(unread), step)


def describe_gone(unread: Sequence[tuple[str, int]]) -> str:
    """Describe offsets of topics that were deleted or re-created: no run reads them, from the archive neither.

    Args:
        unread: Topic and number of offsets of each partition.
    """
    names = format_some(sorted({topic for topic, _ in unread}))
    offsets = sum(count for _, count in unread)
    return (
        f"{offsets} of the offsets to be read again are of topics that were deleted or re-created: {names}; no run "
        "reads them; the archive keeps what it has of them for lockstep verify and lockstep message"
    )


def _find_gone(folders: StreamFolders, files: Iterable[tuple[Path, int]], damaged: Sequence[str]) -> Iterable[Obstacle]:
    step = f"restore them from a copy, or go back to another batch; lockstep repair {folders.stream} checks all files"
    if wrong := find_wrong_files(files):
        problem = f"data files of that version are missing or of another size: {format_some(wrong)}"
        yield Obstacle(RewindReason.DATA, problem, step)
    if damaged:
        problem = f"state of that batch cannot be read: {format_some([*damaged])}"
        yield Obstacle(RewindReason.STATE, problem, step)


def find_state_files(folders: StreamFolders, rows: Iterable[LedgerRow]) -> tuple[dict[Path, int], list[str]]:
    """The state files of all chains of some positions, with the least size of each; and what of them is missing."""
    needs = dict[Path, int]()
    wrong = list[str]()
    storage = find_storage(folders.state)
    stored = [(row, segment) for row in rows if (segment := read_position(row).state) is not None]
    chains = storage.map_files(partial(_try_read_chain, folders), [segment for _, segment in stored])
    for (row, _), chain in zip(stored, chains, strict=True):
        if isinstance(chain, StateDamaged):
            wrong.append(f"{row.topic}/{row.partition}: {chain.problem}")
            continue
        for ref in chain:
            path = folders.state / ref.file
            # A file holds segments of several partitions, so only its least size is known.
            needs[path] = max(needs.get(path, 0), ref.start + ref.length)
    statuses = storage.get_statuses(list(needs))
    for (path, size), status in zip(needs.items(), statuses, strict=True):
        if status is None or status.size < size:
            wrong.append(str(path))
    return needs, wrong


def _try_read_chain(folders: StreamFolders, segment: SegmentRef) -> tuple[SegmentRef, ...] | StateDamaged:
    """The chain of a segment, with itself; or its fault."""
    try:
        return (*read_header(folders.state, segment).chain, segment)
    except StateDamaged as error:
        return error


def _compare(
    view: ClusterView, now: Mapping[TopicIdPartition, LedgerRow], rows: Iterable[LedgerRow]
) -> Iterable[RewoundPartition]:
    for row in sorted(rows, key=lambda row: (row.topic, row.partition)):
        key = row.key
        position = now[key].until if key in now else row.until
        if position == row.until:
            continue
        ends = view.ends.get(key)
        again = max(0, position - row.until)
        log_start = None
        expired = again
        if ends is not None:
            # `start` counts the archive, `log_start` is Kafka's; without an archive there is only the former.
            log_start = ends.start if ends.log_start is None else ends.log_start
            expired = min(again, max(0, ends.start - row.until))
        yield RewoundPartition(
            topic=row.topic,
            topic_id=row.topic_id,
            partition=row.partition,
            position=position,
            back_to=row.until,
            log_start=log_start,
            read_again=again,
            archived=count_archived(ends, row.until + expired, position),
            expired=expired,
            is_gone=key in now and now[key].is_gone,
        )


def count_archived(ends: PartitionOffsets | None, start: int, until: int) -> int:
    """The offsets [start, until) that are read from the archive: Kafka no longer has them. Pure."""
    if ends is None or ends.log_start is None:
        return 0
    return max(0, min(until, ends.log_start) - start)


def _describe_decisions(row: LedgerRow) -> Iterable[str]:
    for decision in row.accepted:
        # The next run accepts again by itself what the declaration accepts.
        if decision.who == "the declaration":
            continue
        what = f"{decision.kind} of session {decision.session}" if decision.session else decision.kind
        place = f"{row.topic}/{row.partition}{show_range(decision.start, decision.until)}"
        yield f"batch {row.batch}: {what}, {place}: {decision.why} ({decision.who})"


def _find_commit_time(folders: StreamFolders, target: Head) -> datetime | None:
    entry = delta_log.read_entry(folders.table, target.batch_version)
    return None if entry is None else entry.written_at


def count_rows(folders: StreamFolders, version: int | None) -> int:
    """The rows of a version of the output table, by default the newest."""
    actions = delta_log.open_delta_table(folders.table, version=version).get_add_actions(flatten=True)
    return sum(count or 0 for count in actions["num_records"].to_pylist())


def count_rows_of(folders: StreamFolders, target: Head) -> int:
    """The rows of the output table right after a batch."""
    if target.files_version is None:
        return 0
    return count_rows(folders, target.files_version)


def commit_prepared_rewind(folders: StreamFolders, prepared: PlannedRewind, cause: str) -> Head:
    """Commit a rewind; returns the head after it.

    1. Refuse a rewind that a copy of undone rows forbids by now. Bring the side tables up to the head: a batch follows
       only after they hold the last batch.
    2. Write the positions of the target as the ledger file of the rewind.
    3. Commit: claim, batch and restored table in one; for a later hour if its hour was closed since.
    4. Bring the side tables up to it, as the next start would.

    Args:
        folders: Folders of the stream.
        prepared: The plan; its obstacles are not checked.
        cause: The reason and the operator.

    Raises:
        Refused: A copy of undone rows appeared since the plan, and forbids the rewind.
        Overtaken: Another run or command claimed the table since the plan.
        NotRewindable: A batch was committed since, or the files of the target may be deleted by now.
        TableError: A file that it needs is gone; or the side tables do not match the head.
    """
    # Checked again: copies may have appeared since the plan.
    refuse_undone_copies(prepared.undone, RewindPlan.PLAN)  # 1
    side_tables.catch_up_alongside_writer(folders, prepared.head)
    landed = _commit(folders, prepared, cause)  # 2, 3
    side_tables.SideLogs(folders).catch_up(landed)  # 4
    return landed


def _commit(folders: StreamFolders, planned: PlannedRewind, cause: str) -> Head:
    output = open_table(folders)
    head = planned.head
    now = ledger.read_clock()
    stamp = LedgerStamp(
        generation=head.generation + 1,
        batch=head.batch + 1,
        epoch=head.epoch + 1,
        committed_at=now,
        batch_seconds=0.0,
        restart_cause=f"rewind to batch {planned.target.batch}: {cause}",
    )
    file = ledger.write_ledger(folders.ledger, [_stamp(stamp, row) for row in planned.rows])
    rewind = RewindCommit(
        table=folders.table,
        seen=head,
        target=planned.target,
        commit_hour=find_next_hour(head),
        ledger=file,
        at=now.timestamp(),
        cause=cause,
        needs={**planned.needs, folders.ledger / file.path: file.size},
    )
    try:
        try:
            return commit_restored(output, commit_rewind(rewind), rewind.commit_hour).head
        except HourClosed:
            # Housekeeping closed it since: the files of a rewind do not depend on its hour.
            later = msgspec.structs.replace(rewind, commit_hour=find_next_hour(output.base().head))
            return commit_restored(output, commit_rewind(later), later.commit_hour).head
    except Fenced as fenced:
        raise Overtaken(head.stream, f"rewind to batch {planned.target.batch}", fenced) from fenced


def _stamp(stamp: LedgerStamp, row: LedgerRow) -> LedgerRow:
    stamped = make_kept_row(stamp, read_position(row), retired=row.retired)
    return msgspec.structs.replace(stamped, newest_timestamp=row.newest_timestamp)


def publish_positions(handle: StreamHandle, rows: Iterable[LedgerRow]) -> bool:
    """Show the positions to lag tools; the next run does so too."""
    try:
        offsets = {TopicNamePartition(row.topic, row.partition): row.until for row in rows if not row.retired}
        ConsumerGroup(handle.settings.kafka, handle.stream.name).publish(offsets)
    except KafkaError:
        return False
    return True
