"""Refreshes the current table of a stream: one row a session and key, as after a batch.

docs/decisions/0060 has the reasons, docs/current.md the use. The rows of a refresh are the newest row of each key since
the last refresh. If those do not lead to the states of now, as after a rewind, all rows are made from the states.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from lockstep.addresses import to_uri
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.startup import find_code_digest
from lockstep.errors import LockstepError, TableError
from lockstep.features.current.changes import read_changes
from lockstep.features.current.columns import (
    CurrentColumns,
    apply_changes,
    find_current_columns,
    split_by_bucket,
)
from lockstep.features.current.history import (
    CurrentBase,
    RemakeCause,
    choose_buckets,
    find_promotion,
    find_remake,
)
from lockstep.features.current.state_rows import read_state_rows
from lockstep.model.decoding import decode_json
from lockstep.model.table_schema import to_delta
from lockstep.operations.followers import name_remedy, record_failure
from lockstep.operations.plan_frame import Description, Labelled, Unit
from lockstep.operations.stream_table import NoTable, has_table, open_table
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, transactions
from lockstep.table.checkpoint import write_checkpoint_if_due
from lockstep.table.commit import Base
from lockstep.table.commit_kinds import CommitKind, RowChange
from lockstep.table.create import create_table
from lockstep.table.delta_log import AddAction, NextEntry, RemoveAction
from lockstep.table.follower_positions import (
    FollowerPosition,
    Reads,
    SourceHistory,
    make_history,
    make_unread_history,
    write_position,
)
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import UNREADABLE, explain_unreadable, write_file
from lockstep.table.written_files import delete_files, delete_on_error, delete_unless_committed

KIND = "current"
BASE = "lockstep.current"
"""In the metadata of each entry: the `CurrentBase`."""
REFRESH = CommitKind(name="current", row_change=RowChange.REPLACED)
KEPT_SECONDS = 3_600.0
"""Time after which replaced files are deleted: a reader may have an earlier version open."""
ATTEMPTS_MAX = 3
"""Of a refresh while others commit."""
PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "false",
}


class CurrentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The next refresh of a current table.

    Attributes:
        stream: Name of the stream.
        folder: Its current table.
        batch: The batch whose rows it holds; None before the first refresh.
        newest_batch: The newest batch of the stream.
        remake: Why its rows would be made from the states; None if the newest rows are enough.
    """

    stream: str
    folder: str
    batch: int | None
    newest_batch: int
    remake: RemakeCause | None

    @property
    def is_due(self) -> bool:
        """Whether a refresh has something to do."""
        return self.remake is not None or self.batch != self.newest_batch

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("batch", self.batch),
            Labelled("newest batch", self.newest_batch),
            Labelled("next refresh", describe_next_refresh(self)),
            Labelled("folder", self.folder, Unit.PATH),
        )
        return Description(title=f"{self.stream}: current table", facts=facts)


def describe_next_refresh(plan: CurrentPlan) -> str:
    """Describe the next refresh in some words."""
    if plan.remake is not None:
        return f"makes it from the states: {plan.remake.value}"
    return "applies the newest rows" if plan.is_due else "has nothing to do"


class CurrentRefresh(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a refresh.

    Attributes:
        stream: Name of the stream.
        folder: Its current table.
        version: Version of the current table.
        batch: The batch whose rows it holds.
        rows: Its rows.
        changed: Keys with a new row or a removal since the last refresh; all rows if it was made from the states.
        written_buckets: Buckets that were written.
        buckets: Buckets in all.
        remade: Why it was made from the states; None if it was not.
    """

    stream: str
    folder: str
    version: int
    batch: int
    rows: int
    changed: int
    written_buckets: int
    buckets: int
    remade: RemakeCause | None

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("rows", self.rows),
            Labelled("changed keys", self.changed),
            Labelled("batch", self.batch),
            Labelled("written buckets", self.written_buckets),
            Labelled("buckets", self.buckets),
            Labelled("made from the states because", "" if self.remade is None else self.remade.value),
            Labelled("folder", self.folder, Unit.PATH),
            Labelled("table version", self.version),
        )
        return Description(title=f"{self.stream}: current table refreshed", facts=facts)


class CurrentVersion(msgspec.Struct, frozen=True):
    """The newest version of a current table.

    Attributes:
        version: Its number; -1 without a table.
        base: Its metadata; None if another tool wrote it, or for an empty table.
    """

    version: int
    base: CurrentBase | None


def read_current_version(folders: StreamFolders) -> CurrentVersion:
    """Read the newest version of a current table.

    Raises:
        DecodeError: Its metadata are damaged.
    """
    version = delta_log.find_top_version(folders.current)
    if version is None:
        return CurrentVersion(-1, None)
    text = delta_log.read_entry_text(folders.current, version, BASE)
    base = None if text is None else decode_json(text, CurrentBase)
    return CurrentVersion(version, base)


def plan_current(stream: AnyStream, folders: StreamFolders) -> CurrentPlan:
    """Plan the next refresh; changes nothing.

    Raises:
        LockstepError: The stream declares no current table.
        NoTable: The stream has never run.
        TableError: Its table cannot be read.
    """
    _require_declared(stream)
    now = open_table(folders).base()
    current = read_current_version(folders)
    return CurrentPlan(
        stream=stream.name,
        folder=to_uri(folders.current),
        batch=None if current.base is None else current.base.history.batch,
        newest_batch=now.head.batch,
        remake=judge_current(stream, folders, current, now),
    )


def judge_current(stream: AnyStream, folders: StreamFolders, current: CurrentVersion, now: Base) -> RemakeCause | None:
    """Find out why the rows of a current table have to be made from the states; None if they do not."""
    base = current.base
    if base is None:
        return RemakeCause.FOREIGN if current.version > 0 else RemakeCause.NEW
    columns = find_current_columns(stream)
    declared = (columns.replay.columns, columns.replay.removed, columns.values)
    if (base.key, base.removed, base.values) != declared or not _has_columns(folders, columns):
        return RemakeCause.COLUMNS
    token = ""
    entry = delta_log.read_entry(folders.table, base.history.version)
    if entry is not None:
        token = entry.token or ""
    return find_remake(base, now.head, now.version, token, _describe_code(stream, now.head))


def _has_columns(folders: StreamFolders, columns: CurrentColumns) -> bool:
    with _name_remedy(folders):
        schema = delta_log.open_delta_table(folders.current).schema()
    return schema.to_json() == Schema.from_arrow(columns.schema).to_json()


def _name_remedy(folders: StreamFolders) -> AbstractContextManager[None]:
    return name_remedy(folders.current, f"lockstep current {folders.stream} makes all its rows again")


def _describe_code(stream: AnyStream, head: Head) -> str:
    """The code that wrote the newest batch, and the code of this process."""
    written_by = "" if head.code is None else head.code.digest
    return f"{written_by}/{find_code_digest(stream)}"


def _require_declared(stream: AnyStream) -> None:
    if not stream.current:
        problem = f"stream {stream.name} declares no current table"
        raise LockstepError(problem, next_step="declare Stream(current=True)")


def refresh_current(stream: AnyStream, folders: StreamFolders, *, remake: bool = False) -> CurrentRefresh:
    """Bring the current table to the newest batch.

    Args:
        stream: The declaration.
        folders: Its folders.
        remake: Make all rows from the states.

    Raises:
        LockstepError: The stream declares no current table.
        NoTable: The stream has never run.
        StateDamaged: A state file is missing or damaged.
        TableError: A table cannot be read or written.
    """
    _require_declared(stream)
    if not has_table(folders):
        raise NoTable(folders.stream, folders.root)
    with record_failure(folders.root, _make_position(stream, make_unread_history(stream.name))):
        refreshed = _Refresh(stream, folders).run(remake=remake)
        newest = read_current_version(folders).base
        if newest is not None:
            write_position(folders.root, _make_position(stream, newest.history))
        return refreshed


def _make_position(stream: AnyStream, history: SourceHistory) -> FollowerPosition:
    return FollowerPosition(
        kind=KIND,
        name=stream.name,
        command=f"lockstep current {stream.name}",
        reads=Reads.COMMITS,
        rebuilds=True,
        sources=(history,),
        last_run=datetime.now(UTC),
    )


class _Written(msgspec.Struct, frozen=True):
    """The files of a refresh, before their commit.

    Attributes:
        adds: New files.
        replaced: Files whose rows are in new files, or are gone.
        base: The metadata of the version.
        changed: Number of changed keys.
    """

    adds: tuple[AddAction, ...]
    replaced: tuple[AddAction, ...]
    base: CurrentBase
    changed: int


class _Refresh:
    """One refresh."""

    def __init__(self, stream: AnyStream, folders: StreamFolders) -> None:
        self._stream = stream
        self._folders = folders
        self._columns = find_current_columns(stream)
        self._written = list[Path]()

    def run(self, *, remake: bool) -> CurrentRefresh:
        """Refresh. Raises TableError if others were faster, again and again."""
        # Safe to repeat: of two first refreshes one creates it.
        create_table(self._folders.current, self._columns.schema, PROPERTIES)
        for _ in range(ATTEMPTS_MAX):
            refreshed = self._try(remake=remake)
            if refreshed is not None:
                return refreshed
        raise TableError(
            f"{self._folders.current}: other refreshes were faster, {ATTEMPTS_MAX} times in a row",
            next_step=f"look for a process that runs `lockstep current {self._stream.name}` in a loop",
        )

    def _try(self, *, remake: bool) -> CurrentRefresh | None:
        """Refresh; None if another refresh was faster.

        1. Read the newest versions of both tables, and compare their histories.
        2. Read the rows since the last refresh.
        3. Write the changed buckets; or all rows, from the states.
        4. Replace their files in one commit.
        5. Delete files that were replaced an hour ago.
        """
        now = open_table(self._folders).base()  # 1
        current = read_current_version(self._folders)
        cause = RemakeCause.ASKED if remake else judge_current(self._stream, self._folders, current, now)
        base = current.base
        # Nothing is new; files that were replaced an hour ago are deleted all the same.
        if base is not None and cause is None and base.history.batch == now.head.batch:
            self._clean_up(current.version)
            return self._describe(current.version, _Written((), (), base, 0), None)
        with delete_on_error(self._written):
            with _name_remedy(self._folders):
                live = delta_log.read_live_files(self._folders.current, current.version)
            # Changes that cannot be read are a cause, too, as when the log no longer has them.
            changes: pa.Table | RemakeCause = cause or RemakeCause.NEW
            if base is not None and cause is None:
                changes = read_changes(self._folders, base, now, self._columns)  # 2
            if base is not None and isinstance(changes, pa.Table):
                written = self._apply(changes, base, now, live)  # 3
            else:
                written = self._remake(now, live)
                cause = None if isinstance(changes, pa.Table) else changes
        with delete_unless_committed(self._written):
            version = self._commit(current.version, written)  # 4
        if version is None:
            # The other refresh has committed this version; nothing names these files.
            delete_files(self._written)
            return None
        self._clean_up(version, is_erased=cause is RemakeCause.ERASED)  # 5
        return self._describe(version, written, cause)

    def _remake(self, now: Base, live: Mapping[str, AddAction]) -> _Written:
        """Write all rows of the states."""
        positions = ledger.read_positions(self._folders, now.head).values()
        tables = read_state_rows(self._stream, self._folders.state, positions, self._columns, now.head.hour)
        rows = pa.concat_tables([self._columns.schema.empty_table(), *tables])
        buckets = choose_buckets(rows.num_rows)
        adds = [self._write(bucket, part) for bucket, part in split_by_bucket(rows, buckets).items()]
        base = self._make_base(now, buckets, rows.num_rows)
        return _Written(tuple(adds), tuple(live.values()), base, rows.num_rows)

    def _apply(self, changes: pa.Table, base: CurrentBase, now: Base, live: Mapping[str, AddAction]) -> _Written:
        """Write the buckets that changes concern."""
        files = {_find_bucket(path): path for path in live}
        replaced = list[AddAction]()
        adds = list[AddAction]()
        rows = base.rows
        for bucket, part in split_by_bucket(changes, base.buckets).items():
            path = files.get(bucket)
            rows_before = self._columns.schema.empty_table()
            if path is not None:
                rows_before = self._read(path)
                replaced.append(live[path])
            rows_after = apply_changes(rows_before, part, self._columns)
            rows += rows_after.num_rows - rows_before.num_rows
            # A bucket without rows has no file.
            if rows_after.num_rows:
                adds.append(self._write(bucket, rows_after))
        return _Written(tuple(adds), tuple(replaced), self._make_base(now, base.buckets, rows), changes.num_rows)

    def _make_base(self, now: Base, buckets: int, rows: int) -> CurrentBase:
        replay = self._columns.replay
        return CurrentBase(
            history=make_history(self._folders, now),
            code=_describe_code(self._stream, now.head),
            promotion=find_promotion(now.head),
            hour=now.head.hour,
            buckets=buckets,
            rows=rows,
            key=replay.columns,
            removed=replay.removed,
            values=self._columns.values,
        )

    def _read(self, path: str) -> pa.Table:
        file = self._folders.current / path
        try:
            with pq.ParquetFile(find_storage(file).open_source(file), pre_buffer=False) as parquet:
                return parquet.read(use_threads=False).cast(self._columns.schema)
        except UNREADABLE as error:
            raise explain_unreadable(file, error) from error

    def _write(self, bucket: int, rows: pa.Table) -> AddAction:
        """Write the file of a bucket: without statistics, which would name sessions in the log."""
        made = write_file(self._folders.current, rows, prefix=f"bucket-{bucket}", counted_only=True)
        self._written.append(self._folders.current / made.path)
        return made.action()

    def _commit(self, version: int, written: _Written) -> int | None:
        """Replace files at exactly the next version. Returns it, or None if another refresh was faster."""
        current = self._folders.current
        metadata = None
        if not _has_columns(self._folders, self._columns):
            handle = delta_log.open_delta_table(current)
            metadata = delta_log.make_table_metadata(handle, to_delta(self._columns.schema))
        entry = NextEntry(
            version=version + 1,
            kind=REFRESH,
            adds=written.adds,
            removes=tuple(RemoveAction(file.path, file.size) for file in written.replaced),
            table_metadata=metadata,
            transactions={transactions.VERSION: version + 1},
            metadata={BASE: msgspec.json.encode(written.base).decode()},
        )

        def next_entry() -> NextEntry | None:
            # Exactly the next version: the rows are those of the version that was read.
            return entry if delta_log.find_top_version(current) == version else None

        appended = delta_log.append_entry(current, next_entry)
        return None if appended is None else appended.version

    def _clean_up(self, version: int, *, is_erased: bool = False) -> None:
        """Delete files that no version of the last hour has; after an erasure, those that the newest version lacks."""
        current = self._folders.current
        storage = find_storage(current)
        with _name_remedy(self._folders):
            needed = set(delta_log.read_live_files(current, version))
        if is_erased:
            since = delta_log.find_entry_time(current, version)
        else:
            since = time.time() - KEPT_SECONDS
            needed |= self._list_removed(since)
        names = {name for name in storage.list_names(current) if name.endswith(".parquet")}
        paths = [current / name for name in sorted(names - needed)]
        statuses = storage.get_statuses(paths)
        # A younger file may be of a refresh in progress.
        old = [path for path, status in zip(paths, statuses, strict=True) if status and status.modified_at < since]
        storage.delete_files(old)
        # Only after a checkpoint, from which the versions of the last hour can be loaded.
        if write_checkpoint_if_due(current, version):
            delta_log.open_delta_table(current).cleanup_metadata()

    def _list_removed(self, since: float) -> set[str]:
        """The files that versions since then have removed, and readers of earlier versions may still read."""
        current = self._folders.current
        removed = set[str]()
        for version in reversed(delta_log.list_versions(current)):
            if delta_log.find_entry_time(current, version) < since:
                break
            removed |= delta_log.read_removed_paths(current, version) or frozenset()
        return removed

    def _describe(self, version: int, written: _Written, cause: RemakeCause | None) -> CurrentRefresh:
        base = written.base
        return CurrentRefresh(
            stream=self._stream.name,
            folder=to_uri(self._folders.current),
            version=version,
            batch=base.history.batch,
            rows=base.rows,
            changed=written.changed,
            written_buckets=len(written.adds),
            buckets=base.buckets,
            remade=cause,
        )


def _find_bucket(path: str) -> int:
    return int(path.split("-")[1])
