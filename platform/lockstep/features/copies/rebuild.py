"""Rebuilds lost state files, byte by byte, from an older state and Kafka's messages: docs/backup.md, decision 30.

A batch's state is a function of the state before it and its messages. So the batches after the newest state that can be
read are folded again, each over its own range, and every resulting segment must equal the one that the ledger
describes. Only the lost file is put in place: no position, no row and no commit changes.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import msgspec
import pyarrow.compute as pc
import zstandard

from lockstep.declare.lookup import LookupNotBound
from lockstep.engine.driver.archived_log import find_archived
from lockstep.engine.driver.lookup_pins import find_lookup_tables
from lockstep.engine.driver.run import make_job
from lockstep.engine.executor.lookup_table import LookupUnusable
from lockstep.engine.executor.rejects import CRASHES_WORKER
from lockstep.engine.executor.task import run_task
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, RangeResult, TaskSpec
from lockstep.features.copies.copied_files import PARTIAL, copy_file
from lockstep.integrity.base import EPOCH, to_microseconds
from lockstep.model.position import Position, SegmentRef, TopicIdPartition
from lockstep.model.tuning import DEFAULT_TUNING
from lockstep.operations.inspect.state import find_state_version, read_segments
from lockstep.operations.plan_frame import (
    Description,
    Labelled,
    Obstacle,
    Plan,
    Prepared,
    Records,
    Refused,
    make_changed,
)
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import open_table
from lockstep.progress import report_items
from lockstep.state.changelog import (
    ZSTD_LEVEL,
    CompressedBlocks,
    StateDamaged,
    encode_segment,
    read_checksum,
    read_segment,
)
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import read_position
from lockstep.table.quarantine import UNKNOWN_SCHEMA

LOST = "lost state cannot be rebuilt"


class RebuildPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose state cannot be read.

    Attributes:
        topic: Topic name.
        topic_id: Kafka's id of the topic.
        partition: Partition number.
        problem: The fault of its state.
        from_batch: The newest batch whose state can be read; 0 for the empty state before the first batch.
        to_batch: The batch whose state is rebuilt.
        start: First offset to read again.
        until: First offset after those.
        batches: Batches to fold again.
        refused: Why it cannot be rebuilt; empty without a known reason.
    """

    topic: str
    topic_id: str
    partition: int
    problem: str
    from_batch: int
    to_batch: int
    start: int
    until: int
    batches: int
    refused: str


class RebuildPlan(Plan, frozen=True, kw_only=True):
    """The plan or the result of a rebuild.

    Attributes:
        partitions: Those whose state cannot be read.
        files: Files that were put in place; empty for a plan.
    """

    PLAN: ClassVar[str] = "the rebuilding of state"

    partitions: tuple[RebuildPartition, ...]
    files: tuple[str, ...] = ()

    @property
    def is_due(self) -> bool:
        """Whether state cannot be read, and is not rebuilt yet."""
        return bool(self.partitions) and not self.files

    def describe(self) -> Description:
        """Return its description."""
        if not self.partitions:
            return self.make_description("all state is whole, nothing to rebuild", ())
        facts = (
            Labelled("partitions whose state cannot be read", len(self.partitions)),
            Labelled("state files rebuilt as they were", len(self.files)),
        )
        page = self.make_description(
            "rebuilding of state",
            facts,
            records=(
                Records.of("partitions", self.partitions, "topic partition from_batch to_batch start until batches"),
            ),
        )
        steps = (f"lockstep verify {self.stream}",) if self.files else ()
        return msgspec.structs.replace(page, next_steps=steps)


def _refuse(stream: str, problems: Iterable[str]) -> Refused:
    return Refused(stream, RebuildPlan.PLAN, [_make_obstacle(stream, problem) for problem in problems])


def _make_obstacle(stream: str, problem: str) -> Obstacle:
    step = (
        f"put the files back from a backup, or rewind to a batch or savepoint whose state is whole: "
        f"lockstep savepoint list {stream}"
    )
    return Obstacle(LOST, problem, step)


class _Damage(msgspec.Struct, frozen=True):
    """A partition with its ledger rows from the newest readable state on; `before` is None for the empty state."""

    shown: RebuildPartition
    before: LedgerRow | None
    rows: tuple[LedgerRow, ...]


def rebuild_state(handle: StreamHandle) -> RebuildPlan:
    """Prepare a rebuild and commit it. Raises as both do."""
    return prepare_rebuild(handle).commit()


def prepare_rebuild(handle: StreamHandle) -> Prepared[RebuildPlan, RebuildPlan]:
    """Plan to rebuild the state files that the stream and its savepoints need and that are lost or damaged.

    Reads all state; for each partition with damage it finds the newest older state that is whole.

    Args:
        handle: The stream.

    Raises:
        NoTable: The stream has never run.
        KafkaError: Kafka does not answer.

    The commit raises:
        Refused: Kafka lacks messages, a version of a lookup is gone or was never named, or the code no longer makes
            its bytes of that time; or the stream was rewound or a session erased meanwhile.
    """
    head = handle.require_head()
    damages = _find_damages(handle)
    stream = handle.stream.name
    partitions = tuple(damage.shown for damage in damages)
    refused = [partition for partition in partitions if partition.refused]
    obstacles = tuple(_make_obstacle(stream, _name(partition, partition.refused)) for partition in refused)
    plan = RebuildPlan(stream=stream, obstacles=obstacles, partitions=partitions)
    return Prepared(plan, partial(_carry_out, handle, head, damages, plan))


def _carry_out(handle: StreamHandle, seen: Head, damages: Sequence[_Damage], plan: RebuildPlan) -> RebuildPlan:
    """Rebuild state files.

    1. In a scratch folder fold each batch again; compare its segment with the ledger's length and checksum, and with
       the file if that is whole.
    2. Put the files in place, each in one step; read all again.
    """
    if not damages:
        return plan
    with TemporaryDirectory(prefix="lockstep-rebuild-") as folder:
        replayed = _BatchReplay(handle, Path(folder))
        for damage in report_items(damages, "rebuilding partitions", len(damages)):
            replayed.run(damage)  # 1
        now = open_table(handle.folders).base().head
        # The files would bring back state of undone batches, or of the erased session.
        if (now.generation, now.erasure, now.promotion) != (seen.generation, seen.erasure, seen.promotion):
            raise make_changed(plan.stream, plan.PLAN, "the stream was rewound, or a session erased")
        replayed.install()  # 2
    if remaining := _find_damages(handle):
        raise _refuse(plan.stream, [_name(damage.shown, damage.shown.problem) for damage in remaining])
    return msgspec.structs.replace(plan, files=tuple(sorted(replayed.files)))


def _name(partition: RebuildPartition, problem: str) -> str:
    return f"{partition.topic}/{partition.partition}: {problem}"


def _find_damages(handle: StreamHandle) -> list[_Damage]:
    folders = handle.folders
    needed = list(_list_needed(folders, handle.require_head()))
    read_one_by_one = report_items(needed, "reading state of partitions", len(needed))
    damaged = [(row, head, problem) for row, head in read_one_by_one if (problem := _find_problem(folders, row))]
    histories = _read_histories(folders, {row.key for row, _, _ in damaged})
    # The last batch and a savepoint may name the same state.
    damages = dict[tuple[TopicIdPartition, int], _Damage]()
    for row, head, problem in damaged:
        last_batches = head.valid_batches
        key = row.key
        valid = [earlier for earlier in histories[key] if earlier.batch <= last_batches.get(earlier.generation, -1)]
        history = [earlier for earlier in valid if earlier.batch <= row.batch]
        damages[key, row.batch] = _trace(handle, history, problem)
    return list(damages.values())


def _read_histories(
    folders: StreamFolders, keys: AbstractSet[TopicIdPartition]
) -> dict[TopicIdPartition, list[LedgerRow]]:
    """The ledger rows of some partitions, in order of their batches; those of the others are not held.

    A lost file damages all partitions of its bin, and the ledger of a year has a hundred million rows.
    """
    if not keys:
        return {}
    histories: dict[TopicIdPartition, list[LedgerRow]] = {key: [] for key in keys}
    for rows in ledger.iterate_rows(folders.ledger):
        for row in rows:
            key = row.key
            if key in histories:
                histories[key].append(row)
    for history in histories.values():
        history.sort(key=lambda row: row.batch)
    return histories


def _list_needed(folders: StreamFolders, head: Head) -> Iterator[tuple[LedgerRow, Head]]:
    """The positions that must have a state, each with its head: of the last batch, and of savepoints."""
    for row in ledger.read_positions(folders, head).values():
        yield row, head
    for savepoint in head.savepoints:
        entry = delta_log.read_entry(folders.table, savepoint.version)
        if entry is None or entry.head is None:
            continue
        saved = entry.head
        for row in ledger.read_positions_at(folders, saved.batch, full_batch=saved.full_ledger_batch).values():
            yield row, saved


def _find_problem(folders: StreamFolders, row: LedgerRow) -> str:
    """Why the state of a row cannot be read; empty if it can."""
    try:
        for _ in read_segments(find_state_version(row), folders.state):
            pass
    except StateDamaged as error:
        return error.problem
    return ""


def _trace(handle: StreamHandle, rows: Sequence[LedgerRow], problem: str) -> _Damage:
    """Go back from the state of a partition's last row, which is damaged, to the newest one before that is whole."""
    damaged = rows[-1]
    index = len(rows) - 1
    # A row without a state file needs no file to be read.
    while index >= 0 and (rows[index].state_file is not None and _find_problem(handle.folders, rows[index])):
        index -= 1
    before = rows[index] if index >= 0 else None
    after = tuple(rows[index + 1 :])
    shown = RebuildPartition(
        topic=damaged.topic,
        topic_id=damaged.topic_id,
        partition=damaged.partition,
        problem=problem,
        from_batch=0 if before is None else before.batch,
        to_batch=damaged.batch,
        start=after[0].start,
        until=damaged.until,
        batches=sum(1 for row in after if row.state_bytes or row.messages),
        refused=_find_refusal(handle, before, after),
    )
    return _Damage(shown, before, after)


def _find_refusal(handle: StreamHandle, before: LedgerRow | None, rows: Sequence[LedgerRow]) -> str:
    """Why these rows cannot be folded again; empty if Kafka has all of their messages."""
    first = rows[0]
    read = [row for row in rows if row.messages]
    ends = handle.readable.ends.get(TopicIdPartition(first.topic_id, first.partition))
    if problem := _find_gone(rows, handle.require_head().quarantine_unknown_up_to):
        return problem
    for last, row in zip((before, *rows), rows, strict=False):
        if _is_without_messages(last, row):
            return f"batch {row.batch} has a state without messages: of an erasure, a promotion or an import"
    if not read:
        return ""
    if ends is None:
        return f"Kafka has no topic {first.topic} with id {first.topic_id} any more"
    if (start := _find_start(read[0])) < ends.start:
        return f"Kafka has deleted offsets {start} to {ends.start - 1}, which were read since batch {first.batch}"
    return ""


def _find_gone(rows: Sequence[LedgerRow], unknown_up_to: int) -> str:
    """Why the messages that were read are not known any more; empty if they are."""
    if erasure := next((row for row in rows if row.erased), None):
        return f"batch {erasure.batch} erased a session since, whose messages a rebuild would fold again"
    if unknown := next((row for row in rows if row.quarantined and row.batch <= unknown_up_to), None):
        return (
            f"batch {unknown.batch} quarantined {unknown.quarantined} messages that retention has dropped: which of "
            "them killed a worker, or had an unknown schema, is not known any more"
        )
    return ""


def _is_without_messages(before: LedgerRow | None, row: LedgerRow) -> bool:
    """Whether the state changed in a batch without messages."""
    if row.state_bytes or row.messages or row.start != row.until or row.state_file is None:
        return False
    return before is None or read_position(before).state != read_position(row).state


def _find_start(row: LedgerRow) -> int:
    """The first offset that had not expired when a row was read."""
    start = row.start
    for hole in row.holes:
        if hole.cause == "expired" and hole.start == start:
            start = hole.until
    return start


class _BatchReplay:
    """Folds batches again, and keeps the resulting files."""

    def __init__(self, handle: StreamHandle, scratch: Path) -> None:
        self._handle = handle
        self._state = handle.folders.state
        settings = handle.settings.model_copy(update={"table_root": scratch / "tables", "local_root": scratch / "hot"})
        self._folders = StreamFolders(handle.stream.name, settings.table_root)
        lookups = find_lookup_tables(handle.stream, handle.settings.table_root)
        # Batches end where they ended before.
        tuning = msgspec.structs.replace(DEFAULT_TUNING, rows_bytes=sys.maxsize)
        job = make_job(handle.stream, settings, self._folders, tuning)
        self._job: JobSpec = msgspec.structs.replace(job, lookups=lookups)
        self.files: dict[str, bytearray] = {}

    def run(self, damage: _Damage) -> None:
        """Fold the batches of a partition."""
        last_row = damage.before
        undecoded = self._find_undecoded(damage)
        if last_row is not None:
            for segment in _list_refs(self._state, last_row):
                self._take_file(segment)
        for row in damage.rows:
            # Messages that an operator gave up were never read.
            is_read = row.start != row.until and not row.is_loss
            if row.state_bytes or row.messages or is_read:
                self._fold(last_row, row, undecoded.get((row.generation, row.batch), ()))
            last_row = row

    def _take_file(self, ref: SegmentRef) -> None:
        target = self._folders.state / ref.file
        find_storage(target).make_folder(target.parent)
        if not find_storage(target).exists(target):
            # Into the scratch folder: the stream may run and use its own state.
            copy_file(self._state / ref.file, target)

    def _fold(self, before: LedgerRow | None, row: LedgerRow, undecoded: tuple[int, ...]) -> None:
        watermark_us = None
        # A partition without messages advances to the watermark that its batch was planned with.
        if row.watermark and not row.messages:
            watermark_us = to_microseconds(row.watermark - EPOCH)
        planned = PlannedRange(
            self._find_position(before, row),
            row.until,
            watermark_us,
            undecoded,
            row.leader_epoch,
            patient=True,
        )
        handle = self._handle
        planned = find_archived(handle.folders.archive, handle.readable, handle.archived, planned)
        batch = BatchIdentity(
            generation=row.generation,
            epoch=row.epoch,
            number=row.batch,
            commit_hour="1970-01-01T00",
            planned_at_us=0 if row.planned_at is None else to_microseconds(row.planned_at - EPOCH),
            lookups=tuple(row.lookups or ()),
        )
        try:
            (result,) = run_task(self._job, TaskSpec(batch, (planned,))).ranges
        except (LookupNotBound, LookupUnusable) as error:  # declared after the batch, or its version was vacuumed
            problem = f"batch {row.batch} of {row.topic}/{row.partition} cannot be folded again: {error.problem}"
            raise _refuse(self._handle.stream.name, [problem]) from error
        if result.trouble is not None and result.reached.next_offset < row.until:  # a limit of this machine
            problem = f"batch {row.batch} of {row.topic}/{row.partition} cannot be folded again: {result.trouble}"
            raise _refuse(self._handle.stream.name, [problem])
        self._check_counts(row, result)
        if row.state_bytes:
            self._keep(row, result)

    def _find_position(self, before: LedgerRow | None, row: LedgerRow) -> Position:
        """The position at the start of the batch, as the engine had it."""
        topic = self._handle.view.topics.get(row.topic)
        position = Position(topic=row.topic, topic_id=row.topic_id, partition=row.partition, next_offset=row.start)
        if before is not None:
            position = read_position(before)
        # Offsets that had expired then are not in Kafka now either.
        start = _find_start(row)
        is_only = topic is None or topic.partitions == 1
        position = msgspec.structs.replace(
            position, next_offset=start, is_only=is_only, joined_at=row.joined_at, catching_up=row.catching_up
        )
        # A partition that was suspended after its start was suspended by a message, which is folded again.
        if (start != row.start or before is None) and row.suspended_from <= start:
            return msgspec.structs.replace(position, suspended_from=row.suspended_from)
        return position

    def _check_counts(self, row: LedgerRow, result: RangeResult) -> None:
        counts = result.counts
        replayed = (result.reached.next_offset, counts.messages, result.rows, counts.quarantined, counts.buffered)
        expected = (row.until, row.messages, row.rows, row.quarantined, row.buffered)
        if replayed != expected:
            names = "end, messages, rows, quarantined and buffered"
            self._refuse(row, f"folded again it has {names} {replayed}, not {expected}")

    def _keep(self, row: LedgerRow, result: RangeResult) -> None:
        """Name the new segment like the lost file, and compare it with the ledger."""
        ref = read_position(row).state
        made = result.reached.state
        if ref is None or made is None:
            self._refuse(row, "folded again it has another state")
            return
        version = find_state_version(row)
        segment = read_segment(self._folders.state, made, version)
        header = msgspec.structs.replace(segment.header, file=ref.file)
        # Encoded again: the name of the file is in the header.
        packed = CompressedBlocks((bytes(segment.body),), header.entries, 0)
        data = encode_segment(header, packed, zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True))
        checksum = read_checksum(data)
        if len(data) != ref.length or row.state_checksum not in {checksum, None}:
            self._refuse(row, f"folded again its state has {len(data)} bytes, checksum {checksum:08x}")
        self._put(ref, data)

    def _put(self, ref: SegmentRef, data: bytes) -> None:
        storage = find_storage(self._state)
        path = self._state / ref.file
        if ref.file not in self.files:
            # A bin holds the state of several partitions: the parts that are whole stay.
            self.files[ref.file] = bytearray(storage.read(path) if storage.exists(path) else b"")
        content = self.files[ref.file]
        content.extend(bytes(max(0, ref.start + ref.length - len(content))))
        content[ref.start : ref.start + ref.length] = data
        target = self._folders.state / ref.file
        find_storage(target).replace(target, bytes(content))

    def _refuse(self, row: LedgerRow, problem: str) -> None:
        text = f"batch {row.batch} of {row.topic}/{row.partition}: {problem}; the code is not that of then"
        raise _refuse(self._handle.stream.name, [text])

    def _find_undecoded(self, damage: _Damage) -> dict[tuple[int, int], tuple[int, ...]]:
        """Messages that are not decoded now either, by generation and batch.

        They killed each worker that decoded them, or the registry did not know their schema then.
        """
        quarantine = delta_log.open_delta_table(self._handle.folders.quarantine).to_pyarrow_dataset()
        finding = pc.field("found")
        is_undecoded = (finding == str(CRASHES_WORKER)) | pc.starts_with(finding, UNKNOWN_SCHEMA)
        is_here = (pc.field("topic_id") == damage.shown.topic_id) & (pc.field("partition") == damage.shown.partition)
        rows = quarantine.to_table(columns=["generation", "batch", "offset"], filter=is_here & is_undecoded).to_pylist()
        offsets = dict[tuple[int, int], list[int]]()
        for row in rows:
            offsets.setdefault((row["generation"], row["batch"]), []).append(row["offset"])
        return {batch: tuple(sorted(of_batch)) for batch, of_batch in offsets.items()}

    def install(self) -> None:
        """Put the files that differ in place, each at once. Two rebuilds put the same bytes there."""
        storage = find_storage(self._state)
        for name, content in list(self.files.items()):
            path = self._state / name
            if storage.exists(path) and storage.read(path) == content:
                del self.files[name]
                continue
            draft = path.with_name(f"{name}.{uuid.uuid4().hex}{PARTIAL}")
            pending = storage.open_pending(draft)
            try:
                pending.sink.write(content)
                pending.finish()
            finally:
                pending.abandon()
            storage.move(draft, path)


def _list_refs(state: Path, row: LedgerRow) -> Iterable[SegmentRef]:
    segment = read_position(row).state
    if segment is None:
        return ()
    return (*read_segment(state, segment, find_state_version(row)).header.chain, segment)
