"""Side files as commits name them, compared with those of the side tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.errors import TableError
from lockstep.model.table_schema import to_delta
from lockstep.table.file_checksum import read_verified
from lockstep.table.head import Head, SideFile
from lockstep.verify.files import (
    UNREADABLE,
    ask_each,
    find_size,
    open_parquet,
    require_bytes,
)
from lockstep.verify.report import ViolationKind, Violations
from lockstep.verify.row_spool import Numbers
from lockstep.verify.stored_tables import COMPACTED, BatchStamp, CommittedSideFiles, NamedFiles, SideTable


class _SidePart(msgspec.Struct, frozen=True):
    """Rows of a side file that count.

    Attributes:
        first: Their first batch.
        path: The file.
        batches: Their batches; None for all of the file.
    """

    first: int
    path: str
    batches: Numbers | None = None


def compare_side_table(
    side: SideTable,
    files: NamedFiles,
    named: CommittedSideFiles,
    head: Head,
    violations: Violations,
    take: Callable[[pa.Table], None],
    dropped_up_to: int = 0,
) -> int:
    """Yield the rows of a side table that count; first compare its files with the files that the commits name.

    Yields a row group at a time, in order of batches if the files are in order. Returns the number of rows of batches
    up to `dropped_up_to` that are still there.
    """
    dropped = 0
    wanted = dict[str, tuple[int, SideFile]]()
    for batch, batch_files in files.items():
        for file in batch_files:
            if batch > dropped_up_to or file.path in side.files:
                wanted[file.path] = (batch, file)
    parts = _find_parts(side, wanted, named, head, violations, dropped_up_to)
    parts = sorted(parts, key=lambda part: (part.first, part.path))
    opened = ask_each(side.folder, open_parquet, [side.folder / part.path for part in parts])
    for part, parquet in zip(parts, opened, strict=True):
        for rows in _read_groups(parquet):
            if part.path in wanted:
                _check_batches(part.path, rows, range(part.first, wanted[part.path][0] + 1), violations)
            _check_generations(part.path, rows, named.stamps, violations)
            is_kept = _to_numbers(rows, "batch") > dropped_up_to
            dropped += len(is_kept) - int(is_kept.sum())
            if not is_kept.all():
                rows = rows.filter(pa.array(is_kept))  # noqa: PLW2901  # without those that await their removal
            take(_select(rows, part.batches, head))
    return dropped


def _find_parts(
    side: SideTable,
    wanted: Mapping[str, tuple[int, SideFile]],
    named: CommittedSideFiles,
    head: Head,
    violations: Violations,
    dropped_up_to: int,
) -> list[_SidePart]:
    """The files whose rows count, and live ones that retention will remove.

    1. Those that commits name, each with its batch; the others of these are in compacted files.
    2. Those that no commit names any more, and the rest of the compacted files, or of dropped batches.
    """
    parts = list[_SidePart]()
    compacted = _CompactedRows(side, violations)
    counting = list[tuple[int, int, SideFile]]()
    replaced: dict[int, list[SideFile]] = {}
    # The writer may have ended between a commit and its side tables: only the newest addition can be missing.
    newest = max((batch for batch, _ in wanted.values() if batch <= head.batch), default=0)
    for path, (batch, file) in sorted(wanted.items(), key=lambda item: item[1][0]):  # 1
        begins = named.find_begin(batch, [file])
        if path not in side.files and compacted.has_rows(batch, begins):
            replaced.setdefault(batch, []).append(file)
            continue
        if path not in side.files and batch <= head.batch and (batch < newest or batch <= side.held):
            expected = f"{side.name}/{path} of batch {batch}"
            violations.add(ViolationKind.SIDE_FILE_MISSING, None, None, expected, "no live file of that name")
        if batch <= head.batch:
            counting.append((batch, begins, file))
    parts += _find_whole(side, counting, violations)
    for batch, gone in replaced.items():
        compacted.take(batch, gone, begins=named.find_begin(batch, gone))
    first_known = 0  # 2
    if named.first_version > 0:
        first_known = min((named.begins.get(path, batch) for path, (batch, _) in wanted.items()), default=0)
    compacted.pass_over(dropped_up_to)
    for path in sorted(side.files.keys() - wanted.keys() - compacted.paths):
        parts += _foreign_parts(side, path, first_known, violations)
    return parts + compacted.rest(first_known)


def _read_groups(file: pq.ParquetFile) -> Iterator[pa.Table]:
    """The rows of a file, a row group at a time."""
    with file as parquet:
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, use_threads=False)
            rows.validate(full=True)  # a text may be none
            yield rows


def _read_batches(path: Path) -> Numbers | None:
    """The batch of each row of a file, of which every value can be read; None when it is missing or no Parquet."""
    try:
        batches = [_to_numbers(rows, "batch") for rows in _read_groups(open_parquet(path))]
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        require_bytes(path, error)
        return None
    return np.concatenate([np.zeros(0, np.int64), *batches])


def _to_numbers(rows: pa.Table, name: str) -> Numbers:
    column = rows[name]
    return np.asarray(column.fill_null(pa.scalar(-1, column.type)).to_numpy(), np.int64)


def _select(rows: pa.Table, batches: Numbers | None, head: Head) -> pa.Table:
    """The rows of some batches, as far as they were not rewound."""
    last_batch = {ended.generation: ended.last_batch for ended in head.lineage} | {head.generation: head.batch}
    batch = _to_numbers(rows, "batch")
    generations = _to_numbers(rows, "generation")
    counts = np.zeros(len(batch), bool)
    for generation in np.unique(generations).tolist():
        counts |= (generations == generation) & (batch <= last_batch.get(generation, -1))
    if batches is not None:
        counts &= np.isin(batch, batches)
    if counts.all():
        return rows
    return rows.filter(pa.array(counts))


class _CompactedRows:
    """Rows of compacted files of a side table, which replaced the files that commits name; counted by batch.

    Attributes:
        paths: Those files.
    """

    def __init__(self, side: SideTable, violations: Violations) -> None:
        self._side = side
        self._violations = violations
        self.paths = {path for path in side.files if path.startswith(COMPACTED)}
        self._held = {path: np.unique(self._read(path), return_counts=True) for path in sorted(self.paths)}
        empty = np.zeros(0, np.int64)
        batches = np.concatenate([empty, *(batches for batches, _ in self._held.values())])
        self._batches, places = np.unique(batches, return_inverse=True)
        self._rows = np.zeros(len(self._batches), np.int64)
        np.add.at(self._rows, places, np.concatenate([empty, *(rows for _, rows in self._held.values())]))
        self._is_left = np.ones(len(self._batches), bool)

    def has_rows(self, last: int, begins: int) -> bool:
        """Whether it has rows of a commit: of one batch, or of several batches from `begins` on."""
        return bool(self._is_left[self._find(begins, last)].any())

    def take(self, last: int, files: Sequence[SideFile], *, begins: int) -> None:
        """Take the rows of one commit, whose number must match; of its files that are not live any more."""
        here = self._find(begins, last)
        stored = int(self._rows[here][self._is_left[here]].sum())
        rows = sum(file.rows for file in files)
        self._is_left[here] = False
        if stored != rows:
            expected = f"{self._side.name}/{files[0].path}: {rows} rows"
            self._changed(expected, f"{stored} rows of batch {last} in a compacted file")

    def pass_over(self, dropped_up_to: int) -> None:
        """Take the rows of batches that retention has dropped, however many are left of them."""
        self._is_left[self._batches <= dropped_up_to] = False

    def rest(self, first_known: int) -> list[_SidePart]:
        """What counts of the files: the rows that were taken, and those of batches whose commits were cleaned up."""
        foreign = self._is_left & (self._batches >= first_known)
        for batch, rows in zip(self._batches[foreign].tolist(), self._rows[foreign].tolist(), strict=True):
            expected = "only rows of files that commits name"
            self._violations.add(ViolationKind.SIDE_FILE_FOREIGN, None, None, expected, f"{rows} rows of batch {batch}")
        parts = list[_SidePart]()
        for path, (batches, _) in self._held.items():
            counting = np.setdiff1d(batches, self._batches[foreign])
            if len(counting):
                parts.append(_SidePart(int(counting[0]), path, counting))
        return parts

    def _find(self, first: int, last: int) -> slice:
        """The slice of the batches from `first` to `last`."""
        return slice(*np.searchsorted(self._batches, [first, last + 1]).tolist())

    def _read(self, path: str) -> Numbers:
        """The batch of each row."""
        try:
            read_verified(self._side.folder / path, self._side.folder.parent.name)
        except TableError as error:
            self._changed(f"{self._side.name}/{path} as it was written", error.problem)
        rows = _read_batches(self._side.folder / path)
        live = self._side.files[path]
        if rows is None:
            rows = np.zeros(0, np.int64)
        if len(rows) != live.rows:
            self._changed(f"{self._side.name}/{path}: {live.rows} rows", f"{len(rows)} rows")
        return rows

    def _changed(self, expected: str, found: str) -> None:
        self._violations.add(ViolationKind.SIDE_FILE_CHANGED, None, None, expected, found)


def _foreign_parts(side: SideTable, path: str, first_known: int, violations: Violations) -> list[_SidePart]:
    """A file that no commit names: expected only of batches whose commits were cleaned up."""
    batches = _read_batches(side.folder / path)
    if batches is None:
        batches = np.zeros(0, np.int64)
    if len(batches) and int(batches.max()) < first_known:
        return [_SidePart(int(batches.min()), path)]
    actual = f"{len(batches)} rows in {side.name}/{path}"
    violations.add(ViolationKind.SIDE_FILE_FOREIGN, None, None, "only files that commits name", actual)
    return []


def _find_whole(
    side: SideTable, files: Sequence[tuple[int, int, SideFile]], violations: Violations
) -> Iterator[_SidePart]:
    """Those of some files that can be read; each with its batch, and the first batch of its commit."""
    looks = ask_each(side.folder, partial(_look, side), [file for _, _, file in files])
    for (batch, begins, file), look in zip(files, looks, strict=True):
        if _is_whole(side, batch, file, look, violations):
            yield _SidePart(begins, file.path)


class _Look(NamedTuple):
    """The batch of each row of a file, its size in bytes, and its damage; empty without any."""

    batches: Numbers | None
    size: int | None
    damage: str


def _look(side: SideTable, file: SideFile) -> _Look:
    """Read a file once: a ledger file is read whole, and compared with the checksum in its name."""
    path = side.folder / file.path
    size = find_size(path)
    if size is None:
        return _Look(None, None, "")
    try:
        parquet = _open_side_file(side, path)
    except TableError as error:
        return _Look(np.zeros(0, np.int64), size, error.problem)
    except UNREADABLE as error:
        require_bytes(path, error)
        return _Look(None, size, "")
    try:
        columns = {field.name: field.type for field in to_delta(parquet.schema_arrow).fields}
        wrong = sorted(name for name, kind in columns.items() if kind != side.columns.get(name))
        damage = ""
        batches = list[Numbers]()
        if wrong:
            damage = f"{wrong[0]}: {describe_column(columns[wrong[0]])}"
        else:
            batches = [_to_numbers(rows, "batch") for rows in _read_groups(parquet)]
    except UNREADABLE as error:
        require_bytes(path, error)
        return _Look(None, size, "")
    return _Look(np.concatenate([np.zeros(0, np.int64), *batches]), size, damage)


def _open_side_file(side: SideTable, path: Path) -> pq.ParquetFile:
    if side.name != "ledger":
        return open_parquet(path)
    content = read_verified(path, side.folder.parent.name)
    return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)


def _is_whole(side: SideTable, batch: int, file: SideFile, look: _Look, violations: Violations) -> bool:
    """Whether a file that a commit names can be read, whether the side table has it or not; compares its size."""
    batches, size, damage = look
    live = side.files.get(file.path)
    if batches is None or size is None:
        problem = "no such file" if size is None else "unreadable"
        expected = f"{side.name}/{file.path} of batch {batch}"
        violations.add(ViolationKind.SIDE_FILE_MISSING, None, None, expected, problem)
        return False
    if damage:
        expected = f"{side.name}/{file.path} as it was written"
        violations.add(ViolationKind.SIDE_FILE_CHANGED, None, None, expected, damage)
        return False
    sizes = {size}
    counts = {len(batches)}
    if live is not None:  # the log of the side table has to agree as well as the file
        sizes.add(live.size)
        counts.add(live.rows)
    if sizes != {file.size} or counts != {file.rows}:
        stored = f"{sorted(sizes)} bytes, {sorted(counts)} rows"
        expected = f"{side.name}/{file.path}: {file.size} bytes, {file.rows} rows"
        violations.add(ViolationKind.SIDE_FILE_CHANGED, None, None, expected, stored)
    return True


def _check_batches(path: str, rows: pa.Table, batches: range, violations: Violations) -> None:
    """Each row of a file is of the batches of the commit that names it."""
    of_rows = _to_numbers(rows, "batch")
    outside = np.flatnonzero((of_rows < batches.start) | (of_rows >= batches.stop))
    for row in rows.select(["batch", "topic", "partition"]).take(outside).to_pylist():
        foreign = f"a row of batch {row['batch']}, {row['topic']}/{row['partition']}"
        expected = f"rows of batch {batches[-1]} in {path}"
        violations.add(ViolationKind.LEDGER_ROW_FOREIGN, None, None, expected, foreign)


def _check_generations(path: str, rows: pa.Table, stamps: Mapping[int, BatchStamp], violations: Violations) -> None:
    """Each row is of the generation of its batch: one of another would not count."""
    batches = _to_numbers(rows, "batch").tolist()
    generations = _to_numbers(rows, "generation").tolist()
    for batch, generation in sorted(set(zip(batches, generations, strict=True))):
        if batch in stamps and stamps[batch].generation != generation:
            expected = f"rows of generation {stamps[batch].generation} of batch {batch} in {path}"
            violations.add(ViolationKind.LEDGER_ROW_FOREIGN, None, None, expected, f"generation {generation}")


def describe_column(kind: object) -> str:
    """The type of a column, for the text of a violation."""
    return "no such column" if kind is None else f"a column of type {kind}"
