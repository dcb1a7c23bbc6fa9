"""Ledger, commits and side files as stored.

The proof opens files itself, not through `lockstep.storage`: it must not share the readers of what it proves. Another
kind of storage needs a second reader here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.errors import TableError
from lockstep.model.position import SegmentRef
from lockstep.model.table_schema import ABSENT_UP_TO
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import Head, SideFile
from lockstep.table.file_checksum import read_verified
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations

Key = tuple[str, int]
"""(topic id, partition)."""
RowPosition = tuple[int, int]
"""Emit offset and row number of a row."""
EXPIRED = "expired"


class OffsetGap(msgspec.Struct, frozen=True):
    """Offsets [start, until) without a message, with the ledger's cause."""

    start: int
    until: int
    cause: str


class Skipped(msgspec.Struct, frozen=True):
    """A session that an operator skips: it is suspended where it began before an offset."""

    session: str
    before: int


class AcceptedRange(msgspec.Struct, frozen=True):
    """Accepted by an operator, so that a halted stream resumed."""

    kind: str
    who: str = ""
    why: str = ""


class ErasedRange(msgspec.Struct, frozen=True):
    """Rows of an erased session: its digest, the first emit offset, the batch that emitted them, and how many."""

    digest: str
    start: int
    batch: int
    rows: int


class ReadVersion(msgspec.Struct, frozen=True):
    """A version of a lookup table that a batch read, and Delta's id of that table."""

    name: str
    version: int
    table_id: str


class LedgerRange(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger row, as far as the proof needs it; independent of the engine's type.

    Columns added by a later release have defaults: rows of an older release lack them.
    """

    generation: int
    batch: int
    topic_id: str
    topic: str
    partition: int
    start: int
    until: int
    messages: int
    rows: int
    accepted_without_row: int
    skipped: int
    repeats: int
    gaps: int
    dropped: int
    quarantined: int
    suspended_from: int
    holes: list[OffsetGap]
    state_file: str | None = None
    state_start: int | None = None
    state_length: int | None = None
    accepted_loss: str | None = None
    accepted: list[AcceptedRange] = []
    suspended_sessions: list[Skipped] = []
    catching_up: bool = False
    with_rows: int | None = None
    buffered: int = 0
    released: int = 0
    late: int = 0
    timer_rows: int = 0
    watermark: datetime | None = None
    rows_emitted: int = 0
    planned_at: datetime | None = None
    joined_at: int = 0
    before_snapshot: int = 0
    erased: list[ErasedRange] = []
    lookups: list[ReadVersion] = []

    @property
    def place(self) -> ViolationPlace:
        """Its partition."""
        return ViolationPlace(self.topic, self.topic_id, self.partition)

    @property
    def segment(self) -> SegmentRef | None:
        """The address of the partition's state after it."""
        if self.state_file is None or self.state_start is None or self.state_length is None:
            return None
        return SegmentRef(file=self.state_file, start=self.state_start, length=self.state_length)

    @property
    def watermark_us(self) -> int | None:
        """The partition's watermark after it; None before any event time."""
        return to_microseconds(self.watermark)

    @property
    def planned_us(self) -> int | None:
        """The planning time of its batch."""
        return to_microseconds(self.planned_at)

    @property
    def skips(self) -> dict[str, int]:
        """The sessions that an operator skips, each with the offset from which on it may begin again."""
        return {each.session: each.before for each in self.suspended_sessions}

    @property
    def is_empty(self) -> bool:
        """Whether it only repeats a position."""
        return self.start == self.until

    @property
    def is_loss(self) -> bool:
        """Whether an operator gave up its offsets."""
        return self.accepted_loss is not None and not self.is_empty

    @property
    def is_operator_decision(self) -> bool:
        """Whether it records an operator's decision on a halted stream, without reading anything."""
        return bool(self.accepted) and not self.messages

    @property
    def read_from(self) -> int:
        """First offset that had not expired."""
        at = self.start
        for hole in self.holes:
            if hole.cause == EXPIRED and hole.start == at:
                at = hole.until
        return at


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(at: datetime | None) -> int | None:
    """A time in microseconds since 1970 (UTC)."""
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


class LedgerChain(msgspec.Struct):
    """All ranges of one partition, in order of batches.

    Attributes:
        place: The partition.
        ranges: Its ranges.
        grown_at: Batches at which its topic got another partition.
    """

    place: ViolationPlace
    ranges: list[LedgerRange]
    grown_at: frozenset[int] = frozenset()

    @property
    def start(self) -> int:
        """First offset that the stream wanted."""
        return self.ranges[0].start

    @property
    def is_joined(self) -> bool:
        """Whether its log was not read from its beginning, as the declaration wanted at its first batch."""
        return self.ranges[0].joined_at > 0

    @property
    def until(self) -> int:
        """First offset not committed."""
        return self.ranges[-1].until

    def end_of(self, batch: int) -> RowPosition:
        """Where the rows of later batches begin; those of a timer lie where the range ends that it ended."""
        last = max((row for row in self.ranges if row.batch <= batch), key=lambda row: row.batch, default=None)
        return (self.start, 0) if last is None else (last.until, last.rows_emitted)


def make_chains(rows: Iterable[LedgerRange], violations: Violations) -> dict[Key, LedgerChain]:
    """Ranges by partition; checks that each begins where the one before ended."""
    found: dict[Key, LedgerChain] = {}
    for row in sorted(rows, key=lambda each: (each.batch, each.start, each.until)):
        found.setdefault((row.topic_id, row.partition), LedgerChain(row.place, [])).ranges.append(row)
    for chain in found.values():
        _check_joints(chain, violations)
    return {key: msgspec.structs.replace(chain, grown_at=_growth(chain, found)) for key, chain in found.items()}


def _check_joints(chain: LedgerChain, violations: Violations) -> None:
    for before, after in pairwise(chain.ranges):
        if before.batch == after.batch:
            found = f"[{before.start}, {before.until}) and [{after.start}, {after.until}) in batch {after.batch}"
            violations.add(ViolationKind.LEDGER_ROW_DOUBLED, chain.place, after.start, "one row a batch", found)
        elif after.start != before.until:
            kind = ViolationKind.RANGE_GAP if after.start > before.until else ViolationKind.RANGE_OVERLAP
            found = f"batch {after.batch} starts at {after.start}"
            violations.add(kind, chain.place, min(before.until, after.start), f"start {before.until}", found)
    for row in chain.ranges:
        if row.until < row.start:
            violations.add(
                ViolationKind.RANGE_OVERLAP, chain.place, row.until, f"an end from {row.start} on", row.until
            )


def _growth(chain: LedgerChain, found: Mapping[Key, LedgerChain]) -> frozenset[int]:
    """Batches in which a partition of the same topic appears that its first batch did not have."""
    firsts = {each.ranges[0].batch for key, each in found.items() if key[0] == chain.place.topic_id}
    return frozenset(firsts - {min(firsts)})


def find_first_provable(ranges: Sequence[LedgerRange], first_kept: int) -> int:
    """Index of the first range from which on Kafka retains everything that was read; len(ranges) for none.

    Where a log was truncated and grew again, the records at the earlier offsets are not the ones that were read.
    """
    index = len(ranges)
    while index > 0 and _is_kept(ranges[index - 1], first_kept):
        index -= 1
    return index


def find_first_with_state(
    ranges: Sequence[LedgerRange], first: int, rewind_floor: int, *, inherited_up_to: int = 0
) -> int:
    """Index of the first range from `first` on whose fold can begin with a stored state; len(ranges) for none.

    Housekeeping keeps the state in force at the rewind floor and all later ones; the fold of a log from its first
    offset on needs none. Ranges of batches up to `inherited_up_to` are of another fold: of what a shadow took over.
    """
    taken = sum(1 for row in ranges if row.batch <= inherited_up_to)
    if first == 0 and not taken:
        return 0
    return max(first, taken, sum(1 for row in ranges if row.batch <= rewind_floor))


def _is_kept(row: LedgerRange, first_kept: int) -> bool:
    return not row.catching_up and (row.is_empty or row.read_from >= first_kept)


Row = dict[str, object]
COMPACTED = "compacted-"
"""Prefix of the names of compacted files; repeated here, because the proof shares no code with the engine."""
NamedFiles = dict[int, tuple[SideFile, ...]]
"""By batch: a number that one generation has given is given by no other."""


class StoredFile(msgspec.Struct, frozen=True):
    """A live file of a table, according to its log."""

    path: str
    size: int
    rows: int


class NamedFile(msgspec.Struct):
    """The side files that the output table's commits name.

    Attributes:
        ledger: The ledger file of each batch.
        quarantine: The quarantine files of each batch that has any.
        late: Those of the late table.
        first_version: Oldest entry still in the log; older ones were cleaned up.
        begins: Of files of several batches, by path: the first one.
    """

    ledger: NamedFiles
    quarantine: NamedFiles
    late: NamedFiles
    first_version: int
    begins: dict[str, int]

    def find_begin(self, batch: int, files: Iterable[SideFile]) -> int:
        """The first batch of the files of a commit."""
        return min(self.begins.get(file.path, batch) for file in files)


class SideTable(msgspec.Struct):
    """A side table at the version that was read.

    Attributes:
        name: "ledger" or "quarantine".
        folder: Where it lies.
        files: Its live files, by path.
        held: The newest batch that it contains, according to itself.
    """

    name: str
    folder: Path
    files: dict[str, StoredFile]
    held: int


class StoredTables(msgspec.Struct):
    """Everything read from a stream's tables.

    Attributes:
        version: Version of the output table.
        head: Its head; the proof ends at the head's batch.
        data_files: Live files of the output table.
        absent: Columns that were added to it, each with the last batch before it.
        ledger: Ledger rows up to the head, without those of rewound generations.
        quarantine: Quarantine rows, likewise.
        late: Rows of the late table, likewise.
        checked: Number of compared side files.
        notes: Limits of the comparison.
    """

    version: int
    head: Head
    data_files: list[StoredFile]
    absent: dict[str, int]
    ledger: list[LedgerRange]
    quarantine: list[Row]
    late: list[Row]
    checked: int
    notes: list[str]


def read_stored(folders: StreamFolders, violations: Violations) -> StoredTables:
    """Read the tables.

    1. The output table's head: the proof covers everything up to its batch.
    2. The side tables, which may hold later batches by now.
    3. All files that the output's commits name, those of later batches included.
    4. Compare 2 with 3; read the rows.

    Raises:
        TableError: A log cannot be read, or contains foreign entries.
    """
    try:
        base = OutputLog(folders.table).base()  # 1
        table = DeltaTable(folders.table, version=base.version)
        data_files = list(_live(table).values())
        sides = [_side(folders.ledger), _side(folders.quarantine)]  # 2
        late = _side(folders.late) if delta_log.has_log(folders.late) else None
        named = _named(folders.table, base.version)  # 3
    except DeltaError as error:
        raise TableError(
            f"the logs of {folders.stream} cannot be read: {str(error).splitlines()[0]}",
            next_step=f"lockstep repair {folders.stream} reports the damage",
        ) from error
    head, notes = base.head, []
    if named.first_version > 0:
        notes.append(f"log entries before version {named.first_version} were cleaned up: older side files unchecked")
    ledger = _compared(sides[0], named.ledger, named, head, violations)  # 4
    kept = _compared(sides[1], named.quarantine, named, head, violations)
    too_late: list[Row] = []
    if late is not None:
        too_late = _compared(late, named.late, named, head, violations)
    _check_data_files(folders.table, data_files, violations)
    return StoredTables(
        version=base.version,
        head=head,
        data_files=data_files,
        absent=_absent(table),
        ledger=[_range(row) for row in _valid(ledger, head)],
        quarantine=list(_valid(kept, head)),
        late=list(_valid(too_late, head)),
        checked=sum(len(side.files) for side in (*sides, late) if side is not None),
        notes=notes,
    )


def _live(table: DeltaTable) -> dict[str, StoredFile]:
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {a["path"]: StoredFile(a["path"], a["size_bytes"], a["num_records"] or 0) for a in actions}


def _absent(table: DeltaTable) -> dict[str, int]:
    notes = {field.name: field.metadata.get(ABSENT_UP_TO) for field in table.schema().fields}
    return {name: int(batch) for name, batch in notes.items() if batch is not None}


def _side(folder: Path) -> SideTable:
    table = DeltaTable(folder)
    return SideTable(folder.name, folder, _live(table), table.transaction_version(delta_log.BATCH) or 0)


def _named(table: Path, version: int) -> NamedFile:
    """The files that commits name; also those after `version`, because the side tables may be ahead of it by now."""
    found = NamedFile({}, {}, {}, version, {})
    for at in range(version, -1, -1):
        entry = delta_log.read_entry(table, at)
        if entry is None:
            break
        found.first_version = at
        _name(found, entry)
    for at in _later(table, version):
        _name(found, delta_log.read_entry(table, at))
    return found


def _name(found: NamedFile, entry: delta_log.LogEntry | None) -> None:
    head = entry.head if entry is not None else None
    if head is not None and head.ledger is not None:
        found.ledger.setdefault(head.batch, (head.ledger,))
    if head is not None and head.quarantine is not None:
        found.quarantine.setdefault(head.quarantine.batch, head.quarantine.files)
    if head is not None and head.late is not None:
        found.late.setdefault(head.late.batch, head.late.files)
    if head is not None and head.promotion is not None and head.promotion.batch == head.batch:
        sides = (added for added in (head.quarantine, head.late) if added is not None and added.batch == head.batch)
        files = (*((head.ledger,) if head.ledger is not None else ()), *(file for side in sides for file in side.files))
        found.begins |= dict.fromkeys((file.path for file in files), head.promotion.first)


def _later(table: Path, version: int) -> Iterator[int]:
    at = version + 1
    while delta_log.make_entry_path(table, at).exists():
        yield at
        at += 1


def _compared(side: SideTable, files: NamedFiles, named: NamedFile, head: Head, violations: Violations) -> list[Row]:
    """The rows of a side table, after its files were compared with those that the commits name."""
    rows: list[Row] = []
    wanted = {file.path: (batch, file) for batch, those in files.items() for file in those}
    compacted = _CompactedRows(side, violations)
    replaced: dict[int, list[SideFile]] = {}
    # The writer may have ended between a commit and its side tables: only the newest addition can be missing.
    newest = max((batch for batch, _ in wanted.values() if batch <= head.batch), default=0)
    for path, (batch, file) in sorted(wanted.items(), key=lambda item: item[1][0]):
        if path not in side.files and compacted.has_rows(batch, named.find_begin(batch, [file])):
            replaced.setdefault(batch, []).append(file)
            continue
        if path not in side.files and batch <= head.batch and (batch < newest or batch <= side.held):
            found = "no live file of that name"
            violations.add(ViolationKind.SIDE_FILE_MISSING, None, None, f"{side.name}/{path} of batch {batch}", found)
        if batch <= head.batch:
            rows += _rows(side, file, range(named.begins.get(path, batch), batch + 1), violations)
    for batch, gone in replaced.items():
        rows += compacted.take(batch, gone, begins=named.find_begin(batch, gone))
    first_known = 0
    if named.first_version > 0:
        first_known = min((named.begins.get(path, batch) for path, (batch, _) in wanted.items()), default=0)
    for path in sorted(side.files.keys() - wanted.keys() - compacted.paths):
        rows += _foreign_rows(side, path, first_known, violations)
    return rows + compacted.rest(first_known)


class _CompactedRows:
    """Rows of compacted files of a side table, which replaced the files that commits name.

    Attributes:
        paths: Those files.
        rows: Their rows by batch.
    """

    def __init__(self, side: SideTable, violations: Violations) -> None:
        self._side, self._violations = side, violations
        self.paths = {path for path in side.files if path.startswith(COMPACTED)}
        self.rows: dict[int, list[Row]] = {}
        for path in sorted(self.paths):
            for row in self._read(path):
                self.rows.setdefault(cast("int", row["batch"]), []).append(row)

    def has_rows(self, last: int, begins: int) -> bool:
        """Whether it has rows of a commit: of one batch, or of several from `begins` on."""
        return any(batch in self.rows for batch in range(begins, last + 1))

    def take(self, last: int, files: Sequence[SideFile], *, begins: int) -> list[Row]:
        """The rows of one commit, whose number must match; of its files that are not live any more."""
        found = [row for batch in range(begins, last + 1) for row in self.rows.pop(batch, ())]
        rows = sum(file.rows for file in files)
        if len(found) != rows:
            expected = f"{self._side.name}/{files[0].path}: {rows} rows"
            self._changed(expected, f"{len(found)} rows of batch {last} in a compacted file")
        return found

    def rest(self, first_known: int) -> list[Row]:
        """Rows that no commit names: expected only of batches whose commits were cleaned up."""
        rows: list[Row] = []
        for batch, found in sorted(self.rows.items()):
            if batch < first_known:
                rows += found
            else:
                expected = "only rows of files that commits name"
                self._violations.add(
                    ViolationKind.SIDE_FILE_FOREIGN, None, None, expected, f"{len(found)} rows of batch {batch}"
                )
        return rows

    def _read(self, path: str) -> list[Row]:
        try:
            read_verified(self._side.folder / path, self._side.folder.parent.name)
        except TableError as error:
            self._changed(f"{self._side.name}/{path} as it was written", error.problem)
        rows, live = _read(self._side.folder / path) or [], self._side.files[path]
        if len(rows) != live.rows:
            self._changed(f"{self._side.name}/{path}: {live.rows} rows", f"{len(rows)} rows")
        return rows

    def _changed(self, expected: str, found: str) -> None:
        self._violations.add(ViolationKind.SIDE_FILE_CHANGED, None, None, expected, found)


def _foreign_rows(side: SideTable, path: str, first_known: int, violations: Violations) -> list[Row]:
    """Rows of a file that no commit names: expected only of batches whose commits were cleaned up."""
    rows = _read(side.folder / path) or []
    if rows and all(cast("int", row["batch"]) < first_known for row in rows):
        return rows
    found = f"{len(rows)} rows in {side.name}/{path}"
    violations.add(ViolationKind.SIDE_FILE_FOREIGN, None, None, "only files that commits name", found)
    return []


def _rows(side: SideTable, file: SideFile, batches: range, violations: Violations) -> list[Row]:
    """The rows of a file that a commit names, whether the side table has it or not."""
    path, batch = side.folder / file.path, batches[-1]
    rows, live = _read(path), side.files.get(file.path)
    if rows is None:
        found = "unreadable" if path.exists() else "no such file"
        violations.add(ViolationKind.SIDE_FILE_MISSING, None, None, f"{side.name}/{file.path} of batch {batch}", found)
        return []
    sizes = {path.stat().st_size} | ({live.size} if live is not None else set())
    counts = {len(rows)} | ({live.rows} if live is not None else set())
    if sizes != {file.size} or counts != {file.rows}:
        found = f"{sorted(sizes)} bytes, {sorted(counts)} rows"
        expected = f"{side.name}/{file.path}: {file.size} bytes, {file.rows} rows"
        violations.add(ViolationKind.SIDE_FILE_CHANGED, None, None, expected, found)
    for row in rows:
        if row["batch"] not in batches:
            found = f"a row of batch {row['batch']}, {row['topic']}/{row['partition']}"
            violations.add(ViolationKind.LEDGER_ROW_FOREIGN, None, None, f"rows of batch {batch} in {file.path}", found)
    return rows


def _read(path: Path) -> list[Row] | None:
    """The rows of a file; None when it is missing or no Parquet."""
    try:
        return pq.ParquetFile(path).read().to_pylist()
    except (pa.ArrowException, OSError):
        return None


def _valid(rows: Iterable[Row], head: Head) -> Iterator[Row]:
    """Rows of batches that were not rewound."""
    last_batch = {ended.generation: ended.last_batch for ended in head.lineage} | {head.generation: head.batch}
    for row in rows:
        if cast("int", row["batch"]) <= last_batch.get(cast("int", row["generation"]), -1):
            yield row


def _range(row: Row) -> LedgerRange:
    """A ledger row; nulls become the defaults of their columns."""
    return msgspec.convert({name: value for name, value in row.items() if value is not None}, LedgerRange)


def _check_data_files(table: Path, files: Iterable[StoredFile], violations: Violations) -> None:
    for file in files:
        path = table / file.path
        found = f"{path.stat().st_size} bytes" if path.exists() else "no such file"
        if found != f"{file.size} bytes":
            violations.add(ViolationKind.DATA_FILE_DAMAGED, None, None, f"{file.path}: {file.size} bytes", found)
