"""Reads ledger, commits and side files as stored, and compares them.

The proof opens files itself (`verify.files`), not through `lockstep.storage`: it must not share the readers of the
data that it proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.errors import TableError
from lockstep.model.table_schema import ABSENT_UP_TO, COMMIT_HOUR, to_delta
from lockstep.table import delta_log, transactions
from lockstep.table.commit import OutputLog
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.verify.files import (
    UNREADABLE,
    ask_each,
    find_size,
    open_parquet,
    open_table,
    require_bytes,
)
from lockstep.verify.ledger import StoredRanges
from lockstep.verify.report import ViolationKind, Violations
from lockstep.verify.row_spool import BY_BATCH, BY_OFFSET, RowSpool
from lockstep.verify.side_files import compare_side_table, describe_column
from lockstep.verify.stored_tables import (
    NOTHING_DROPPED,
    BatchStamp,
    CommittedSideFiles,
    SideTable,
    StoredFile,
    StoredTables,
)


def read_stored(folders: StreamFolders, violations: Violations, scratch: Path) -> StoredTables:
    """Read the tables.

    1. The output table's head: the proof covers everything up to its batch.
    2. The side tables, which may hold later batches by now.
    3. All files that the output's commits name, those of later batches included; and the newest retention of the side
       tables, which is committed before a file of theirs is removed.
    4. Compare 2 with 3; copy the rows into scratch files, by partition.

    Args:
        folders: The folders of the stream.
        violations: Where differences are noted.
        scratch: A folder for the rows, which stays as long as the result is used.

    Raises:
        TableError: A log cannot be read, or contains foreign entries.
    """
    try:
        base = OutputLog(folders.table).base()  # 1
        table = open_table(folders.table, version=base.version)
        actions = _read_actions(table)
        sides = [_side(folders.ledger), _side(folders.quarantine)]  # 2
        late = _find_late(folders)
        named = _named(folders.table, base.version)  # 3
        retention = OutputLog(folders.table).base().head.quarantine_retention or NOTHING_DROPPED
    except DeltaError as error:
        raise _unreadable(folders, error) from error
    head = base.head
    notes = _list_unchecked(named)
    data_files = list(_live(actions).values())
    ledger = RowSpool(scratch, "ledger", BY_BATCH)
    quarantine = RowSpool(scratch, "quarantine", BY_OFFSET)
    too_late = RowSpool(scratch, "late", BY_OFFSET)
    compare_side_table(sides[0], named.ledger, named, head, violations, ledger.add)  # 4
    dropped = compare_side_table(sides[1], named.quarantine, named, head, violations, quarantine.add, retention.batch)
    if late is not None:
        dropped += compare_side_table(late, named.late, named, head, violations, too_late.add, retention.batch)
    if dropped:
        notes.append(f"{dropped} messages of batches up to {retention.batch} await their removal by housekeeping")
    _check_data_files(folders.table, table, data_files, violations)
    return StoredTables(
        version=base.version,
        head=head,
        data_files=data_files,
        statistics=actions,
        absent=_absent(table),
        ledger={key: StoredRanges(rows) for key, rows in ledger.finish().items()},
        ledger_rows=ledger.rows,
        quarantine=quarantine.finish(),
        late=too_late.finish(),
        retention=retention,
        stamps=named.stamps,
        checked=sum(len(side.files) for side in (*sides, late) if side is not None),
        notes=notes,
    )


_HOUR = f"partition.{COMMIT_HOUR}"


def _list_unchecked(named: CommittedSideFiles) -> list[str]:
    if named.first_version == 0:
        return []
    return [f"log entries before version {named.first_version} were cleaned up: older side files unchecked"]


def _find_late(folders: StreamFolders) -> SideTable | None:
    if delta_log.has_log(folders.late):
        return _side(folders.late)
    return None


def _unreadable(folders: StreamFolders, error: DeltaError) -> TableError:
    return TableError(
        f"the logs of {folders.stream} cannot be read: {str(error).splitlines()[0]}",
        next_step=f"lockstep repair {folders.stream} reports the damage",
    )


def _live(actions: pa.Table) -> dict[str, StoredFile]:
    names = [name for name in ("path", "size_bytes", "num_records", _HOUR) if name in actions.column_names]
    files = dict[str, StoredFile]()
    for number, action in enumerate(actions.select(names).to_pylist()):
        path = action["path"]
        hour = action.get(_HOUR) or ""  # side tables have no hour
        files[path] = StoredFile(path, action["size_bytes"], action["num_records"] or 0, hour, number)
    return files


def _read_actions(table: DeltaTable) -> pa.Table:
    """A row for each live file, with the statistics of its columns."""
    return pa.table(table.get_add_actions(flatten=True))


def _absent(table: DeltaTable) -> dict[str, int]:
    notes = {field.name: field.metadata.get(ABSENT_UP_TO) for field in table.schema().fields}
    return {name: int(batch) for name, batch in notes.items() if batch is not None}


def _side(folder: Path) -> SideTable:
    table = open_table(folder)
    columns: dict[str, object] = {field.name: field.type for field in table.schema().fields}
    batch = table.transaction_version(transactions.BATCH) or 0
    return SideTable(folder.name, folder, _live(_read_actions(table)), batch, columns)


def _named(table: Path, version: int) -> CommittedSideFiles:
    """The files that commits name; also those after `version`, because the side tables may be ahead of it by now."""
    named = CommittedSideFiles({}, {}, {}, version, {})
    newest_first = range(version, -1, -1)
    entries = ask_each(table, partial(delta_log.read_entry, table), newest_first)
    for number, entry in zip(newest_first, entries, strict=True):
        if entry is None:  # the entries before it were cleaned up
            break
        named.first_version = number
        _name(named, entry)
    for number in _later(table, version):
        _name(named, delta_log.read_entry(table, number))
    return named


def _name(named: CommittedSideFiles, entry: delta_log.LogEntry | None) -> None:
    if entry is None or entry.head is None:
        return
    head = entry.head
    if head.batch:
        after = named.stamps.get(head.batch + 1)
        stamp = BatchStamp(head.generation, head.hour)
        named.stamps[head.batch] = after if after == stamp else stamp  # one object for many
    # Newest entries first: several entries repeat the files of their last batch, which are the same.
    if head.ledger is not None:
        named.ledger.setdefault(head.batch, (head.ledger,))
    if head.quarantine is not None:
        named.quarantine.setdefault(head.quarantine.batch, head.quarantine.files)
    if head.late is not None:
        named.late.setdefault(head.late.batch, head.late.files)
    if head.promotion is not None and head.promotion.batch == head.batch:
        named.begins |= dict.fromkeys(_list_added_paths(head), head.promotion.first)


def _list_added_paths(head: Head) -> Iterator[str]:
    """The side files that the last batch has added."""
    if head.ledger is not None:
        yield head.ledger.path
    for addition in (head.quarantine, head.late):
        if addition is not None and addition.batch == head.batch:
            for file in addition.files:
                yield file.path


def _later(table: Path, version: int) -> Iterator[int]:
    later = version + 1
    while find_size(delta_log.make_entry_path(table, later)) is not None:
        yield later
        later += 1


def _check_data_files(folder: Path, table: DeltaTable, files: Iterable[StoredFile], violations: Violations) -> None:
    """Each file is there, of its size, with the columns of the table; columns added later may be missing."""
    declared = {field.name: field.type for field in table.schema().fields if field.name != COMMIT_HOUR}
    required = declared.keys() - _absent(table)
    files = list(files)
    looks = ask_each(folder, _look_at_columns, [folder / file.path for file in files])
    for file, (size, held) in zip(files, looks, strict=True):
        stored = "no such file" if size is None else f"{size} bytes"
        if stored != f"{file.size} bytes":
            violations.add(ViolationKind.DATA_FILE_DAMAGED, None, None, f"{file.path}: {file.size} bytes", stored)
        if size is not None and held is None:
            violations.add(ViolationKind.DATA_FILE_DAMAGED, None, None, f"{file.path}: a Parquet file", "another one")
        if held is None:
            continue
        other = {name for name, kind in held.items() if kind != declared.get(name)}
        for name in sorted((required - held.keys()) | other):
            expected = f"{file.path}: {name}, {describe_column(declared.get(name))}"
            violations.add(ViolationKind.DATA_FILE_DAMAGED, None, None, expected, describe_column(held.get(name)))


def _look_at_columns(path: Path) -> tuple[int | None, dict[str, object] | None]:
    """The bytes of a data file, and its columns with their types; None if the file is missing or is not Parquet."""
    size = find_size(path)
    if size is None:
        return None, None
    try:
        fields = to_delta(open_parquet(path).schema_arrow).fields
    except UNREADABLE as error:
        require_bytes(path, error)
        return size, None
    return size, {field.name: field.type for field in fields}
