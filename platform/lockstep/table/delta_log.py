"""Reads and appends entries of Delta logs.

`DeltaTable.history()` on a handle that is behind assigns wrong versions to entries, so lockstep reads the file of a
version itself.

A search for an entry bisects the version numbers, with one stat() or one small read per step: its cost hardly grows
with the length of the log.
"""

from __future__ import annotations

import errno
import re
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError

from lockstep.errors import CommitUnknown, NotCommitted, TableError
from lockstep.model.decoding import decode_json, decode_json_lines
from lockstep.storage import NotWritten, find_fault, find_storage
from lockstep.store_clients import find_delta_options, repeat_broken_off
from lockstep.table.commit_kinds import CommitKind, RowChange, find_commit_kind
from lockstep.table.head import Head

HEAD = "lockstep.head"
KIND = "lockstep.kind"
TOKEN = "lockstep.token"  # noqa: S105  # a name
CAUSE = "lockstep.cause"

_ENTRY = re.compile(r"\d{20}\.json")
_KIND = re.compile(rb'"lockstep\.kind":"([a-z ]+)"')
_FILE_ACTION = re.compile(rb'^\s*\{\s*"(?:add|remove)"', re.MULTILINE)
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\b.*\.parquet$")
_WHOLE_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
_DRAFT = re.compile(r"\.\d{20}\.json\..*\.tmp|\d{20}\.json#\d+")
"""Files that a process killed inside a commit leaves behind: by `Storage.create_whole`, and by delta-rs."""

ATTEMPTS_MAX = 200
"""So many lost races in a row mean that some process commits in a loop."""
UNANSWERED_MAX = 20
"""Attempts in which a write without a result may be repeated: a single I/O error does not end a run."""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
LOOKS_MAX = 5
"""A log is shortened by housekeeping, which is rare."""
ENGINE = "lockstep"
"""`engineInfo` of lockstep's entries, as Delta's history shows it."""
REMEDIES: Final = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on the table root") | dict.fromkeys(
    (errno.EROFS, errno.EACCES, errno.EPERM), "make the table root writable"
)
"""The remedy that lets the next attempt succeed, by errno."""
LOG_ENTRIES_MAX = 20_000
"""Maximum of entries kept in the log of an output table, at any retention. Each opening of the table lists the
log's folder, 1.2 us an entry (measured: 24 ms at 20,000, 63 ms at 52,000); at a trigger of 5 s these are 28 hours, at
1 s five."""


class LogEntry(msgspec.Struct, frozen=True):
    """The contents of a log entry that lockstep needs.

    Attributes:
        version: Version of the table that the entry made.
        size: Bytes.
        kind: lockstep's kind of commit; None for foreign commits.
        token: Identifies the call of `append_entry` that wrote it.
        head: The head of the stream; None if the entry has none.
        operation: Delta's name of the operation.
        author: The engine that wrote it.
        written_at: Time by the writer's clock (UTC).
        cause: Of a claim: why the run started.
        transactions: Versions of its `txn` actions, by application id.
    """

    version: int
    size: int
    kind: str | None
    token: str | None
    head: Head | None
    operation: str
    author: str
    written_at: datetime | None = None
    cause: str = ""
    transactions: Mapping[str, int] = {}


class _Transaction(msgspec.Struct):
    appId: str  # noqa: N815  # Delta's own name
    version: int


class _Line(msgspec.Struct):
    """One line of an entry; actions other than commitInfo and txn are ignored."""

    commitInfo: dict[str, object] | None = None  # noqa: N815  # Delta's own name
    txn: _Transaction | None = None


class _Added(msgspec.Struct, rename="camel"):
    """The `add` action of an entry; a log checkpoint has the partition values as pairs."""

    path: str
    size: int
    modification_time: int
    partition_values: dict[str, str] | list[tuple[str, str]]
    stats: str | None = None


class _Named(msgspec.Struct):
    """The path in an `add` or `remove` action of an entry."""

    path: str


class _RemoveLine(msgspec.Struct):
    remove: _Named | None = None


class _PathLine(_RemoveLine):
    add: _Named | None = None


class _FileLine(_RemoveLine):
    add: _Added | None = None


class _Counted(msgspec.Struct):
    numRecords: int = 0  # noqa: N815  # Delta's own name


class AddAction(msgspec.Struct, frozen=True, kw_only=True):
    """The `add` action of a file; its `dataChange` is that of the kind of commit.

    Attributes:
        path: Relative to its table.
        size: Bytes.
        statistics: Delta statistics as JSON.
        commit_hour: Value of the partition column; None for tables without partitions.
        added_ms: Time of the commit of its newest row, in milliseconds since 1970.
    """

    path: str
    size: int
    statistics: str
    commit_hour: str | None
    added_ms: int

    @property
    def rows(self) -> int:
        """Number of rows; 0 if the statistics do not have it."""
        if self.statistics:
            return decode_json(self.statistics, _Counted).numRecords
        return 0


class RemoveAction(msgspec.Struct, frozen=True):
    """The `remove` action of a file; its `dataChange` is that of the kind of commit.

    Attributes:
        path: Relative to its table.
        size: Bytes.
        commit_hour: Value of the partition column; None for tables without partitions.
    """

    path: str
    size: int
    commit_hour: str | None = None


class NextEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry to append.

    Attributes:
        version: The version that it makes: one more than the version that it was planned on.
        kind: lockstep's kind of commit, which decides whether its files change data.
        adds: Files to add.
        removes: Files to remove.
        table_metadata: The `metaData` action, if it changes the columns.
        alter: Changes the table in another way instead, as one commit of delta-rs with these properties.
        transactions: Versions of `txn` actions by application id, at least one: an entry is complete if its last line
            is one.
        metadata: Further metadata of the entry.
    """

    version: int
    kind: CommitKind
    adds: Sequence[AddAction] = ()
    removes: Sequence[RemoveAction] = ()
    table_metadata: Mapping[str, object] | None = None
    alter: Callable[[CommitProperties], None] | None = None
    transactions: Mapping[str, int]
    metadata: Mapping[str, str] = {}


CreateEntry = Callable[[Path, bytes], None]
"""Creates the file of an entry: `create_entry`, or a replacement by a test."""


def make_entry_path(table: Path, version: int) -> Path:
    """The file of one version's entry."""
    return table / "_delta_log" / f"{version:020d}.json"


def open_delta_table(folder: Path, *, version: int | None = None) -> DeltaTable:
    """A handle on the table in a folder, at a version or at the newest one.

    Raises:
        TableNotFoundError: The folder contains no table.
    """
    storage = find_storage(folder)
    options = find_delta_options(folder)
    return repeat_broken_off(lambda: DeltaTable(storage.uri(folder), version=version, storage_options=options))


def refresh_delta_table(handle: DeltaTable) -> None:
    """Bring a handle to the newest version."""
    repeat_broken_off(handle.update_incremental)


def has_log(table: Path) -> bool:
    """Whether the folder contains a table."""
    return find_storage(table).get_status(make_entry_path(table, 0)) is not None or bool(list_checkpoints(table))


def read_entry(table: Path, version: int) -> LogEntry | None:
    """The entry of a version; None when there is none, or it is empty or torn."""
    try:
        return decode_entry(version, find_storage(table).read(make_entry_path(table, version)))
    except FileNotFoundError:
        return None


def decode_entry(version: int, content: bytes) -> LogEntry | None:
    """The entry of a version from its content; None when it is empty or torn."""
    try:
        lines = decode_json_lines(content, _Line)
    except msgspec.DecodeError:
        return None
    info = next((line.commitInfo for line in lines if line.commitInfo is not None), None)
    if info is None:
        if not lines:
            return None
        return LogEntry(version, len(content), None, None, None, "unknown", "unknown")
    head = None
    encoded_head = info.get(HEAD)
    if isinstance(encoded_head, str):
        head = Head.decode(encoded_head)
    return LogEntry(
        version=version,
        size=len(content),
        kind=_text(info.get(KIND)),
        token=_text(info.get(TOKEN)),
        head=head,
        operation=str(info.get("operation", "unknown")),
        author=str(info.get("engineInfo", "unknown")),
        written_at=_time(info.get("timestamp")),
        cause=_text(info.get(CAUSE)) or "",
        transactions={line.txn.appId: line.txn.version for line in lines if line.txn is not None},
    )


def is_of_kind(table: Path, version: int, kind: str) -> bool:
    """Whether the entry of a version is a commit of lockstep of this kind; searches its text, without decoding it."""
    try:
        text = find_storage(table).read(make_entry_path(table, version))
    except FileNotFoundError:
        return False
    return f'"{KIND}":"{kind}"'.encode() in text


def read_row_change(table: Path, version: int) -> RowChange | None:
    """The effect of a version on earlier rows; None if its entry is gone.

    Searches its text, without decoding it. A commit of other tools with files may do anything, as may one of
    an absent feature.
    """
    try:
        text = find_storage(table).read(make_entry_path(table, version))
    except FileNotFoundError:
        return None
    if (found := _KIND.search(text)) is not None:
        kind = find_commit_kind(found[1].decode())
        return RowChange.REPLACED if kind is None else kind.row_change
    if _FILE_ACTION.search(text) is not None:
        return RowChange.REPLACED
    return RowChange.NONE


def find_replaced_rows(table: Path, versions: Sequence[int]) -> int | None:
    """The first of some versions that replaced rows which were there before it; None without one."""
    changes = find_storage(table).map_files(partial(read_row_change, table), versions)
    for version, change in zip(versions, changes, strict=True):
        if change is RowChange.REPLACED:
            return version
    return None


def read_head(table: Path, version: int) -> Head | None:
    """The head as of a version: that of its entry, or of the one before where others described the table since."""
    while (entry := read_entry(table, version)) is not None and entry.kind is None:  # a description by others
        version -= 1
    return None if entry is None else entry.head


def read_table_metadata(table: Path, version: int) -> bytes:
    """The `metaData` action of a version, as a line of an entry.

    Raises:
        DeltaError: The log does not go back to it.
    """
    # delta-rs forms the action again: the entry that wrote it may have been cleaned up.
    handle = open_delta_table(table, version=version)
    return msgspec.json.encode({"metaData": make_table_metadata(handle, handle.schema())})


def make_table_metadata(table: DeltaTable, schema: Schema) -> Mapping[str, object]:
    """The `metaData` action of a table, as it is but for its columns."""
    metadata = table.metadata()
    return {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.to_json(),
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time,
        "configuration": metadata.configuration,
    }


def find_top_version(table: Path) -> int | None:
    """The newest version that has an entry or a log checkpoint; None without any. Lists the log once."""
    # A checkpoint without its entry counts, too: otherwise its version would be written a second time.
    names = (name for name in _list_names(table) if _ENTRY.fullmatch(name) or _CHECKPOINT.match(name))
    return max((int(name[:20]) for name in names), default=None)


def list_versions(table: Path) -> list[int]:
    """The versions with an entry, oldest first; none without a log."""
    return sorted(int(name[:-5]) for name in _list_names(table) if _ENTRY.fullmatch(name))


def list_checkpoints(table: Path) -> dict[int, list[Path]]:
    """The files of each log checkpoint by its version, oldest first."""
    found: dict[int, list[Path]] = {}
    for name in sorted(filter(_CHECKPOINT.match, _list_names(table))):
        found.setdefault(int(name[:20]), []).append(table / "_delta_log" / name)
    return found


def is_whole_checkpoint(name: str) -> bool:
    """Whether a file of a log is a single-file checkpoint, as lockstep writes them."""
    return _WHOLE_CHECKPOINT.fullmatch(name) is not None


def list_drafts(table: Path) -> list[Path]:
    """Temporary files of entries that are not published (yet)."""
    return [table / "_delta_log" / name for name in _list_names(table) if _DRAFT.fullmatch(name)]


def _list_names(table: Path) -> list[str]:
    return find_storage(table).list_names(table / "_delta_log")


def read_live_files(table: Path, version: int) -> dict[str, AddAction]:
    """The live files of a version by path, with all their metadata in the log.

    Needs the entries since the newest log checkpoint up to it: of a savepoint, housekeeping keeps one at exactly its
    version.

    Raises:
        TableError: An entry is gone or damaged.
    """
    for _ in range(LOOKS_MAX):
        try:
            return _replay(table, version)
        except (FileNotFoundError, msgspec.DecodeError) as error:  # housekeeping shortens the log meanwhile
            failure = error
    raise TableError(
        f"{table}: the log does not list the files of version {version}: {failure}",
        next_step=f"lockstep repair {table.parent.name}",
    )


def _replay(table: Path, version: int) -> dict[str, AddAction]:
    checkpoints = list_checkpoints(table)
    base = max((checkpoint for checkpoint in checkpoints if checkpoint <= version), default=-1)
    live = dict[str, AddAction]()
    for path in checkpoints.get(base, ()):
        added = pq.ParquetFile(find_storage(path).open_source(path)).read(columns=["add"])["add"].to_pylist()
        for action in added:
            if action is not None:  # other actions of the checkpoint are rows without an `add`
                file = _make_file(msgspec.convert(action, _Added))
                live[file.path] = file
    for later in range(base + 1, version + 1):
        for line in decode_json_lines(find_storage(table).read(make_entry_path(table, later)), _FileLine):
            if line.remove is not None:
                live.pop(unquote(line.remove.path), None)
            if line.add is not None:
                file = _make_file(line.add)
                live[file.path] = file
    return live


def find_foreign_paths(table: Path) -> list[str]:
    """The paths that any entry or log checkpoint adds or removes and that are not files of the table's folder.

    A reader of an older version would read them, clean-up of removed files would delete them.
    """
    return sorted(path for path in set(_list_logged_paths(table)) if find_fault(path))


def _list_logged_paths(table: Path) -> Iterator[str]:
    storage = find_storage(table)
    for version in list_versions(table):
        for line in decode_json_lines(storage.read(make_entry_path(table, version)), _PathLine):
            for action in (line.add, line.remove):
                if action is not None:
                    yield unquote(action.path)
    for paths in list_checkpoints(table).values():
        for path in paths:
            yield from _list_checkpoint_paths(path)


def _list_checkpoint_paths(path: Path) -> Iterator[str]:
    with pq.ParquetFile(find_storage(path).open_source(path)) as parquet:
        kinds = {"add", "remove"}.intersection(parquet.schema_arrow.names)
        for group in parquet.iter_batches(columns=[f"{kind}.path" for kind in sorted(kinds)]):
            for kind in kinds:
                for action in group[kind].to_pylist():
                    if action and action["path"]:
                        yield unquote(action["path"])


def _make_file(added: _Added) -> AddAction:
    hours = dict(added.partition_values)
    return AddAction(
        path=unquote(added.path),
        size=added.size,
        statistics=added.stats or "",
        commit_hour=hours.get("commit_hour"),
        added_ms=added.modification_time,
    )


def read_added_files(table: Path, after: int, until: int) -> dict[str, AddAction] | None:
    """The files that commits after a version added, and that are live at a later version.

    Args:
        table: Folder of the table.
        after: The earlier version.
        until: The later version.

    Returns:
        The files by path; None if an entry between the two is gone or damaged.
    """
    added = dict[str, AddAction]()
    for version in range(after + 1, until + 1):
        try:
            lines = decode_json_lines(find_storage(table).read(make_entry_path(table, version)), _FileLine)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        for line in lines:
            if line.remove is not None:
                added.pop(unquote(line.remove.path), None)
            if line.add is not None:
                file = _make_file(line.add)
                added[file.path] = file
    return added


def read_entry_text(table: Path, version: int, name: str) -> str | None:
    """A text in the metadata of the entry of a version; None without it, or without the entry."""
    try:
        lines = decode_json_lines(find_storage(table).read(make_entry_path(table, version)), _Line)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    infos = (line.commitInfo for line in lines if line.commitInfo is not None)
    return _text(next(infos, {}).get(name))


def read_removed_paths(table: Path, version: int) -> frozenset[str] | None:
    """Paths of the files that the entry of a version removes; None if it is gone or torn."""
    try:
        lines = decode_json_lines(find_storage(table).read(make_entry_path(table, version)), _RemoveLine)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return frozenset(unquote(line.remove.path) for line in lines if line.remove is not None)


def find_entry_time(table: Path, version: int) -> float:
    """Modification time of the entry of a version, in seconds since 1970 (UTC), by the storage's clock.

    Raises:
        FileNotFoundError: The version has no entry.
    """
    path = make_entry_path(table, version)
    status = find_storage(table).get_status(path)
    if status is None:
        raise FileNotFoundError(path)
    return status.modified_at


def create_entry(path: Path, content: bytes) -> None:
    """Create the file of an entry, atomically. Raises FileExistsError if the version has an entry."""
    find_storage(path).create_whole(path, content)


def append_entry(
    table: Path,
    next_entry: Callable[[], NextEntry | None],
    *,
    finds_late: bool = False,
    create: CreateEntry = create_entry,
) -> LogEntry | None:
    """Append an entry at exactly the version that it was planned for, or not at all.

    1. `next_entry` reads the newest version, checks it and returns the entry.
    2. Create the entry, without retries: a compare-and-swap.
    3. After any exception read the entry: its token shows whether this call wrote it.
    4. Lost to another commit: again from 1.
    5. Sync the entry and the log folder. An error there ends the run: a second fsync proves nothing.

    Args:
        table: Folder of the table.
        next_entry: Returns None when there is nothing to append.
        finds_late: `next_entry` returns None, too, if an earlier attempt became visible late. Only then is an attempt
            without a result repeated.
        create: Creates the file of the entry.

    Returns:
        The entry as it is read; None without anything to append.

    Raises:
        CommitUnknown: It is unknown whether the entry was written.
        NotCommitted: The storage refused the file.
        TableError: The race was lost `ATTEMPTS_MAX` times.
    """
    token = uuid.uuid4().hex
    for attempt in range(ATTEMPTS_MAX):
        entry = next_entry()  # 1
        if entry is None:
            return None
        try:
            written = _write(table, entry, token, create)  # 2
        except (DeltaError, OSError) as error:
            written = read_entry(table, entry.version)  # 3
            # The entry may still become visible: only `next_entry` can tell a late success.
            if written is None and not (finds_late and attempt < UNANSWERED_MAX):
                raise _make_failure(table, entry.version, error) from error
            if written is None or written.token != token:
                continue  # 4
        find_storage(table).sync(make_entry_path(table, entry.version))  # 5
        return written
    raise TableError(
        f"{table}: lost {ATTEMPTS_MAX} races in a row",
        next_step="find the process that commits in a loop: `lockstep status`",
    )


def _write(table: Path, entry: NextEntry, token: str, create: CreateEntry) -> LogEntry | None:
    ours = {KIND: entry.kind.name, TOKEN: token, **entry.metadata}
    if entry.alter is None:
        content = encode_entry(entry, ours)
        create(make_entry_path(table, entry.version), content)
        return decode_entry(entry.version, content)
    # Without retries: delta-rs would commit on a later version, which `next_entry` has not checked.
    numbers = [Transaction(name, number) for name, number in entry.transactions.items()]
    entry.alter(CommitProperties(custom_metadata=ours, max_commit_retries=0, app_transactions=numbers))
    return read_entry(table, entry.version)


def encode_entry(entry: NextEntry, metadata: Mapping[str, str]) -> bytes:
    """An entry that adds and removes files, one action a line (Delta's protocol, "Actions"), `txn` actions last."""
    now_ms = time.time_ns() // 1_000_000
    changes_data = entry.kind.changes_data
    info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    lines: list[dict[str, object]] = [{"commitInfo": {**info, "engineInfo": ENGINE, **metadata}}]
    if entry.table_metadata is not None:
        lines.append({"metaData": entry.table_metadata})
    lines += (_make_add(file, changes_data=changes_data) for file in entry.adds)
    lines += (_make_remove(file, now_ms, changes_data=changes_data) for file in entry.removes)
    # Last: `torn_entry` takes an entry with all its transactions for complete.
    lines += ({"txn": {"appId": name, "version": number}} for name, number in entry.transactions.items())
    return b"\n".join(map(msgspec.json.encode, lines))


def _make_add(file: AddAction, *, changes_data: bool) -> dict[str, object]:
    added = {
        "path": quote(file.path, safe="/="),
        "partitionValues": _make_partition(file.commit_hour),
        "size": file.size,
        "modificationTime": file.added_ms,
        "dataChange": changes_data,
        "stats": file.statistics,
    }
    return {"add": added}


def _make_remove(file: RemoveAction, now_ms: int, *, changes_data: bool) -> dict[str, object]:
    removed = {
        "path": quote(file.path, safe="/="),
        "dataChange": changes_data,
        "deletionTimestamp": now_ms,
        "extendedFileMetadata": True,
        "partitionValues": _make_partition(file.commit_hour),
        "size": file.size,
    }
    return {"remove": removed}


def _make_partition(commit_hour: str | None) -> dict[str, str]:
    return {} if commit_hour is None else {"commit_hour": commit_hour}


def _make_failure(table: Path, version: int, error: Exception) -> TableError:
    if isinstance(error, NotWritten):
        step = REMEDIES.get(error.errno or 0, "lockstep doctor checks the table root: correct what it reports")
        problem = f"{table}: version {version} was not written: {error.strerror}"
        return NotCommitted(problem, next_step=f"{step}, then repeat the command")
    return CommitUnknown(
        f"{table}: no answer whether version {version} was written: {error}",
        next_step="start the stream again: the next claim finds out",
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: object) -> datetime | None:
    if isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC)
    return None


def find_head_since(table: Path, since: float, *, entries_max: int = LOG_ENTRIES_MAX) -> Head | None:
    """The head at the first entry that is not older than a time, and is one of the newest `entries_max`.

    Args:
        table: Folder of the table.
        since: Seconds since 1970 (UTC), compared with the modification time of the entries' files.
        entries_max: Number of newest entries that are searched.

    Returns:
        None if no entry is recent enough.
    """
    versions = list_versions(table)
    first = bisect_left(versions, since, key=lambda version: _find_time(table, version))
    # The limit on entries holds at any retention.
    first = max(first, len(versions) - entries_max)
    for version in versions[first:]:
        entry = read_entry(table, version)
        if entry is not None and entry.head is not None:
            return entry.head
    return None


def _find_time(table: Path, version: int) -> float:
    """When an entry was written; one that another clean-up has deleted since is older than all others."""
    try:
        return find_entry_time(table, version)
    except FileNotFoundError:
        return 0.0


def find_head_of_batch(table: Path, batch: int) -> Head | None:
    """The head of the commit of a batch; None if the log no longer contains it."""
    versions = list_versions(table)
    # A small read per step: the cost hardly grows with the length of the log.
    position = bisect_left(versions, batch, key=lambda version: _batch(table, version))
    if position == len(versions):
        return None
    entry = read_entry(table, versions[position])
    if entry is None or entry.head is None or entry.head.batch != batch:
        return None
    return entry.head


def find_head_at(table: Path, at: datetime) -> Head | None:
    """The head at a time, by the clocks of the writers; None if the log does not go back to it.

    None, too, if the entry after it was deleted: of a savepoint below the rewind floor only one entry is
    kept, and the head may have changed between it and the next entry.
    """
    versions = list_versions(table)
    after = bisect_right(versions, at, key=lambda version: _written_at(table, version))
    # Of a savepoint below the floor one entry is kept: the head may have changed between it and the next.
    if not after or versions[after : after + 1] not in ([], [versions[after - 1] + 1]):
        return None
    return read_head(table, versions[after - 1])


def _written_at(table: Path, version: int) -> datetime:
    entry = read_entry(table, version)
    if entry is not None and entry.written_at is not None:
        return entry.written_at
    return datetime.min.replace(tzinfo=UTC)


def _batch(table: Path, version: int) -> int:
    head = read_head(table, version)
    return -1 if head is None else head.batch
