"""Exports a savepoint from a table root, and starts the stream with it in another root or cluster: docs/relocate.md.

State and positions move, rows stay: a folder with a file of positions, one state file in the format of a table, and a
manifest that is written last. The import makes a table whose first batch has the position of the savepoint. For a
mirrored cluster the export has digests of the messages around each position, too (features/copies/mirror.py).
Positions are JSON: a Parquet file of some kilobytes can decode to more than the memory of a machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
from deltalake.exceptions import DeltaError

from lockstep.engine.driver.planner import find_next_hour
from lockstep.engine.driver.startup import check_state_types
from lockstep.errors import KafkaError, LockstepError, TableError, format_some
from lockstep.features.copies.commit_kinds import IMPORT
from lockstep.features.copies.copied_files import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    CopiedFile,
    CopyDamaged,
    check_copied,
    check_files,
    delete_copied,
    hash_file,
    list_foreign_names,
    lock_copy,
    read_manifest,
    write_manifest,
)
from lockstep.features.copies.mirror import (
    MirroredPositions,
    PositionEvidence,
    collect_evidence,
    find_mirrored_positions,
)
from lockstep.features.history.rewind import (
    RewindReason,
    describe_unpublished,
    find_state_files,
    publish_positions,
    read_rewound_rows,
)
from lockstep.features.history.rewind_commit import find_savepoint
from lockstep.features.history.shadow import describe_migrated, make_moved_rows
from lockstep.kafka.admin import ClusterView
from lockstep.kafka.audit import audit_positions
from lockstep.model.decoding import decode_json
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.position import Position, SegmentRef, TopicIdPartition
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.past_batches import read_head_of_batch
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
from lockstep.operations.whole_stream import explain_taken, is_taken, open_draft, take_name
from lockstep.state.changelog import read_header
from lockstep.state.relocation import RelocatedState, take_state
from lockstep.state.translation import Translation, translate_state
from lockstep.storage import PathRefused, find_storage, read_named_file
from lockstep.table import ledger, side_tables
from lockstep.table.create import open_tables
from lockstep.table.first_batch import FirstBatch, commit_first_batch
from lockstep.table.head import FIRST_BATCH, FIRST_GENERATION, Head, Imported
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import IMPORTED, LedgerStamp, read_position
from lockstep.table.schema_evolution import find_defaulted_columns
from lockstep.table.written_by import WrittenBy

FILES = "files"
"""Files are stored below this folder of an exported savepoint, so that no run takes it for a table root."""
IMPORTING = ".importing-"
POSITIONS = "positions.json"
EVIDENCE = "evidence.json"
GONE = "it is gone from the export"


class SavepointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an exported savepoint; written last.

    Attributes:
        stream: Name of the stream.
        savepoint: Name of the savepoint.
        cluster_id: Id of the Kafka cluster.
        table_id: Delta's id of the output table.
        batch: The batch that it keeps.
        version: The version of the output table at which that batch was committed.
        exported_at: When it was exported (UTC).
        accepts_burst: As the head after that batch.
        digest: SHA-256 of state and positions, as an import computes it again.
        evidence: The file with digests of the messages around each position; empty where Kafka did not answer.
        files: All files, relative to the folder of files.
        format: Version of this layout.
    """

    stream: str
    savepoint: str
    cluster_id: str
    table_id: str
    batch: int
    version: int
    exported_at: datetime
    accepts_burst: bool
    digest: str
    evidence: str = ""
    files: tuple[CopiedFile, ...]
    format: int = 1


class ExportedPositions(msgspec.Struct, frozen=True):
    """The file of positions: a ledger row of each partition, as an import commits it again."""

    rows: tuple[LedgerRow, ...]


class SavepointExport(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint that is exported, or would be.

    Attributes:
        stream: Name of the stream.
        savepoint: Name of the savepoint.
        batch: The batch that it keeps.
        version: The version of the output table at which that batch was committed.
        target: The folder.
        partitions: Partitions, those of retired topics included.
        state_bytes: Bytes of state files that are read.
        written_bytes: Bytes that were written; 0 for a plan.
        remark: Why it cannot be imported into a mirrored cluster; empty without a known reason.
        plan_only: Nothing was written.
    """

    stream: str
    savepoint: str
    batch: int
    version: int
    target: str
    partitions: int
    state_bytes: int
    written_bytes: int = 0
    remark: str = ""
    plan_only: bool = False

    def describe(self) -> Description:
        """Return its description."""
        size = self.state_bytes if self.plan_only else self.written_bytes
        facts = (
            Labelled("savepoint", self.savepoint),
            Labelled("batch", self.batch),
            Labelled("partitions", self.partitions),
            Labelled("state to read" if self.plan_only else "written", size, Unit.BYTES),
        )
        command = f"lockstep savepoint import {self.stream} {shlex.quote(self.target)} --plan"
        return Description(
            title=f"{self.stream}: export of a savepoint",
            facts=facts,
            notes=(self.remark,) if self.remark else (),
            next_steps=() if self.plan_only else (f"in another table root: {command}",),
        )


class ImportedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of an import.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: The first offset that the next run reads.
        exported: That offset in the cluster of the export: it differs in a mirrored cluster.
        log_start: First offset that Kafka still has; None without such a topic.
        log_end: Its high watermark; None likewise.
        expired: Offsets from the position on that Kafka no longer has.
    """

    topic: str
    partition: int
    position: int
    exported: int
    log_start: int | None
    log_end: int | None
    expired: int


class ImportPlan(Plan, frozen=True, kw_only=True):
    """The plan of starting a stream with an exported savepoint.

    Attributes:
        savepoint: Name of the savepoint.
        batch: The batch that it keeps.
        exported_at: When it was exported (UTC).
        target: The folder that the stream gets.
        mirror: Of a mirrored cluster: MirrorMaker's alias of the cluster of the export.
        left_out: Retired topics that this cluster does not have, or that the declaration here does not select.
        partitions: The partitions that it reads.
        to_read: Offsets up to the ends of their logs.
        state_bytes: Bytes of state that are copied.
        migrated: Differences of the state types that `migrate` handles.
    """

    PLAN: ClassVar[str] = "the import of the savepoint"

    savepoint: str
    batch: int
    exported_at: datetime
    target: str
    mirror: str
    left_out: tuple[str, ...]
    partitions: tuple[ImportedPartition, ...]
    to_read: int
    state_bytes: int
    migrated: tuple[str, ...]

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("savepoint", self.savepoint),
            Labelled("batch", self.batch),
            Labelled("exported at", self.exported_at),
            Labelled("folder of the stream", self.target, Unit.PATH),
            Labelled("state to copy", self.state_bytes, Unit.BYTES),
            Labelled("offsets to read", self.to_read),
        )
        left_out = [f"left out: {topic} is retired, and not read here" for topic in self.left_out]
        notes = (*left_out, *describe_migrated(self.migrated))
        return self.make_description(
            "import of a savepoint",
            facts,
            records=(
                Records.of(
                    "partitions", self.partitions, "topic partition exported position log_start log_end expired"
                ),
            ),
            notes=notes,
        )


class SavepointImported(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint that was imported.

    Attributes:
        plan: Its plan.
        published: Whether Kafka shows the positions as group offsets; the next start publishes them again.
    """

    plan: ImportPlan
    published: bool

    def describe(self) -> Description:
        """Return its description."""
        plan = self.plan
        facts = (
            Labelled("savepoint", plan.savepoint),
            Labelled("batch", plan.batch),
            Labelled("folder of the stream", plan.target, Unit.PATH),
            Labelled("partitions", len(plan.partitions)),
        )
        return Description(
            title=f"{plan.stream}: started with a savepoint and stopped",
            facts=facts,
            notes=describe_unpublished(self.published),
            next_steps=(f"lockstep verify {plan.stream}, then start it; the other root must not run any more",),
        )


def export_savepoint(handle: StreamHandle, name: str, target: Path, *, plan_only: bool = False) -> SavepointExport:
    """Copy state and positions of a savepoint to a folder; while the stream runs, too.

    1. Find the batch and its positions.
    2. Copy the state: one file, for any number of chains.
    3. Write the positions, which refer to that file, and digests of the messages around them, if Kafka answers.
    4. Write the manifest: until then the folder does not count. On an error or Ctrl-C it is empty again.
    5. Withdraw it if the savepoint was deleted meanwhile, as an erasure does: its state has the session.

    Args:
        handle: The stream.
        name: Name of the savepoint.
        target: Folder of the export: of this savepoint alone.
        plan_only: Write nothing.

    Raises:
        NoTable: The stream has never run.
        TableError: The savepoint does not exist, or a ledger file is missing or damaged.
        StateDamaged: A state file is missing or damaged.
        CopyDamaged: The folder has something already.
        CopyInProgress: Another process writes to it.
    """
    folders = handle.folders
    head = handle.require_head()
    savepoint = find_savepoint(head, name)  # 1
    after = read_head_of_batch(folders, head, savepoint.batch)
    rows = read_rewound_rows(folders, head, after, handle.positions).placed
    files, damaged = find_state_files(folders, rows)
    if damaged:
        step = f"lockstep rebuild {head.stream} --plan; another savepoint: lockstep savepoint list {head.stream}"
        raise LockstepError(f"state of savepoint {name} cannot be read: {format_some(damaged)}", next_step=step)
    _refuse_taken(target)
    planned = SavepointExport(
        stream=head.stream,
        savepoint=name,
        batch=savepoint.batch,
        version=savepoint.version,
        target=str(target),
        partitions=len(rows),
        state_bytes=sum(files.values()),
        plan_only=True,
    )
    if plan_only:
        return planned
    with lock_copy(target):
        _refuse_taken(target)  # by an export that has ended since
        with _withdrawing(target, head.stream):
            written, remark = _write_export(handle, name, after, rows, target)  # 2 to 4
        if savepoint not in open_table(folders).base().head.savepoints:  # 5
            _withdraw(target, head.stream)
            problem = f"savepoint {name} was deleted while it was exported"
            step = f"lockstep savepoint list {head.stream} lists the others; an erasure deletes all of them"
            raise LockstepError(f"stream {head.stream}: {problem}; the export is withdrawn", next_step=step)
    size = sum(file.size for file in written)
    return msgspec.structs.replace(planned, written_bytes=size, remark=remark, plan_only=False)


@contextmanager
def _withdrawing(target: Path, stream: str) -> Iterator[None]:
    """Withdraw an export that does not complete; the folder had nothing before."""
    try:
        yield
    except BaseException:
        _withdraw(target, stream)
        raise


def _withdraw(target: Path, stream: str) -> None:
    storage = find_storage(target)
    state = StreamFolders(stream, target / FILES).state
    # The manifest first: without it nothing else of the folder counts.
    storage.delete(target / MANIFEST)
    delete_copied(target, FILES, [name for name, _ in storage.walk_files(target / FILES)])
    for folder in (state, *state.parents):
        if folder == target:
            break
        storage.delete_empty_folder(folder)


def _refuse_taken(target: Path) -> None:
    if MANIFEST in find_storage(target).list_names(target):
        raise CopyDamaged(target, "there is an export or a backup already", "name another folder: each export has one")
    if foreign := list_foreign_names(target):
        problem = f"{len(foreign)} files or folders are in it: {format_some(foreign)}"
        raise CopyDamaged(target, problem, "name an empty folder; delete the rest of a killed export")


def _write_export(
    handle: StreamHandle, name: str, after: Head, rows: Iterable[LedgerRow], target: Path
) -> tuple[tuple[CopiedFile, ...], str]:
    """Steps 2 to 4; returns the files, and the remark."""
    source = handle.folders
    folders = StreamFolders(handle.stream.name, target / FILES)
    stamp = LedgerStamp(
        generation=FIRST_GENERATION,
        batch=after.batch,
        epoch=after.epoch,
        committed_at=ledger.read_clock(),
        batch_seconds=0.0,
        restart_cause=f"savepoint {name} exported",
    )
    ordered = sorted(rows, key=lambda row: (row.topic_id, row.partition))
    copied = _copy_state(source, ordered, folders, batch=after.batch, epoch=after.epoch)  # 2
    write_manifest(target / FILES, ExportedPositions(tuple(make_moved_rows(stamp, ordered, copied))), POSITIONS)  # 3
    evidence, remark = _write_evidence(handle, ordered, target / FILES)
    written = [target / FILES / POSITIONS, *copied.needs, *evidence]
    files = tuple(_describe(path, target / FILES) for path in written)
    manifest = SavepointManifest(
        stream=source.stream,
        savepoint=name,
        cluster_id=after.cluster_id,
        table_id=after.table_id,
        batch=after.batch,
        version=after.batch_version,
        exported_at=datetime.now(UTC),
        accepts_burst=after.accepts_burst,
        digest=copied.digest,
        evidence="".join(path.name for path in evidence),
        files=files,
    )
    write_manifest(target, manifest)  # 4
    return files, remark


def _write_evidence(handle: StreamHandle, rows: Sequence[LedgerRow], folder: Path) -> tuple[list[Path], str]:
    """The file with the evidence of the messages around each position; None if Kafka does not answer.

    The remark names positions without evidence: while the cluster answers, a later savepoint can still be exported.
    """
    try:
        view = handle.cluster.view({row.topic for row in rows})
        evidence = collect_evidence(handle.settings.kafka, view, rows)
    except KafkaError as error:
        return [], f"it cannot be imported into a mirrored cluster: {error.problem}"
    path = folder / EVIDENCE
    find_storage(path).replace(path, msgspec.json.encode(evidence))
    with_evidence = {(known.topic_id, known.partition) for known in evidence}
    # An import may leave retired topics out, so they need none.
    needing = [row for row in rows if not row.retired]
    missing = [row for row in needing if (row.topic_id, row.partition) not in with_evidence]
    if not missing:
        return [path], ""
    places = format_some([f"{row.topic}/{row.partition}@{row.until}" for row in missing])
    remark = (
        f"it cannot be imported into a mirrored cluster: Kafka does not have the messages from {places} on any more"
    )
    return [path], remark


def _copy_state(
    source: StreamFolders, rows: Sequence[LedgerRow], target: StreamFolders, *, batch: int, epoch: int
) -> RelocatedState:
    return take_state(
        source.state,
        [(row.generation, read_position(row)) for row in rows],
        target.state,
        generation=FIRST_GENERATION,
        label=WrittenBy(FIRST_GENERATION, epoch, batch).label,
    )


def _describe(path: Path, folder: Path) -> CopiedFile:
    status = find_storage(path).get_status(path)
    size = 0 if status is None else status.size
    return CopiedFile(str(path.relative_to(folder)), size, hash_file(path))


class _Planned(msgspec.Struct, frozen=True):
    """A plan, with the ledger rows of the positions and, for a mirrored cluster, the offset of each there."""

    plan: ImportPlan
    manifest: SavepointManifest
    source: StreamFolders
    rows: tuple[LedgerRow, ...]
    moves: tuple[Translation, ...] = ()


def import_savepoint(
    handle: StreamHandle, source: Path, *, who: str, why: str, accept_expired: bool = False, mirror: str = ""
) -> SavepointImported:
    """Prepare an import and commit it. Raises as both do."""
    cause = f"{why} ({who})"
    return prepare_import(handle, source, cause=cause, accept_expired=accept_expired, mirror=mirror).commit()


def prepare_import(
    handle: StreamHandle, source: Path, *, cause: str = "", accept_expired: bool = False, mirror: str = ""
) -> Prepared[ImportPlan, SavepointImported]:
    """Plan the beginning of a stream with an exported savepoint, in a table root that has nothing of it.

    The stream is stopped afterwards.

    Args:
        handle: The stream, as declared here, with its table root and its cluster.
        source: Folder of the export.
        cause: The reason and the operator.
        accept_expired: Although Kafka no longer has all messages from the positions on; the class judges the gap.
        mirror: Of a mirrored cluster: MirrorMaker's alias of the cluster of the export.

    Raises:
        CopyDamaged: The export is not whole, or of another stream.
        StateTypeChanged: The declared state type cannot read its state, and there is no `migrate`.
        NotTranslatable: The state of a partition cannot continue in a mirrored cluster.
        KafkaError: Kafka does not answer.

    The commit raises:
        Refused: Names every obstacle; or the table root has the stream meanwhile.
        CopyDamaged: The export was changed meanwhile.
    """
    planned = _plan(handle, source, mirror)
    obstacles = drop_accepted(planned.plan.obstacles, {RewindReason.EXPIRED: accept_expired})
    plan = msgspec.structs.replace(planned.plan, obstacles=obstacles)
    return Prepared(plan, partial(_carry_out, handle, msgspec.structs.replace(planned, plan=plan), cause))


def _carry_out(handle: StreamHandle, prepared: _Planned, cause: str) -> SavepointImported:
    """Start a stream with an exported savepoint.

    1. Make the tables in a folder of another name: the first batch has the state and the positions.
    2. Rename it to the stream; until then nothing is there.
    3. Publish the positions; the next start does so too.
    """
    try:
        with open_draft(handle.folders, IMPORTING) as drafted:
            rows = _build(handle, drafted, prepared, cause)  # 1
            is_ours = take_name(drafted, handle.folders)  # 2
    except (LockstepError, DeltaError, FileNotFoundError):
        if not is_taken(handle.folders):
            raise
        is_ours = False  # another import was faster, and has deleted the draft of this import
    if not is_ours:
        raise Refused(handle.stream.name, prepared.plan.PLAN, [_occupied(handle, prepared.manifest)])
    return SavepointImported(plan=prepared.plan, published=publish_positions(handle, rows))  # 3


def _plan(handle: StreamHandle, source: Path, mirror: str) -> _Planned:
    manifest = read_export(source, handle.stream.name)
    exported = StreamFolders(manifest.stream, source / FILES)
    stored = read_manifest(source / FILES, ExportedPositions, POSITIONS).rows
    rows = tuple(sorted(stored, key=lambda row: (row.topic_id, row.partition)))
    _refuse_other_state(exported, manifest, rows)
    migrated = check_state_types(handle.stream, exported, rows)
    obstacles = list(_find_obstacles(handle, manifest, mirror))
    moved = MirroredPositions()
    positions = [read_position(row) for row in rows]
    if mirror and not obstacles:
        moved = find_mirrored_positions(handle, exported.state, rows, _read_evidence(source, manifest), mirror)
    is_elsewhere = any(obstacle.kind is RewindReason.CLUSTER for obstacle in obstacles)
    # Offsets of another cluster mean nothing here.
    if mirror or is_elsewhere:
        by_partition = {(row.topic_id, row.partition): row for row in rows}
        rows = tuple(by_partition[move.source.key] for move in moved.moves)
        positions = [move.make_position() for move in moved.moves]
    read = [position for position, row in zip(positions, rows, strict=True) if not row.retired]
    view = handle.cluster.view({position.topic for position in read})
    findings = audit_positions({position.key: position for position in read}, view)
    others = [finding for finding in findings if finding.cause != Fault.PARTITIONS_ADDED]
    obstacles += [*moved.obstacles, *_describe_findings(others)]
    exported_at = {move.make_position().key: move.source.next_offset for move in moved.moves}
    partitions = tuple(_compare_with_kafka(view, read, exported_at))
    plan = ImportPlan(
        stream=manifest.stream,
        savepoint=manifest.savepoint,
        batch=manifest.batch,
        exported_at=manifest.exported_at,
        target=str(handle.folders.table.parent),
        mirror=mirror,
        left_out=moved.left_out,
        partitions=partitions,
        to_read=sum(max(0, (partition.log_end or 0) - partition.position) for partition in partitions),
        state_bytes=sum(file.size for file in manifest.files),
        migrated=migrated,
        obstacles=tuple(obstacles),
    )
    return _Planned(plan, manifest, exported, rows, moved.moves)


def _refuse_other_state(exported: StreamFolders, manifest: SavepointManifest, rows: Iterable[LedgerRow]) -> None:
    """Refuse positions whose state is in files that the manifest does not name.

    Raises:
        PathRefused: A position has an invalid name; the error names the first.
    """
    named = {file.path for file in manifest.files}

    def check(ref: SegmentRef) -> None:
        if (name := f"{exported.state.relative_to(exported.root)}/{ref.file}") not in named:
            raise PathRefused(exported.root, name, "it is not among the files of the manifest")

    segments = [segment for row in rows if (segment := read_position(row).state) is not None]
    for segment in segments:
        check(segment)
    for header in find_storage(exported.state).map_files(partial(read_header, exported.state), segments):
        for ref in header.chain:
            check(ref)


def _read_evidence(source: Path, manifest: SavepointManifest) -> list[PositionEvidence]:
    if not manifest.evidence:
        return []
    path = source / FILES / manifest.evidence
    return decode_json(read_named_file(path.parent, path.name, MANIFEST_BYTES_MAX), list[PositionEvidence])


def read_export(source: Path, stream: str) -> SavepointManifest:
    """The manifest of an exported savepoint, after every file was compared with it.

    Raises:
        CopyDamaged: There is none, it is of another stream, or a file is missing or not as it was written.
        PathRefused: It names files elsewhere.
    """
    manifest = read_manifest(source, SavepointManifest)
    if manifest.stream != stream:
        step = f"lockstep savepoint import {manifest.stream} {shlex.quote(str(source))}: it keeps its name"
        raise CopyDamaged(source, f"it is a savepoint of stream {manifest.stream}", step)
    check_files(source, FILES, manifest.files, GONE)
    for file in manifest.files:
        path = source / FILES / file.path
        check_copied(path, _describe(path, source / FILES), file)
    named = {file.path for file in manifest.files}
    for part in (POSITIONS, manifest.evidence):
        if part and part not in named:
            raise PathRefused(source / FILES, part, "it is not among the files of the manifest")
    return manifest


def _compare_with_kafka(
    view: ClusterView, positions: Iterable[Position], exported_at: Mapping[TopicIdPartition, int]
) -> Iterator[ImportedPartition]:
    for position in sorted(positions, key=lambda position: (position.topic, position.partition)):
        ends = view.ends.get(position.key)
        yield ImportedPartition(
            topic=position.topic,
            partition=position.partition,
            position=position.next_offset,
            exported=exported_at.get(position.key, position.next_offset),
            log_start=None if ends is None else ends.start,
            log_end=None if ends is None else ends.high_watermark,
            expired=0 if ends is None else max(0, ends.start - position.next_offset),
        )


def _find_obstacles(handle: StreamHandle, manifest: SavepointManifest, mirror: str) -> Iterator[Obstacle]:
    """The faults of the table root, or of the cluster."""
    if is_taken(handle.folders):
        yield _occupied(handle, manifest)
    here = handle.cluster.cluster_id()
    if here != manifest.cluster_id and not mirror:
        problem = f"its positions are of Kafka cluster {manifest.cluster_id}, this cluster is {here}"
        step = "import it with settings that name that cluster; if MirrorMaker copies its topics: --mirror ALIAS"
        yield Obstacle(RewindReason.CLUSTER, problem, step)
    # The offsets are the same there; a search could find another place.
    elif here == manifest.cluster_id and mirror:
        problem = f"this is Kafka cluster {here}, of which its positions are, and no copy"
        yield Obstacle(RewindReason.CLUSTER, problem, "leave --mirror out")


def _describe_findings(findings: Sequence[Finding]) -> Iterator[Obstacle]:
    """One obstacle a kind: Kafka's messages do not match the positions. Growth is for the next run to judge."""
    kinds: dict[str, RewindReason] = {Fault.EXPIRED: RewindReason.EXPIRED, Fault.TRUNCATED: RewindReason.TRUNCATED}
    steps = {
        RewindReason.EXPIRED: "import a later savepoint, or --accept-expired to leave it to the class (strict: a halt)",
        RewindReason.TRUNCATED: "wait until Kafka has them, or import an earlier savepoint",
        RewindReason.TOPIC: "retire the topic in the old root (lockstep retire), make a savepoint, and export that",
    }
    places_by_kind: dict[RewindReason, list[str]] = {}
    for finding in findings:
        where = f"{finding.topic}/{finding.partition}: expected {finding.expected}, found {finding.found}"
        places_by_kind.setdefault(kinds.get(finding.cause, RewindReason.TOPIC), []).append(where)
    for kind, places in places_by_kind.items():
        yield Obstacle(kind, f"{kind.value}: {format_some(places)}", steps[kind])


def _occupied(handle: StreamHandle, manifest: SavepointManifest) -> Obstacle:
    """The root has something: unknown content, or this import, which was killed after its end."""
    folder = handle.folders.table.parent
    made = _find_import(handle.folders)
    what = (manifest.savepoint, manifest.table_id, manifest.batch)
    if made is not None and (made.savepoint, made.table_id, made.batch) == what:
        step = f"lockstep verify {manifest.stream}, then lockstep start {manifest.stream}"
        return Obstacle(RewindReason.TABLE, f"{folder} started with this savepoint already: {made.cause}", step)
    problem, step = explain_taken(handle.folders)
    return Obstacle(RewindReason.TABLE, f"{folder}: {problem}", step)


def _find_import(folders: StreamFolders) -> Imported | None:
    try:
        head = try_read_head(folders)
    except TableError:
        return None
    return None if head is None else head.imported


def _build(handle: StreamHandle, drafted: StreamFolders, prepared: _Planned, cause: str) -> list[LedgerRow]:
    """Make tables whose first batch is the savepoint; returns its rows."""
    manifest = prepared.manifest
    row_type = handle.stream.types.row
    now = ledger.read_clock()
    output = open_tables(
        drafted,
        make_table_schema(row_type),
        handle.cluster.cluster_id(),
        defaulted=find_defaulted_columns(row_type),
        keeps_late=handle.stream.integrity.keeps_late,
    )
    copied, rows = _take_over(prepared, drafted, now, cause)
    file = ledger.write_ledger(drafted.ledger, rows)
    imported = Imported(
        stream=manifest.stream,
        savepoint=manifest.savepoint,
        cluster_id=manifest.cluster_id,
        table_id=manifest.table_id,
        batch=manifest.batch,
        mirror=prepared.plan.mirror,
        digest=copied.digest,
        at=now.timestamp(),
        cause=cause,
    )
    first = FirstBatch(
        taken_over=imported,
        table_id=output.table_id,
        commit_hour=find_next_hour(output.base().head),
        ledger=file,
        at=now.timestamp(),
        accepts_burst=manifest.accepts_burst,
        needs={**copied.needs, drafted.ledger / file.path: file.size},
    )
    side_tables.SideLogs(drafted).catch_up(output.commit(commit_first_batch(first, IMPORT)).head)
    return rows


def _take_over(
    prepared: _Planned, drafted: StreamFolders, now: datetime, cause: str
) -> tuple[RelocatedState, list[LedgerRow]]:
    """The state, copied into the tables that are made, and the rows of the first batch.

    Raises:
        CopyDamaged: Its digest is not that of the manifest.
    """
    manifest = prepared.manifest
    stamp = LedgerStamp(
        generation=FIRST_GENERATION,
        batch=FIRST_BATCH,
        epoch=FIRST_BATCH,
        committed_at=now,
        batch_seconds=0.0,
        restart_cause=f"savepoint {manifest.savepoint} (batch {manifest.batch}) imported: {cause}",
    )
    if prepared.moves:
        label = WrittenBy(FIRST_GENERATION, FIRST_BATCH, FIRST_BATCH).label
        state = prepared.source.state
        copied = translate_state(state, prepared.moves, drafted.state, generation=FIRST_GENERATION, label=label)
    else:
        copied = _copy_state(prepared.source, prepared.rows, drafted, batch=FIRST_BATCH, epoch=FIRST_BATCH)
    # A translated state has other offsets, and so another digest.
    if not prepared.moves and copied.digest != manifest.digest:
        problem = f"its positions or its state are not those of the manifest: digest {copied.digest[:12]}"
        raise CopyDamaged(prepared.source.root, problem, "use another copy of the export; nothing was imported")
    rows: list[LedgerRow] = []
    for row in make_moved_rows(stamp, prepared.rows, copied):
        lifecycle = None if row.retired else IMPORTED
        # The archive stays in the old root.
        rows.append(msgspec.structs.replace(row, lifecycle=lifecycle, archived_until=None))
    return copied, rows
