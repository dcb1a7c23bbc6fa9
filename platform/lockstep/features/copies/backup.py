"""Backs up a stream while it runs, and restores it to another root: docs/backup.md, docs/decisions/0030.

All files of a table but its log's newest entry never change, and an entry is written after the files that it names.
So the order of reading makes a copy consistent: first the ends of the side tables' logs, then the head, then the
names of all files. The files that the head needs exist when it is read, and housekeeping keeps them for as long as a
rewind may go back to it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec
from deltalake.exceptions import DeltaError

from lockstep.errors import LockstepError, TableError, format_some
from lockstep.features.copies.copied_files import (
    BEGUN,
    MANIFEST,
    NOTHING_DONE,
    BegunCopy,
    CopiedFile,
    CopyDamaged,
    check_files,
    copy_file,
    delete_copied,
    hash_file,
    list_drafts,
    list_foreign_names,
    lock_copy,
    read_manifest,
    write_manifest,
)
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Plan, Prepared, Records, Refused, Unit
from lockstep.operations.stream_table import open_table
from lockstep.operations.whole_stream import explain_taken, is_taken, open_draft, take_name
from lockstep.progress import report_items
from lockstep.state.changelog import read_header
from lockstep.storage import FileStatus, find_named_files, find_storage
from lockstep.table import delta_log, ledger, torn_entry, transactions
from lockstep.table.commit import OutputLog
from lockstep.table.head import Head, SideBatch
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import list_named_files
from lockstep.table.positions import read_position
from lockstep.table.side_tables import SideLogs

FILES = "files"
"""Files are stored below this folder of a backup, so that no run takes a backup for a table root."""
LOOKS_MAX = 20
GONE = "it is gone from the backup"
RESTORING = ".restoring-"
TAKEN = "the table root has the stream already"


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a backup; written last.

    Attributes:
        stream: Name of the stream.
        cluster_id: Id of the Kafka cluster.
        table_id: Delta's id of the output table.
        generation: Generation of the head.
        batch: Last batch.
        version: Version of the output table.
        taken_at: When the head was read (UTC).
        files: All files, relative to the stream's folder.
        format: Version of this layout.
    """

    stream: str
    cluster_id: str
    table_id: str
    generation: int
    batch: int
    version: int
    taken_at: datetime
    files: tuple[CopiedFile, ...]
    format: int = 1


class CopyReport(Plan, frozen=True, kw_only=True):
    """The plan of a backup or a restore.

    Attributes:
        is_restore: It is a restore.
        source: The folder that is copied.
        target: The folder of the copy.
        batch: Last batch of the copy.
        version: Version of its output table.
        files: Files of the copy.
        bytes: Their bytes.
        copied_files: Those of them that the target lacked.
        copied_bytes: Their bytes.
        deleted: Files of earlier backups that were deleted, or would be, relative to the folder of files.
        plan_only: Nothing was changed.
    """

    PLAN: ClassVar[str] = "the restore"

    is_restore: bool = False
    source: str
    target: str
    batch: int
    version: int
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    deleted: tuple[str, ...] = ()
    plan_only: bool = False

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("batch", self.batch, note=f"version {self.version}"),
            Labelled("from", self.source, Unit.PATH),
            Labelled("to", self.target, Unit.PATH),
            Labelled("files", self.files),
            Labelled("bytes", self.bytes, Unit.BYTES),
            Labelled("files to copy" if self.plan_only else "files copied", self.copied_files),
            Labelled("bytes to copy" if self.plan_only else "bytes copied", self.copied_bytes, Unit.BYTES),
        )
        deleted = "files of earlier backups to delete" if self.plan_only else "deleted files of earlier backups"
        records = (Records(deleted, ("file",), tuple((name,) for name in self.deleted)),)
        page = self.make_description("restore" if self.is_restore else "backup", facts, records=records)
        steps = () if self.plan_only else (self._find_next_step(),)
        return msgspec.structs.replace(page, is_open=page.is_open and self.plan_only, next_steps=steps)

    def _find_next_step(self) -> str:
        if self.is_restore:
            return f"lockstep verify {self.stream}, then start it; the other root must not run any more"
        return f"to restore it: lockstep restore {self.stream} {shlex.quote(self.target)}"


class BackupOvertaken(LockstepError):
    """Files vanished while they were copied, or batches followed each other too fast; no backup was made.

    Attributes:
        stream: Name of the stream.
    """

    def __init__(self, stream: str, problem: str) -> None:
        step = f"lockstep backup {stream} again; if it names the same files: lockstep repair {stream}"
        super().__init__(f"no backup of stream {stream}: {problem}", next_step=step)
        self.stream = stream


class _Cut(msgspec.Struct, frozen=True):
    """A consistent moment of a stream: a head, and how far each side table's log belongs to it."""

    head: Head
    version: int
    table_id: str
    logs: Mapping[Path, int]


def make_backup(folders: StreamFolders, target: Path, *, plan_only: bool = False) -> CopyReport:
    """Copy a stream, while it runs, too; only the files that the folder lacks from an earlier backup.

    1. Keep other backups out of the folder: the earlier backup is read only then.
    2. Choose a consistent moment.
    3. Copy the files that are there, without log entries after that moment.
    4. Check that everything is copied that the moment needs; choose another moment if a clean-up has started to delete
       files that its rewind floor or its savepoints need.
    5. Replace the manifest: the earlier backup holds until then.
    6. Delete files of only the earlier backup, and of killed backups: files of backups, no others.

    Args:
        folders: Folders of the stream.
        target: Folder of the backup: of this stream alone.
        plan_only: Change nothing.

    Raises:
        NoTable: The stream has never run.
        BackupOvertaken: Files vanished meanwhile.
        CopyDamaged: The folder has the backup of another stream, or something else.
        CopyInProgress: Another process writes to it.
        PathRefused: Its manifest names files elsewhere, or a folder in it is a link; nothing was written.
    """
    open_table(folders)
    earlier = _read_earlier(folders, target)  # refuses before anything is written to a folder with something else
    if plan_only:
        plan = _plan(folders, target, earlier.held)
        wanted = _describe(folders, plan.wanted)
        missing = _describe(folders, plan.missing)
        planned = _report(folders, plan.cut, target, wanted, missing, plan_only=True)
        return msgspec.structs.replace(planned, deleted=tuple(sorted(earlier.find_present(target, plan.wanted))))
    with lock_copy(target):  # 1
        earlier = _read_earlier(folders, target)
        cut, there = _copy_moment(folders, target, earlier)  # 2 to 4
        files = tuple(there[name] for name in sorted(there))
        write_manifest(target, _make_manifest(cut, files))  # 5
        own = _read_earlier(folders, target).own  # with all files of this backup
        # Only a killed backup leaves drafts; to find them, all files of the folder are listed.
        drafts = list_drafts(target, FILES, own | set(there)) if earlier.was_killed else []
        deleted = delete_copied(target, FILES, [*(own - set(there)), *drafts])  # 6
        find_storage(target).delete(target / BEGUN)
    copied = [file for file in files if earlier.held.get(file.path) is not file]
    report = _report(folders, cut, target, files, copied)
    return msgspec.structs.replace(report, deleted=deleted)


def _copy_moment(folders: StreamFolders, target: Path, earlier: _Earlier) -> tuple[_Cut, dict[str, CopiedFile]]:
    """Copy the files that the folder lacks of a moment; returns all of its files."""
    copied = dict(earlier.held)
    own = set(earlier.own)
    for _ in range(LOOKS_MAX):
        plan = _plan(folders, target, copied)
        own |= set(plan.missing)
        # Before the first copy: only files that are named there are ever replaced or deleted.
        write_manifest(target, BegunCopy(folders.stream, tuple(sorted(own))), BEGUN)
        copies = find_storage(folders.root).map_files(
            lambda file: _copy(file[1], target / FILES / file[0], file[0]), plan.missing.items()
        )
        tracked = report_items(copies, "copying files", len(plan.missing))
        tried = dict(zip(plan.missing, tracked, strict=True))
        copied |= {name: file for name, file in tried.items() if file is not None}
        # A file that vanished is missing only if the head needs it: clean-ups delete others.
        there = {name: path for name, path in plan.wanted.items() if tried.get(name, path) is not None}
        _check_complete(folders, plan.cut, there)
        if _is_kept(plan.cut.head, open_table(folders).base().head):
            return plan.cut, {name: copied[name] for name in there}
    raise BackupOvertaken(folders.stream, f"clean-ups overtook {LOOKS_MAX} copies")


def _is_kept(head: Head, now: Head) -> bool:
    """Whether nothing may have been deleted yet to which a rewind of a head may go back."""
    return now.rewind_floor == head.rewind_floor and set(head.savepoints) <= set(now.savepoints)


class _Plan(msgspec.Struct, frozen=True):
    """A moment, its files, and those that the folder lacks."""

    cut: _Cut
    wanted: Mapping[str, Path]
    missing: Mapping[str, Path]


def _plan(folders: StreamFolders, target: Path, held: Mapping[str, CopiedFile]) -> _Plan:
    cut = _choose_moment(folders)
    wanted = dict(_list_files(folders, cut))
    _check_complete(folders, cut, wanted)
    statuses = find_storage(folders.root).get_statuses(list(wanted.values()))
    copies = find_named_files(target, wanted, below=FILES)
    missing = {
        name: path
        for (name, path), status in zip(wanted.items(), statuses, strict=True)
        if not _is_held(held.get(name), status, copies[name])
    }
    return _Plan(cut, wanted, missing)


def _choose_moment(folders: StreamFolders) -> _Cut:
    """The ends of the side logs before the head, so that they have nothing that the head does not know."""
    for _ in range(LOOKS_MAX):
        output = open_table(folders)
        newest = {side: torn_entry.find_newest_version(side) for side in _list_sides(folders)}
        # After the logs: a head that was read first could be older than they are.
        base = output.base()
        ends = {side: version for side, version in newest.items() if version is not None}
        if _is_consistent(folders, base.head, ends):
            return _Cut(base.head, base.version, output.table_id, {**ends, folders.table: base.version})
    raise BackupOvertaken(folders.stream, f"batches overtook {LOOKS_MAX} attempts")


def _list_sides(folders: StreamFolders) -> list[Path]:
    sides = (folders.ledger, folders.quarantine, folders.late, folders.archive)
    return [side for side in sides if delta_log.has_log(side)]


def _is_consistent(folders: StreamFolders, head: Head, ends: Mapping[Path, int]) -> bool:
    """Whether a start brings the side tables forward to the head: each lacks its last addition at most."""
    added: dict[Path, tuple[int, int]] = {}
    if head.ledger is not None:
        added[folders.ledger] = (head.batch_before, head.batch)
    for side, last in _list_newest(folders, head):
        if last is not None:
            added[side] = (last.after, last.batch)
    return all(side in ends and _held(side, ends[side]) in batches for side, batches in added.items())


def _list_newest(folders: StreamFolders, head: Head) -> Iterator[tuple[Path, SideBatch | None]]:
    """The side tables that do not grow with every batch, each with its newest addition."""
    yield folders.quarantine, head.quarantine
    yield folders.late, head.late
    yield folders.archive, head.archive


def _held(side: Path, version: int) -> int:
    return delta_log.open_delta_table(side, version=version).transaction_version(transactions.BATCH) or 0


def _list_files(folders: StreamFolders, cut: _Cut) -> Iterator[tuple[str, Path]]:
    """The files of a moment, by their names relative to the stream's folder."""
    root = folders.root / folders.stream
    storage = find_storage(folders.root)
    files: list[Path] = []
    for side in _list_sides(folders):
        files += storage.find_files(side, "*.parquet")
    files += storage.find_files(folders.table, "commit_hour=*/*.parquet")
    files += storage.find_files(folders.state, "*.state")
    for table, end in cut.logs.items():
        versions = [version for version in delta_log.list_versions(table) if version <= end]
        files += [delta_log.make_entry_path(table, version) for version in versions]
        for version, paths in delta_log.list_checkpoints(table).items():
            if version <= end:
                files += paths
    for path in files:
        yield str(path.relative_to(root)), path


def _check_complete(folders: StreamFolders, cut: _Cut, wanted: Mapping[str, Path]) -> None:
    """Refuse a copy that lacks files of the head, as after a clean-up meanwhile."""
    names = set(wanted.values())
    for table, end in cut.logs.items():
        if not _has_whole_log(table, end, names):
            raise BackupOvertaken(folders.stream, f"the log of {table.name} up to version {end} is not whole")
    try:
        gone = _find_gone(folders, cut.head, cut.logs, names)
    except DeltaError as error:
        raise BackupOvertaken(folders.stream, f"a log was cleaned up: {str(error).splitlines()[0]}") from error
    if gone:
        raise BackupOvertaken(folders.stream, f"{len(gone)} files are missing: {format_some(gone)}")


def _find_gone(folders: StreamFolders, head: Head, logs: Mapping[Path, int], names: AbstractSet[Path]) -> list[str]:
    """The files that the logs, the head and the state need and that are not among some."""
    needed = set[Path]()
    for table, end in logs.items():
        needed.update(path for path, _ in list_named_files(table, end))
    needed.update(_list_head_files(folders, head))
    needed.update(_list_state_files(folders, head))
    return sorted(str(path).removeprefix(f"{folders.root / folders.stream}/") for path in needed - names)


def _has_whole_log(table: Path, end: int, names: AbstractSet[Path]) -> bool:
    """Whether some files hold a log up to a version: all entries, or a checkpoint and those behind it."""
    in_log = [path.name for path in names if path.parent == table / "_delta_log"]
    # The name of a checkpoint starts with its version, of 20 digits.
    checkpoints = [int(name[:20]) for name in in_log if delta_log.is_whole_checkpoint(name)]
    newest = max((version for version in checkpoints if version <= end), default=-1)
    return all(delta_log.make_entry_path(table, version) in names for version in range(newest + 1, end + 1))


def _list_head_files(folders: StreamFolders, head: Head) -> Iterator[Path]:
    """The side files that the head names: their tables may not hold them yet."""
    if head.ledger is not None:
        yield folders.ledger / head.ledger.path
    for side, added in _list_newest(folders, head):
        if added is not None and added.batch == head.batch:
            yield from (side / file.path for file in added.files)


def _list_state_files(folders: StreamFolders, head: Head) -> Iterator[Path]:
    rows = ledger.read_positions(folders, head).values()
    segments = [segment for row in rows if (segment := read_position(row).state) is not None]
    yield from (folders.state / segment.file for segment in segments)
    for header in find_storage(folders.state).map_files(partial(read_header, folders.state), segments):
        yield from (folders.state / ref.file for ref in header.chain)


class _Earlier(msgspec.Struct, frozen=True):
    """What earlier backups have left in a folder.

    Attributes:
        held: The files of the last whole backup.
        own: All files that are theirs.
        was_killed: A backup has started, and not ended.
    """

    held: Mapping[str, CopiedFile]
    own: frozenset[str]
    was_killed: bool

    def find_present(self, target: Path, wanted: Iterable[str]) -> Iterator[str]:
        """Those of their files that are there and not wanted any more."""
        statuses = find_named_files(target, sorted(self.own.difference(wanted)), below=FILES)
        return (name for name, status in statuses.items() if status is not None)


def _read_earlier(folders: StreamFolders, target: Path) -> _Earlier:
    """What earlier backups have left in a folder; nothing in an empty one.

    Raises:
        CopyDamaged: It has something else, such as an exported savepoint: a backup has its folder for itself.
        PathRefused: A manifest names files elsewhere.
    """
    storage = find_storage(target)
    there = {name for name in (MANIFEST, BEGUN) if name in storage.list_names(target)}
    if not there and (foreign := list_foreign_names(target)):
        problem = f"it has no {MANIFEST}, and {len(foreign)} other files or folders: {format_some(foreign)}"
        raise CopyDamaged(target, problem, f"name an empty folder for {folders.stream}: a backup deletes in its own")
    copied: dict[str, CopiedFile] = {}
    if MANIFEST in there:
        manifest = _read_own(folders, target, BackupManifest, MANIFEST)
        copied = {file.path: file for file in manifest.files}
    own = frozenset(copied)
    if BEGUN in there:
        own |= frozenset(_read_own(folders, target, BegunCopy, BEGUN).files)
    find_named_files(target, sorted(own), below=FILES)  # refuses files elsewhere
    return _Earlier(copied, own, BEGUN in there)


K = TypeVar("K", BackupManifest, BegunCopy)


def _read_own(folders: StreamFolders, target: Path, kind: type[K], name: str) -> K:
    """One of the two files in which a backup names its own."""
    try:
        manifest = read_manifest(target, kind, name)
    except CopyDamaged as error:
        step = f"name another folder for {folders.stream}: a backup deletes files that are not its own"
        raise CopyDamaged(target, f"its {name} is not that of a backup: {error.reason}", step) from error
    if manifest.stream != folders.stream:
        step = f"name another folder for {folders.stream}: each stream has its own"
        raise CopyDamaged(target, f"it has the backup of stream {manifest.stream}", step)
    return manifest


def _is_held(held: CopiedFile | None, here: FileStatus | None, there: FileStatus | None) -> bool:
    """Whether the earlier backup has a file as it is now, and still has it."""
    if held is None or here is None or there is None:
        return False
    return (held.size, held.modified_at, held.size) == (here.size, here.modified_at, there.size)


def _copy(source: Path, target: Path, name: str) -> CopiedFile | None:
    """Copy a file, or compare the copy of a killed backup with its original. None if it is gone."""
    try:
        here = find_storage(target).get_own_status(target)
        there = find_storage(source).get_status(source)
        if here is not None and there is not None and here.size == there.size:
            # A killed backup may have copied it: only its digest is missing.
            digest = hash_file(source)
            if digest == hash_file(target):
                return CopiedFile(name, there.size, digest, there.modified_at)
        return msgspec.structs.replace(copy_file(source, target), path=name)
    except FileNotFoundError:  # a clean-up deleted it meanwhile: of no use, or missed below
        return None


def _make_manifest(cut: _Cut, files: tuple[CopiedFile, ...]) -> BackupManifest:
    return BackupManifest(
        stream=cut.head.stream,
        cluster_id=cut.head.cluster_id,
        table_id=cut.table_id,
        generation=cut.head.generation,
        batch=cut.head.batch,
        version=cut.version,
        taken_at=datetime.now(UTC),
        files=files,
    )


def _describe(folders: StreamFolders, files: Mapping[str, Path]) -> list[CopiedFile]:
    statuses = zip(files, find_storage(folders.root).get_statuses(list(files.values())), strict=True)
    return [CopiedFile(name, status.size, "") for name, status in statuses if status is not None]


def _report(
    folders: StreamFolders,
    cut: _Cut,
    target: Path,
    files: Iterable[CopiedFile],
    copied: Iterable[CopiedFile],
    *,
    plan_only: bool = False,
) -> CopyReport:
    all_sizes = [file.size for file in files]
    sizes = [file.size for file in copied]
    return CopyReport(
        stream=folders.stream,
        source=str(folders.root / folders.stream),
        target=str(target),
        batch=cut.head.batch,
        version=cut.version,
        files=len(all_sizes),
        bytes=sum(all_sizes),
        copied_files=len(sizes),
        copied_bytes=sum(sizes),
        plan_only=plan_only,
    )


def restore_backup(folders: StreamFolders, source: Path) -> CopyReport:
    """Prepare a restore and commit it. Raises as both do."""
    return prepare_restore(folders, source).commit()


def prepare_restore(folders: StreamFolders, source: Path) -> Prepared[CopyReport, CopyReport]:
    """Plan the restore of a stream from a backup to a table root that has nothing of it.

    Args:
        folders: Folders of the stream.
        source: Folder of the backup.

    Raises:
        CopyDamaged: The backup is not whole, or of another stream.
        PathRefused: Its manifest names files elsewhere, or a folder in it is a link; nothing was written.

    The commit raises:
        Refused: The root has the stream already.
        CopyDamaged: A file is not that of the manifest, or another backup was made to the folder meanwhile.
    """
    manifest = read_manifest(source, BackupManifest)
    if manifest.stream != folders.stream:
        step = f"lockstep restore {manifest.stream}: it keeps its name"
        raise CopyDamaged(source, f"it is the backup of stream {manifest.stream}", step)
    check_files(source, FILES, manifest.files, GONE)
    plan = CopyReport(
        stream=folders.stream,
        obstacles=(_find_taken(folders),) if is_taken(folders) else (),
        is_restore=True,
        source=str(source),
        target=str(folders.table.parent),
        batch=manifest.batch,
        version=manifest.version,
        files=len(manifest.files),
        bytes=sum(file.size for file in manifest.files),
        copied_files=len(manifest.files),
        copied_bytes=sum(file.size for file in manifest.files),
        plan_only=True,
    )
    return Prepared(plan, partial(_carry_out, folders, source, manifest, plan))


def _carry_out(folders: StreamFolders, source: Path, manifest: BackupManifest, plan: CopyReport) -> CopyReport:
    try:
        _restore(folders, source, manifest)
    except (CopyDamaged, DeltaError, FileNotFoundError) as error:
        if is_taken(folders):  # another restore was faster, and has deleted the draft of this restore
            raise _refuse_taken(folders) from error
        # Or the folder got a newer backup, which deleted files of this manifest.
        _refuse_newer(source, manifest)
        raise
    return msgspec.structs.replace(plan, plan_only=False)


def _refuse_newer(source: Path, manifest: BackupManifest) -> None:
    """Report files that are gone because a backup to the folder has ended since the manifest was read."""
    if read_manifest(source, BackupManifest) != manifest:
        raise CopyDamaged(source, "a backup was made to it meanwhile", "restore again; nothing was restored") from None


def _restore(folders: StreamFolders, source: Path, manifest: BackupManifest) -> None:
    """Restore all files at once.

    1. Copy into a folder of another name, comparing every digest.
    2. Bring the side tables up to the head, if they lack its batch.
    3. Rename it to the stream; until then nothing is there.
    4. Delete what restores that were killed have left.
    """
    storage = find_storage(folders.root)
    files = manifest.files
    with open_draft(folders, RESTORING) as drafted:  # 4
        draft = drafted.table.parent
        storage.make_folder(draft)
        copies = storage.map_files(partial(_copy_back, source / FILES, draft), files)
        list(report_items(copies, "copying files back", len(files)))  # 1
        logs = _open_logs(drafted, source)
        try:
            head = OutputLog(drafted.table).base().head
            gone = _find_gone(drafted, head, logs, {draft / file.path for file in files})
            if gone:
                problem = f"{len(gone)} files that its logs or its state name are not its own: {format_some(gone)}"
                raise CopyDamaged(source, problem, NOTHING_DONE)
            SideLogs(drafted).catch_up(head)  # 2
        except TableError as error:
            raise CopyDamaged(source, error.problem, NOTHING_DONE) from error
        if not take_name(drafted, folders):  # 3
            raise _refuse_taken(folders)


def _open_logs(drafted: StreamFolders, source: Path) -> dict[Path, int]:
    """Read the log of each table, before anything has the stream's name; returns their newest versions."""
    newest = dict[Path, int]()
    for table in (drafted.table, drafted.ledger, drafted.quarantine, drafted.late):
        if not delta_log.has_log(table) and table != drafted.late:
            raise CopyDamaged(source / FILES / table.name, "its log is not whole", NOTHING_DONE)
        try:
            if delta_log.has_log(table):
                _refuse_foreign_paths(table, source)
                newest[table] = delta_log.open_delta_table(table).version()
        except (DeltaError, msgspec.DecodeError, ValueError) as error:  # delta-rs and pyarrow raise both
            problem = f"its log cannot be read: {str(error).splitlines()[0]}"
            raise CopyDamaged(source / FILES / table.name, problem, NOTHING_DONE) from error
    return newest


def _refuse_foreign_paths(table: Path, source: Path) -> None:
    """Older versions count: a reader may ask for them, and clean-up deletes files that a version removed."""
    if foreign := delta_log.find_foreign_paths(table):
        problem = f"its log names {len(foreign)} files that are not its own: {format_some(foreign)}"
        raise CopyDamaged(source / FILES / table.name, problem, NOTHING_DONE)


def _copy_back(source: Path, target: Path, file: CopiedFile) -> None:
    try:
        copy_file(source / file.path, target / file.path, expected=file)
    except FileNotFoundError:
        raise CopyDamaged(source / file.path, GONE, NOTHING_DONE) from None


def _find_taken(folders: StreamFolders) -> Obstacle:
    problem, step = explain_taken(folders)
    return Obstacle(TAKEN, f"{folders.table.parent}: {problem}", step)


def _refuse_taken(folders: StreamFolders) -> Refused:
    return Refused(folders.stream, CopyReport.PLAN, [_find_taken(folders)])
