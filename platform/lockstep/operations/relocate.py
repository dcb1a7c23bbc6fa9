"""Takes a savepoint out of a table root, and begins the stream with it in another one: docs/relocate.md.

State and positions move, rows stay: a folder with one ledger file and one state file, both in the formats of a table,
and a manifest that is written last. The import makes a table whose first batch stands where the savepoint stood.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lockstep.engine.driver.planner import find_next_hour
from lockstep.engine.driver.positions import IMPORTED, LedgerStamp, read_position
from lockstep.engine.driver.startup import check_state_types
from lockstep.errors import LockstepError
from lockstep.kafka.admin import ClusterView
from lockstep.kafka.audit import EXPIRED, GREW, TRUNCATED, audit_positions
from lockstep.model.finding import Finding
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.copies import (
    MANIFEST,
    CopiedFile,
    CopyDamaged,
    check_copied,
    delete_others,
    hash_file,
    lock_copy,
    read_manifest,
    write_manifest,
)
from lockstep.operations.rewind import (
    Obstacle,
    RewindObstacle,
    find_state_files,
    publish_positions,
    read_head_of_batch,
    read_rewound_rows,
)
from lockstep.operations.shadow import make_moved_rows
from lockstep.operations.tables import StreamHandle, open_table
from lockstep.state.relocation import RelocatedState, take_state
from lockstep.storage import find_storage
from lockstep.table import ledger, side_tables
from lockstep.table.create import open_tables
from lockstep.table.delta_log import FIRST_BATCH, FIRST_GENERATION, Head, Imported
from lockstep.table.first_batch import FirstBatch, commit_first_batch
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.parquet import format_some
from lockstep.table.rewind import find_savepoint
from lockstep.table.schema_evolution import find_defaulted_columns
from lockstep.table.written_by import WrittenBy

FILES = "files"
"""Files lie below this folder of an exported savepoint, so that no run takes it for a table root."""
IMPORTING = ".importing-"


class SavepointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an exported savepoint is of; written last.

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
        positions: The ledger file, relative to the ledger's folder.
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
    positions: str
    files: tuple[CopiedFile, ...]
    format: int = 1


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
    plan_only: bool = False


class ImportedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of an import.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        position: The first offset that the next run reads.
        log_start: First offset that Kafka still has; None where it has no such topic.
        log_end: Its high watermark; None likewise.
        expired: Offsets from the position on that Kafka no longer has.
    """

    topic: str
    partition: int
    position: int
    log_start: int | None
    log_end: int | None
    expired: int


class ImportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream would begin with an exported savepoint.

    Attributes:
        stream: Name of the stream.
        savepoint: Name of the savepoint.
        batch: The batch that it keeps.
        exported_at: When it was exported (UTC).
        target: The folder that the stream gets.
        partitions: The partitions that it reads.
        to_read: Offsets up to the ends of their logs.
        state_bytes: Bytes of state that are copied.
        migrated: Differences of the state types that `migrate` handles.
        obstacles: Why it is refused; empty where nothing refuses it.
    """

    stream: str
    savepoint: str
    batch: int
    exported_at: datetime
    target: str
    partitions: tuple[ImportedPartition, ...]
    to_read: int
    state_bytes: int
    migrated: tuple[str, ...]
    obstacles: tuple[RewindObstacle, ...]


class SavepointImported(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint that was imported.

    Attributes:
        plan: What it did.
        published: Whether Kafka shows the positions as group offsets; the next start publishes them again.
    """

    plan: ImportPlan
    published: bool


class ImportRefused(LockstepError):
    """A savepoint cannot be imported here, or not now; nothing was changed.

    Attributes:
        stream: Name of the stream.
        obstacles: All reasons.
    """

    def __init__(self, stream: str, obstacles: Sequence[RewindObstacle]) -> None:
        problems = "; ".join(each.problem for each in obstacles)
        super().__init__(
            f"the savepoint of stream {stream} is not imported: {problems}", next_step=obstacles[0].next_step
        )
        self.stream, self.obstacles = stream, tuple(obstacles)


def export_savepoint(folders: StreamFolders, name: str, target: Path, *, plan_only: bool = False) -> SavepointExport:
    """Copy state and positions of a savepoint to a folder; while the stream runs, too.

    1. Find the batch and its positions.
    2. Copy the state: one file, whatever the number of its chains.
    3. Write the positions, which refer to that file.
    4. Write the manifest: until then the folder passes for nothing.

    Args:
        folders: Folders of the stream.
        name: Name of the savepoint.
        target: Folder of the export: of this savepoint alone.
        plan_only: Write nothing.

    Raises:
        NoTable: The stream has never run.
        TableError: There is no such savepoint, or a ledger file is missing or damaged.
        StateDamaged: A state file is missing or damaged.
        CopyDamaged: The folder has something already.
        CopyInProgress: Another process writes to it.
    """
    head = open_table(folders).base().head
    kept = find_savepoint(head, name)  # 1
    after = read_head_of_batch(folders, head, kept.batch)
    rows = read_rewound_rows(folders, head, after, ledger.read_positions(folders, head))
    files, damaged = find_state_files(folders, rows)
    if damaged:
        step = f"lockstep rebuild {head.stream} --plan; another savepoint: lockstep savepoint {head.stream}"
        raise LockstepError(f"state of savepoint {name} cannot be read: {format_some(damaged)}", next_step=step)
    if find_storage(target).exists(target / MANIFEST):
        raise CopyDamaged(target, "there is an export or a backup already", "name another folder: each export has one")
    planned = SavepointExport(
        stream=head.stream,
        savepoint=name,
        batch=kept.batch,
        version=kept.version,
        target=str(target),
        partitions=len(rows),
        state_bytes=sum(files.values()),
        plan_only=True,
    )
    if plan_only:
        return planned
    with lock_copy(target):
        written = _write_export(folders, name, after, rows, target)
    return msgspec.structs.replace(planned, written_bytes=sum(file.size for file in written), plan_only=False)


def _write_export(
    source: StreamFolders, name: str, after: Head, rows: Iterable[LedgerRow], target: Path
) -> tuple[CopiedFile, ...]:
    """Steps 2 to 4; gives the files."""
    folders = StreamFolders(source.stream, target / FILES)
    stamp = LedgerStamp(
        generation=FIRST_GENERATION,
        batch=after.batch,
        epoch=after.epoch,
        committed_at=ledger.read_clock(),
        batch_seconds=0.0,
        restart_cause=f"savepoint {name} exported",
    )
    ordered = sorted(rows, key=lambda each: (each.topic_id, each.partition))
    copied = _copy_state(source, ordered, folders, batch=after.batch, epoch=after.epoch)  # 2
    positions = ledger.write_ledger(folders.ledger, make_moved_rows(stamp, ordered, copied))  # 3
    written = [folders.ledger / positions.path, *copied.needs]
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
        positions=positions.path,
        files=files,
    )
    delete_others(target, FILES, (file.path for file in files))  # of an export that was killed
    write_manifest(target, manifest)  # 4
    return files


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
    return CopiedFile(str(path.relative_to(folder)), 0 if status is None else status.size, hash_file(path))


class _Prepared(msgspec.Struct, frozen=True):
    plan: ImportPlan
    manifest: SavepointManifest
    source: StreamFolders
    rows: tuple[LedgerRow, ...]


def plan_import(handle: StreamHandle, source: Path) -> ImportPlan:
    """Show how a stream would begin with an exported savepoint; changes nothing.

    Args:
        handle: The stream, as declared here, with its table root and its cluster.
        source: Folder of the export.

    Raises:
        CopyDamaged: The export is not whole, or of another stream.
        StateTypeChanged: The declared state type cannot read its state, and there is no `migrate`.
        KafkaError: Kafka does not answer.
    """
    return _prepare(handle, source).plan


def import_savepoint(
    handle: StreamHandle, source: Path, *, who: str, why: str, accept_expired: bool = False
) -> SavepointImported:
    """Begin a stream with an exported savepoint, in a table root that has nothing of it; it is stopped.

    1. Plan; refuse what does not agree with Kafka, with the code or with the root.
    2. Make the tables in a folder of another name: the first batch has the state and the positions.
    3. Give it the stream's name; until then nothing is there.
    4. Publish the positions; the next start does so too.

    Args:
        handle: The stream, as declared here, with its table root and its cluster.
        source: Folder of the export.
        who: The operator.
        why: The reason.
        accept_expired: Although Kafka no longer has all messages from the positions on; the class judges the gap.

    Raises:
        ImportRefused: Names every obstacle.
        CopyDamaged, StateTypeChanged, KafkaError: As `plan_import`; nothing was changed.
    """
    prepared = _prepare(handle, source)  # 1
    accepted = {Obstacle.EXPIRED} if accept_expired else set[Obstacle]()
    if obstacles := [each for each in prepared.plan.obstacles if each.kind not in accepted]:
        raise ImportRefused(handle.stream.name, obstacles)
    storage, target = find_storage(handle.folders.root), handle.folders.table.parent
    drafted = StreamFolders(handle.stream.name, handle.folders.root / f"{target.name}{IMPORTING}{uuid.uuid4().hex}")
    try:
        rows = _build(handle, drafted, prepared, f"{why} ({who})")  # 2
        storage.move(drafted.table.parent, target)  # 3
    except OSError as error:
        raise ImportRefused(handle.stream.name, [_occupied(handle)]) if storage.list_names(target) else error from None
    finally:
        storage.delete_folder(drafted.root)
    for name in storage.list_names(handle.folders.root):  # of imports that were killed
        if name.startswith(f"{target.name}{IMPORTING}"):
            storage.delete_folder(handle.folders.root / name)
    return SavepointImported(plan=prepared.plan, published=publish_positions(handle, rows))  # 4


def _prepare(handle: StreamHandle, source: Path) -> _Prepared:
    manifest = read_export(source, handle.stream.name)
    exported = StreamFolders(manifest.stream, source / FILES)
    rows = tuple(ledger.read_ledger_file(exported.ledger, manifest.positions))
    read = [row for row in rows if not row.retired]
    view = handle.cluster.view({row.topic for row in read})
    partitions = tuple(_look_at(view, read))
    return _Prepared(
        ImportPlan(
            stream=manifest.stream,
            savepoint=manifest.savepoint,
            batch=manifest.batch,
            exported_at=manifest.exported_at,
            target=str(handle.folders.table.parent),
            partitions=partitions,
            to_read=sum(max(0, (each.log_end or 0) - each.position) for each in partitions),
            state_bytes=sum(file.size for file in manifest.files),
            migrated=check_state_types(handle.stream, exported, rows),
            obstacles=tuple(_find_obstacles(handle, manifest, view, read)),
        ),
        manifest,
        exported,
        rows,
    )


def read_export(source: Path, stream: str) -> SavepointManifest:
    """The manifest of an exported savepoint, after every file was compared with it.

    Raises:
        CopyDamaged: There is none, it is of another stream, or a file is missing or not as it was written.
    """
    manifest = read_manifest(source, SavepointManifest)
    if manifest.stream != stream:
        step = f"lockstep import-savepoint {manifest.stream} {source}: it keeps its name"
        raise CopyDamaged(source, f"it is a savepoint of stream {manifest.stream}", step)
    for file in manifest.files:
        path = source / FILES / file.path
        try:
            found = _describe(path, source / FILES)
        except FileNotFoundError:
            step = "use another copy of the export; nothing was imported from this one"
            raise CopyDamaged(path, "it is gone from the export", step) from None
        check_copied(path, found, file)
    return manifest


def _look_at(view: ClusterView, rows: Iterable[LedgerRow]) -> Iterator[ImportedPartition]:
    for row in sorted(rows, key=lambda each: (each.topic, each.partition)):
        ends = view.ends.get((row.topic_id, row.partition))
        yield ImportedPartition(
            topic=row.topic,
            partition=row.partition,
            position=row.until,
            log_start=None if ends is None else ends.start,
            log_end=None if ends is None else ends.high_watermark,
            expired=0 if ends is None else max(0, ends.start - row.until),
        )


def _find_obstacles(
    handle: StreamHandle, manifest: SavepointManifest, view: ClusterView, rows: Sequence[LedgerRow]
) -> Iterator[RewindObstacle]:
    if find_storage(handle.folders.root).list_names(handle.folders.table.parent):
        yield _occupied(handle)
    here = handle.cluster.cluster_id()
    if here != manifest.cluster_id:
        problem = f"its positions are of Kafka cluster {manifest.cluster_id}, this one is {here}"
        step = "import it where the settings name that cluster (LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS)"
        yield RewindObstacle(Obstacle.CLUSTER, problem, step)
        return
    findings = audit_positions({(row.topic_id, row.partition): read_position(row) for row in rows}, view)
    yield from _describe_findings([each for each in findings if each.cause != GREW])


def _describe_findings(findings: Sequence[Finding]) -> Iterator[RewindObstacle]:
    """One obstacle a kind: what Kafka has is not what the positions say. Growth is for the next run to judge."""
    kinds = {EXPIRED: Obstacle.EXPIRED, TRUNCATED: Obstacle.TRUNCATED}
    steps = {
        Obstacle.EXPIRED: "import a later savepoint, or leave it to the class: --accept-expired; a strict stream halts",
        Obstacle.TRUNCATED: "wait until Kafka has them, or import an earlier savepoint",
        Obstacle.TOPIC: "retire the topic in the old root (lockstep retire), make a savepoint, and export that",
    }
    found: dict[Obstacle, list[str]] = {}
    for each in findings:
        where = f"{each.topic}/{each.partition}: expected {each.expected}, found {each.found}"
        found.setdefault(kinds.get(each.cause, Obstacle.TOPIC), []).append(where)
    for kind, places in found.items():
        yield RewindObstacle(kind, f"{kind.value}: {format_some(places)}", steps[kind])


def _occupied(handle: StreamHandle) -> RewindObstacle:
    step = "set another table_root (LOCKSTEP_TABLE_ROOT), or move what is there away"
    return RewindObstacle(Obstacle.TABLE, f"{handle.folders.table.parent} has something already", step)


def _build(handle: StreamHandle, drafted: StreamFolders, prepared: _Prepared, cause: str) -> list[LedgerRow]:
    """Make tables whose first batch is the savepoint; gives its rows."""
    manifest, row_type, now = prepared.manifest, handle.stream.types.row, ledger.read_clock()
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
    side_tables.SideLogs(drafted).catch_up(output.commit(commit_first_batch(first)).head)
    return rows


def _take_over(
    prepared: _Prepared, drafted: StreamFolders, now: datetime, cause: str
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
    ordered = sorted(prepared.rows, key=lambda each: (each.topic_id, each.partition))
    copied = _copy_state(prepared.source, ordered, drafted, batch=FIRST_BATCH, epoch=FIRST_BATCH)
    if copied.digest != manifest.digest:
        problem = f"its positions or its state are not those of the manifest: digest {copied.digest[:12]}"
        raise CopyDamaged(prepared.source.root, problem, "use another copy of the export; nothing was imported")
    moved = make_moved_rows(stamp, ordered, copied)
    return copied, [msgspec.structs.replace(row, lifecycle=None if row.retired else IMPORTED) for row in moved]
