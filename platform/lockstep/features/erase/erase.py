"""Erases one session of a stream: rows, state, quarantined and late messages; an erasure cannot be undone.

docs/decisions/0027 is the protocol, docs/erase.md the way through it. One commit removes rows and state and raises
the rewind floor to itself; the side tables follow it and can be finished by any process. What Kafka holds is not ours:
messages before the positions are not read again, later messages are as those of any new session.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep.control.heartbeat import is_writer_alive
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.planner import find_next_hour
from lockstep.errors import CommitUnknown, KafkaError, LockstepError
from lockstep.features.erase.commit import (
    ErasureCommit,
    commit_erasure,
    finish_erasure,
)
from lockstep.features.erase.ledger_redaction import count_named, redact_ledger
from lockstep.features.erase.places import PLACES, ErasedPlace
from lockstep.features.erase.rows import (
    ErasedPlaces,
    FileWithoutSession,
    WantedSession,
    count_rows,
    find_files_with,
    rewrite_without,
)
from lockstep.features.erase.side_redaction import count_messages, redact_side_tables
from lockstep.features.erase.state import ErasedState, StateKeys, count_entries, write_without
from lockstep.kafka.admin import ClusterView
from lockstep.model.position import TopicIdPartition
from lockstep.operations.followers import FollowerEffect, list_effects, make_effect_records
from lockstep.operations.inspect.state import find_state_version
from lockstep.operations.kept_rows import (
    ErasedHours,
    KeptRows,
    find_kept_rows,
    forget_sessions,
    has_new_copies,
    withdraw_copies,
)
from lockstep.operations.plan_frame import (
    Description,
    Labelled,
    Obstacle,
    Plan,
    Prepared,
    Records,
    Unit,
    drop_accepted,
    refuse_changed,
)
from lockstep.operations.repair import SET_ASIDE
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import open_table
from lockstep.progress import report_items
from lockstep.state.changelog import StateVersion
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import Base, HourClosed
from lockstep.table.head import Erasure, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import ErasedRows, LedgerRow
from lockstep.table.live_files import LiveFile, LiveFiles, make_removal
from lockstep.table.positions import LedgerStamp, make_kept_row, read_position
from lockstep.table.restore import write_mark
from lockstep.table.schema_evolution import evolve_side_table
from lockstep.table.session_digest import compute_session_digest
from lockstep.table.side_files import list_message_tables
from lockstep.table.written_by import WrittenBy
from lockstep.table.written_files import delete_on_error, delete_unless_committed

AGREED = ("last_batch", "rows", "messages", "savepoints", "obstacles")
"""Fields of a plan in which the committed erasure agrees with it; a compaction changes files and bytes."""
PLANS_MAX = 20
"""A compaction that replaces the files meanwhile makes a new plan necessary; so many in a row have another cause."""


class EraseReason(StrEnum):
    """Why an erasure is refused."""

    WRITER = "a writer is alive"
    NOTHING = "nothing of the session is in the tables"
    STATE = "the session has state"
    SAVEPOINTS = "savepoints keep its rows"
    HALTED = "the stream is halted by it"


class ErasedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The data that an erasure removes from one partition.

    Attributes:
        topic: Topic name.
        topic_id: Kafka's id of the topic.
        partition: Partition number.
        position: Its position, which stays.
        rows: Rows of the table.
        state_entries: Entries of the state: the session's own, its map rows, timers and buffered messages.
        quarantined: Messages in quarantine.
        late: Messages in the late table.
        archived: Messages in the archive.
        decisions: Ledger rows that name it, in decisions of operators.
        unread: Offsets in Kafka from the position on; None if Kafka does not answer.
    """

    topic: str
    topic_id: str
    partition: int
    position: int
    rows: int
    state_entries: int
    quarantined: int
    late: int
    archived: int
    decisions: int
    unread: int | None


class ErasePlan(Plan, frozen=True, kw_only=True):
    """The plan of an erasure.

    Attributes:
        digest: The digest in place of the session in head, log and ledger.
        topic: The topic to which it is restricted; empty for all.
        last_batch: The last batch now; the erasure is the next one, and no rewind goes below it.
        rows: Rows of the table that go.
        files: Data files that are written again.
        bytes: Their bytes.
        hours: Their commit hours.
        partitions: The partitions of the session.
        savepoints: Savepoints, which an erasure deletes.
        followers: The derived tables, exports and other followers that have read the stream, with the effect on each.
        notes: What else has to be known.
        places: Every place that can hold a session, and when it is gone from there.
    """

    PLAN: ClassVar[str] = "the erasure"

    digest: str
    topic: str
    last_batch: int
    rows: int
    files: int
    bytes: int
    hours: tuple[str, ...]
    partitions: tuple[ErasedPartition, ...]
    savepoints: tuple[str, ...]
    followers: tuple[FollowerEffect, ...]
    notes: tuple[str, ...]
    places: tuple[ErasedPlace, ...] = PLACES

    @property
    def messages(self) -> int:
        """Messages in quarantine, late table and archive."""
        return sum(partition.quarantined + partition.late + partition.archived for partition in self.partitions)

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("digest of the session", self.digest),
            Labelled("topic", self.topic or "all"),
            Labelled("by batch", self.last_batch + 1, note="no rewind goes below it afterwards"),
            Labelled("rows that go", self.rows),
            Labelled("quarantined, late or archived messages that go", self.messages),
            Labelled("files written again", self.files),
            Labelled("bytes written again", self.bytes, Unit.BYTES),
            Labelled("hours", len(self.hours)),
            Labelled("savepoints that go", ", ".join(self.savepoints) or "none"),
        )
        records = (
            Records.of(
                "partitions",
                self.partitions,
                "topic partition rows state_entries quarantined late archived decisions unread",
            ),
            Records.of("places that can hold a session", self.places, "place holds gone"),
            make_effect_records(self.followers),
        )
        return self.make_description("erasure", facts, records=records, notes=self.notes)


class SessionErased(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an erasure.

    Attributes:
        plan: Its plan; of an erasure that had been committed before, the rest of it: no rows.
        batch: The batch that is the erasure.
        version: Version of the output table after it.
        messages: Messages that were removed from quarantine, late table and archive.
    """

    plan: ErasePlan
    batch: int
    version: int
    messages: int

    def describe(self) -> Description:
        """Return its description."""
        plan = self.plan
        facts = (
            Labelled("digest of the session", plan.digest),
            Labelled("by batch", self.batch),
            Labelled("rows that went", plan.rows),
            Labelled("quarantined, late or archived messages that went", self.messages),
        )
        next_step = f"lockstep housekeeping {plan.stream} deletes the old files; lockstep verify {plan.stream}"
        return Description(
            title=f"{plan.stream}: session erased",
            facts=facts,
            notes=plan.notes,
            records=(make_effect_records(plan.followers),),
            next_steps=(next_step,),
        )


class EraseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's request to erase a session.

    Attributes:
        session: The session.
        topic: Only in this topic; empty for all.
        drop_state: Erase it although it has state: its next message then meets a session without one.
        drop_savepoints: Delete all savepoints: each of them keeps its rows, or lets its messages be read again.
    """

    session: str
    topic: str = ""
    drop_state: bool = False
    drop_savepoints: bool = False

    @property
    def accepted(self) -> Mapping[str, bool]:
        """Obstacles that it accepts."""
        return {EraseReason.STATE: self.drop_state, EraseReason.SAVEPOINTS: self.drop_savepoints}


class _Planned(NamedTuple):
    """A plan, with what its commit needs."""

    plan: ErasePlan
    head: Head
    files: list[LiveFile]
    positions: Mapping[TopicIdPartition, LedgerRow]


class EraseContext(msgspec.Struct, frozen=True):
    """The circumstances of an erasure, besides the tables.

    Attributes:
        stream: The declaration; None if it is unknown.
        view: The topics of the cluster; None if Kafka does not answer.
    """

    stream: AnyStream | None = None
    view: ClusterView | None = None


def read_context(handle: StreamHandle) -> EraseContext:
    """The context of a declared stream."""
    try:
        return EraseContext(handle.stream, handle.view)
    except KafkaError:
        return EraseContext(handle.stream)


def erase_session(
    folders: StreamFolders, request: EraseRequest, context: EraseContext, *, who: str, why: str
) -> SessionErased:
    """Prepare an erasure and commit it. Raises as both do."""
    return prepare_erasure(folders, request, context, cause=f"{why} ({who})").commit()


def prepare_erasure(
    folders: StreamFolders, request: EraseRequest, context: EraseContext, *, cause: str = ""
) -> Prepared[ErasePlan, SessionErased]:
    """Plan an erasure. Reads all state, and the data files that may hold the session.

    An erasure of the same session that was interrupted after its commit is finished by the commit, with its result.

    Args:
        folders: Folders of the stream.
        request: The session, and the accepted effects.
        context: Exported hours, and the state of Kafka.
        cause: The reason and the operator; it is stored, so it must not name the session.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head, or a file is damaged.
        StateDamaged: A state file is missing or damaged.

    The commit raises:
        Refused: Names every reason; or other rows or savepoints would go than in the plan.
        ErasureOvertaken: A batch was committed meanwhile.
        Fenced: Another run, or another operation, claimed the table meanwhile.
        TableError, StateDamaged: A file is damaged; nothing was committed.
    """
    planned = _plan(folders, request, context)
    obstacles = drop_accepted(planned.plan.obstacles, {EraseReason.NOTHING: _is_repeated(planned, request)})
    plan = msgspec.structs.replace(planned.plan, obstacles=obstacles)
    return Prepared(plan, partial(_carry_out, folders, planned, request, context, cause))


def _carry_out(
    folders: StreamFolders, planned: _Planned, request: EraseRequest, context: EraseContext, cause: str
) -> SessionErased:
    """Commit an erasure.

    1. Finish an earlier erasure that was interrupted: if it is this erasure and has nothing left to do, that is all.
    2. Write the data files without its rows and the state without its entries, each read back and compared.
    3. Commit both, the positions and the raised rewind floor; if a compaction replaced a file, plan again.
    4. Finish it: see `finish_erasing`.
    """
    # The head holds one erasure: the earlier one must be complete before it is replaced.
    finished = finish_erasing(folders)  # 1
    shown = planned.plan
    if _is_repeated(planned, request):
        planned = _plan(folders, request, context)
        if any(obstacle.kind == EraseReason.NOTHING for obstacle in planned.plan.obstacles):
            return _make_result(planned, finished)
        refuse_changed(shown, planned.plan, AGREED)
    for _ in range(PLANS_MAX):
        try:
            landed = _commit(folders, planned, request, context, cause)  # 2, 3
        except _FilesReplaced:
            planned = _plan(folders, request, context)
            refuse_changed(shown, planned.plan, AGREED)
            continue
        break
    else:
        raise CommitUnknown(f"{folders.table}: compactions overtook {PLANS_MAX} plans", next_step="try again")
    # An export may publish an hour between the check of the commit and the commit.
    withdraw_copies(ErasedHours(folders, context.stream, landed, planned.plan.hours))
    messages = finish_erasing(folders)  # 4
    return SessionErased(plan=planned.plan, batch=landed.batch, version=landed.batch_version, messages=messages)


def _is_repeated(prepared: _Planned, request: EraseRequest) -> bool:
    """Whether the newest erasure is of this session: the same command again, after a kill behind its commit."""
    erasure = prepared.head.erasure
    return erasure is not None and (erasure.digest, erasure.topic) == (prepared.plan.digest, request.topic)


def _make_result(prepared: _Planned, messages: int) -> SessionErased:
    """Rebuild the result of a committed erasure from the head."""
    erasure = cast("Erasure", prepared.head.erasure)
    plan = msgspec.structs.replace(prepared.plan, last_batch=erasure.batch - 1, obstacles=())
    return SessionErased(plan=plan, batch=erasure.batch, version=erasure.version, messages=messages)


def finish_erasing(folders: StreamFolders) -> int:
    """Finish an erasure that is committed; returns the messages removed from the side tables.

    Any process may do so, and housekeeping does, if the eraser died. Does nothing without an erasure.

    1. Rewrite quarantine, late table, archive, and the ledger of earlier batches.
    2. Make all features forget sessions.
    3. Delete log entries that `lockstep repair` moved away.
    4. Write log checkpoints, so that housekeeping can delete the log entries before it.
    5. Record that it is finished.
    """
    output = open_table(folders)
    head = output.base().head
    erasure = head.erasure
    if erasure is None or erasure.is_finished:
        return 0
    messages = redact_side_tables(folders, head, erasure)  # 1
    redact_ledger(folders, head, erasure)
    storage = find_storage(folders.root)
    forget_sessions(folders)  # 2
    storage.delete_folder(folders.control / SET_ASIDE)  # 3
    _write_checkpoints(folders, erasure.version)  # 4
    output.commit(finish_erasure(erasure.digest, erasure.batch))  # 5
    return messages


def _write_checkpoints(folders: StreamFolders, version: int) -> None:
    """Log entries have the least and the greatest session of each file: checkpoints let housekeeping delete them."""
    if version in delta_log.list_versions(folders.table):  # later, housekeeping has deleted it
        write_checkpoint(folders.table, version)
    for side in list_message_tables(folders):
        write_checkpoint(side)


class _FilesReplaced(LockstepError):
    """The files of the plan are not the live ones any more."""


def _plan(folders: StreamFolders, request: EraseRequest, context: EraseContext) -> _Planned:
    output = open_table(folders)
    base = output.base()
    head = base.head
    side_tables.catch_up_alongside_writer(folders, head)
    digest = compute_session_digest(output.table_id, request.session)
    wanted = WantedSession(request.session, request.topic)
    files_with_rows = find_files_with(folders.table, LiveFiles(folders.table).at(base.version), wanted)
    files = [file for file, _ in files_with_rows]
    counted = _count(folders, request, files)
    positions = ledger.read_positions(folders, head)
    # Partitions of deleted topics have rows, although their positions are forgotten.
    positions |= ledger.read_forgotten(folders.ledger, counted.keys - positions.keys())
    partitions = tuple(_find_partitions(folders, request, context, positions, counted))
    hours = tuple(sorted({file.commit_hour for file in files}))
    copies = find_kept_rows(ErasedHours(folders, context.stream, head, hours))
    plan = ErasePlan(
        stream=head.stream,
        digest=digest,
        topic=request.topic,
        last_batch=head.batch,
        rows=sum(rows for _, rows in files_with_rows),
        files=len(files),
        bytes=sum(file.size for file in files),
        hours=hours,
        partitions=partitions,
        savepoints=tuple(savepoint.name for savepoint in head.savepoints),
        followers=list_effects(folders.stream, folders.root),
        notes=tuple(_list_notes(copies, head, partitions)),
        obstacles=(),
    )
    obstacles = drop_accepted(_find_obstacles(folders, head, plan, request, copies), request.accepted)
    return _Planned(msgspec.structs.replace(plan, obstacles=obstacles), head, files, positions)


class _Counted(msgspec.Struct, frozen=True):
    """Rows and messages of the session by partition."""

    rows: Counter[TopicIdPartition]
    quarantined: Counter[TopicIdPartition]
    late: Counter[TopicIdPartition]
    archived: Counter[TopicIdPartition]
    decided: Mapping[TopicIdPartition, int]

    @property
    def keys(self) -> frozenset[TopicIdPartition]:
        return frozenset({*self.rows, *self.quarantined, *self.late, *self.archived, *self.decided})


def _count(folders: StreamFolders, request: EraseRequest, files: Sequence[LiveFile]) -> _Counted:
    table_id = open_table(folders).table_id
    digest = compute_session_digest(table_id, request.session)
    rows = count_rows(folders.table, files, WantedSession(request.session, request.topic))
    messages = count_messages(folders, table_id, digest, request.topic)
    decided = count_named(folders, table_id, digest, request.topic)
    return _Counted(
        rows=rows,
        quarantined=_count_by_partition(messages.get(folders.quarantine.name, ())),
        late=_count_by_partition(messages.get(folders.late.name, ())),
        archived=_count_by_partition(messages.get(folders.archive.name, ())),
        decided=decided,
    )


def _count_by_partition(messages: Iterable[Mapping[str, Any]]) -> Counter[TopicIdPartition]:
    return Counter(TopicIdPartition(message["topic_id"], message["partition"]) for message in messages)


def _find_partitions(
    folders: StreamFolders,
    request: EraseRequest,
    context: EraseContext,
    positions: Mapping[TopicIdPartition, LedgerRow],
    counted: _Counted,
) -> Iterator[ErasedPartition]:
    keys = StateKeys.of(request.session)
    holding = counted.keys
    for key, row in sorted(positions.items(), key=lambda item: (item[1].topic, item[0])):
        entries = _count_state(folders, row, request, keys)
        if entries or key in holding:
            yield ErasedPartition(
                topic=row.topic,
                topic_id=row.topic_id,
                partition=row.partition,
                position=row.until,
                rows=counted.rows[key],
                state_entries=entries,
                quarantined=counted.quarantined[key],
                late=counted.late[key],
                archived=counted.archived[key],
                decisions=counted.decided.get(key, 0),
                unread=_count_unread(context, key, row),
            )


def _count_state(folders: StreamFolders, row: LedgerRow, request: EraseRequest, keys: StateKeys) -> int:
    if request.topic not in {"", row.topic}:
        return 0
    return count_entries(folders.state, find_state_version(row), keys)


def _count_unread(context: EraseContext, key: TopicIdPartition, row: LedgerRow) -> int | None:
    ends = None if context.view is None else context.view.ends.get(key)
    if ends is None or row.retired:
        return None
    return max(0, ends.high_watermark - row.until)


def _list_notes(kept: KeptRows, head: Head, partitions: Sequence[ErasedPartition]) -> Iterator[str]:
    # None, if Kafka does not answer, is a reason as well.
    if any(partition.unread != 0 for partition in partitions):
        yield (
            "messages of the session that are not read yet will be read, as those of a session without state: "
            "stop its producer first"
        )
    yield from kept.notes
    yield f"Kafka keeps its messages for its own retention; a reset of {head.stream} would read them again"


def _find_obstacles(
    folders: StreamFolders, head: Head, plan: ErasePlan, request: EraseRequest, kept: KeptRows
) -> Iterator[Obstacle]:
    name = plan.stream
    if is_writer_alive(folders.control, head.epoch):
        step = f"lockstep stop {name} --why '...'; the plan does not change anything"
        yield Obstacle(EraseReason.WRITER, f"epoch {head.epoch} is writing", step)
    if not plan.partitions and not plan.rows:
        step = f"lockstep state {name} and lockstep query {name} show sessions; names are compared as they are"
        yield Obstacle(EraseReason.NOTHING, "no row, state, message or decision of that session is in the tables", step)
    if any(partition.state_entries for partition in plan.partitions):
        problem = "the session has state, which its next message would continue"
        step = "stop its producer; then add --drop-state: a later update meets a session without state"
        yield Obstacle(EraseReason.STATE, problem, step)
    if plan.savepoints:
        problem = f"savepoints {', '.join(plan.savepoints)} keep its rows, or let its messages be read again"
        step = f"lockstep savepoint delete {name} NAME, or add --drop-savepoints to delete all of them"
        yield Obstacle(EraseReason.SAVEPOINTS, problem, step)
    yield from kept.obstacles
    if any(finding.session == request.session for finding in head.all_findings):
        problem = "the stream is halted by a message of the session, which the head of the table names"
        step = f"lockstep resume {name} --plan; then erase"
        yield Obstacle(EraseReason.HALTED, problem, step)


def _commit(
    folders: StreamFolders, prepared: _Planned, request: EraseRequest, context: EraseContext, cause: str
) -> Head:
    """Write all files and commit them; deletes the files if the commit did not land."""
    output = open_table(folders)
    live = LiveFiles(folders.table)
    made = list[Path]()
    with delete_on_error(made):
        planned = _write_files(folders, prepared, request, cause, made)

    def check(base: Base) -> None:
        if live.missing([file.path for file in prepared.files], base.version):
            raise _FilesReplaced("a file of the session was replaced", next_step="nothing: it is planned again")
        if has_new_copies(ErasedHours(folders, context.stream, base.head, prepared.plan.hours)):
            raise _FilesReplaced("rows of the session were copied", next_step="nothing: it is planned again")
        if base.head.quarantine_retention != prepared.head.quarantine_retention:
            raise _FilesReplaced("messages of the session were dropped", next_step="nothing: it is planned again")

    with delete_unless_committed(made):
        try:
            return output.commit(commit_erasure(planned, check)).head
        except HourClosed:
            # Housekeeping closed the hour while the files were written; the files do not depend on it.
            later = msgspec.structs.replace(planned, commit_hour=find_next_hour(output.base().head))
            return output.commit(commit_erasure(later, check)).head


def _write_files(
    folders: StreamFolders, prepared: _Planned, request: EraseRequest, cause: str, made: list[Path]
) -> ErasureCommit:
    """Write the data files without the session, the state and the ledger file; notes each as it is made."""
    head = prepared.head
    written = list[FileWithoutSession]()
    # Named for the batch that it will be: clean-up keeps them until that is over.
    by = WrittenBy(head.generation, head.epoch + 1, head.batch + 1)
    wanted = WantedSession(request.session, request.topic)
    for file in report_items(prepared.files, "writing files without the session", len(prepared.files)):
        rewritten = rewrite_without(folders.table, file, wanted, by)
        written.append(rewritten)
        if rewritten.output is not None:
            made.append(folders.table / rewritten.output.path)
    states = _write_states(folders, prepared, request, by)
    made += {folders.state / state.segment.file for state in states.values() if state.segment is not None}
    planned = _make_commit(folders, prepared, written, states, request.session, cause)
    made.append(folders.ledger / planned.ledger.path)
    # Each file had rows of the session only: readers would take a commit without an added file for a deletion.
    if planned.removes and not planned.adds:
        schema = delta_log.open_delta_table(folders.table).schema()
        planned = msgspec.structs.replace(planned, adds=(write_mark(folders.table, schema, planned.commit_hour, by),))
        made.append(folders.table / planned.adds[0].path)
    return planned


def _write_states(
    folders: StreamFolders, prepared: _Planned, request: EraseRequest, by: WrittenBy
) -> dict[TopicIdPartition, ErasedState]:
    """New bases of all partitions with state: see features/erase/state.py."""
    keys = StateKeys.of(request.session)
    partitions: list[TopicIdPartition] = []
    states: list[tuple[StateVersion, StateKeys | None]] = []
    for key, row in prepared.positions.items():
        version = _make_version(prepared.head, row)
        if version.segment is None:
            continue
        partitions.append(key)
        is_meant = request.topic in {"", row.topic}
        states.append((version, keys if is_meant else None))
    return dict(zip(partitions, write_without(folders.state, by.label, states), strict=True))


def _make_version(head: Head, row: LedgerRow) -> StateVersion:
    return msgspec.structs.replace(find_state_version(row), generation=head.generation)


def _make_commit(
    folders: StreamFolders,
    prepared: _Planned,
    written: Sequence[FileWithoutSession],
    states: Mapping[TopicIdPartition, ErasedState],
    session: str,
    cause: str,
) -> ErasureCommit:
    head = prepared.head
    plan = prepared.plan
    now = ledger.read_clock()
    evolve_side_table(folders.ledger, ledger.SCHEMA)  # of an older release it lacks the column of erased rows
    erased = _find_erased(folders, prepared, written)
    stamp = LedgerStamp(
        generation=head.generation,
        batch=head.batch + 1,
        epoch=head.epoch + 1,
        committed_at=now,
        batch_seconds=0.0,
        restart_cause=f"erasure of the session with digest {plan.digest}: {cause}",
    )
    positions = prepared.positions.items()
    rows = [_make_row(stamp, row, states.get(key), erased.get(key, []), session) for key, row in positions]
    ledger_file = ledger.write_ledger(folders.ledger, rows)
    return ErasureCommit(
        seen=head,
        digest=plan.digest,
        topic=plan.topic,
        commit_hour=find_next_hour(head),
        ledger=ledger_file,
        adds=tuple(file.output for file in written if file.output is not None),
        removes=tuple(make_removal(file.source) for file in written),
        needs={**_list_needs(folders, states), folders.ledger / ledger_file.path: ledger_file.size},
        drops=plan.savepoints,
        at=now.timestamp(),
        cause=cause,
        texts=dict(_find_texts(head, session, plan.digest)),
    )


def _list_needs(folders: StreamFolders, states: Mapping[TopicIdPartition, ErasedState]) -> dict[Path, int]:
    """The files with the new states, with the least size of each."""
    segments = [state.segment for state in states.values() if state.segment is not None]
    return {folders.state / segment.file: segment.start + segment.length for segment in segments}


def _find_texts(head: Head, session: str, digest: str) -> Iterator[tuple[str, str]]:
    """Operators' reasons in the head that name the session, with the digest instead."""
    # As a whole word: a session "a" would else change every reason.
    name = re.compile(rf"(?<!\w){re.escape(session)}(?!\w)")
    texts = [head.reason]
    if head.last_resumption is not None:
        texts.append(head.last_resumption.cause)
    for text in texts:
        if session and name.search(text):
            yield text, name.sub(lambda _: digest, text)


def _make_row(
    stamp: LedgerStamp, row: LedgerRow, state: ErasedState | None, erased: list[ErasedRows], session: str
) -> LedgerRow:
    """The position of a partition; a decision to skip the session goes with it, as nothing is left to skip."""
    position = read_position(row)
    if erased:
        skipped = tuple(suspended for suspended in position.suspended_sessions if suspended.session != session)
        uncounted = tuple(name for name in position.uncounted_skips if name != session)
        position = msgspec.structs.replace(position, suspended_sessions=skipped, uncounted_skips=uncounted)
    if state is not None:
        position = msgspec.structs.replace(position, state=state.segment)
    row_after = make_kept_row(stamp, position, retired=row.retired)
    return msgspec.structs.replace(row_after, newest_timestamp=row.newest_timestamp, erased=erased)


def _find_erased(
    folders: StreamFolders, prepared: _Planned, written: Sequence[FileWithoutSession]
) -> dict[TopicIdPartition, list[ErasedRows]]:
    """The erased rows of each partition, by the batch that emitted them; at least one entry for each concerned."""
    places: dict[TopicIdPartition, list[ErasedPlaces]] = {}
    for file in written:
        for key, places_in_file in file.erased:
            places.setdefault(key, []).append(places_in_file)
    ranges = read_range_ends(folders, prepared.head, places.keys())
    digest = prepared.plan.digest
    erased = dict[TopicIdPartition, list[ErasedRows]]()
    for partition in prepared.plan.partitions:
        key = TopicIdPartition(partition.topic_id, partition.partition)
        erased[key] = list(count_erased(digest, places.get(key, ()), ranges.get(key, NO_ENDS)))
        # By an entry without rows the proof knows that quarantined or late messages of the partition are gone.
        if not erased[key]:
            start = partition.position
            none = ErasedRows(digest=digest, start=start, batch=prepared.head.batch + 1, rows=0, messages=0)
            erased[key] = [none]
    return erased


class RangeEnds(msgspec.Struct, frozen=True):
    """The ends of the ranges of one partition, in order of batches: one element a range.

    Attributes:
        until: The offset after the range.
        rows_emitted: Rows that timers emitted there.
        batch: The batch.
    """

    until: npt.NDArray[np.int64]
    rows_emitted: npt.NDArray[np.int64]
    batch: npt.NDArray[np.int64]

    @staticmethod
    def of(rows: npt.NDArray[np.int64]) -> RangeEnds:
        """Those of some rows: until, rows_emitted and batch of each."""
        ordered = rows[np.argsort(rows[:, 2], kind="stable")]
        return RangeEnds(ordered[:, 0], ordered[:, 1], ordered[:, 2])

    def find_batch(self, held: int, emitted: int, row: int) -> int:
        """The batch that emitted a row of a range: a timer emits at the end of the range before."""
        first = int(np.searchsorted(self.until, emitted, side="left"))
        for ended in range(first, held):
            if row < self.rows_emitted[ended]:
                return int(self.batch[ended])
        if not len(self.batch):
            return 0
        return int(self.batch[min(held, len(self.batch) - 1)])


NO_ENDS = RangeEnds.of(np.zeros((0, 3), np.int64))
_RANGE_COLUMNS = ["generation", "batch", "topic_id", "partition", "until", "rows_emitted"]


def read_range_ends(
    folders: StreamFolders, head: Head, keys: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, RangeEnds]:
    """The ranges of some partitions that count.

    Three numbers of each are in memory: the ledger of a year has a hundred million rows.
    """
    ends_by_key = {key: bytearray() for key in keys}
    if not ends_by_key:
        return {}
    for rows in ledger.iterate_columns(folders.ledger, _RANGE_COLUMNS, last_batch=head.batch):
        for key, ends in _split_ends(rows, head.valid_batches, ends_by_key.keys()):
            ends_by_key[key] += ends.tobytes()
    return {key: RangeEnds.of(np.frombuffer(ends, np.int64).reshape(-1, 3)) for key, ends in ends_by_key.items()}


def _split_ends(
    rows: pa.Table, valid: Mapping[int, int], wanted: Container[TopicIdPartition]
) -> Iterator[tuple[TopicIdPartition, npt.NDArray[np.int64]]]:
    """Until, rows_emitted and batch of the rows that count, by partition."""
    topic_ids = rows["topic_id"].combine_chunks().dictionary_encode()
    names = topic_ids.dictionary.to_pylist()
    codes = topic_ids.indices.to_numpy(zero_copy_only=False)
    batch = _read_numbers(rows, "batch")
    partition = _read_numbers(rows, "partition")
    last_batches = [valid.get(generation, -1) for generation in _read_numbers(rows, "generation").tolist()]
    counts = batch <= np.array(last_batches, np.int64)
    ends = np.column_stack((_read_numbers(rows, "until"), _read_numbers(rows, "rows_emitted"), batch))
    for code, number in set(zip(codes[counts].tolist(), partition[counts].tolist(), strict=True)):
        key = TopicIdPartition(str(names[code]), int(number))
        if key in wanted:
            yield key, ends[counts & (codes == code) & (partition == number)]


def _read_numbers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    column = rows[name]
    # An older release did not count the rows that timers emitted.
    return np.asarray(column.fill_null(pa.scalar(0, column.type)).to_numpy(), np.int64)


def count_erased(digest: str, places: Iterable[ErasedPlaces], ranges: RangeEnds) -> Iterator[ErasedRows]:
    """Erased rows by the range whose offsets hold them and the batch that emitted them. Pure.

    Both are the same but for rows that timers emitted at the end of a range: the next range holds their offset.
    """
    starts = dict[tuple[int, int], int]()
    rows = Counter[tuple[int, int]]()
    messages = dict[tuple[int, int], set[int]]()
    for part in places:
        holding = np.searchsorted(ranges.until, part.emit_offset, side="right")
        listed = zip(holding.tolist(), part.emit_offset.tolist(), part.row.tolist(), part.offset.tolist(), strict=True)
        for held, emitted, row, offset in listed:
            key = (held, ranges.find_batch(held, emitted, row))
            starts[key] = min(starts.get(key, emitted), emitted)
            rows[key] += 1
            messages.setdefault(key, set()).add(offset)
    for key in sorted(rows):
        yield ErasedRows(digest=digest, start=starts[key], batch=key[1], rows=rows[key], messages=len(messages[key]))
