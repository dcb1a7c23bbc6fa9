"""Ledger, commits and side files as stored.

The proof opens files itself (`verify.files`), not through `lockstep.storage`: it must not share the readers of the
data that it proves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast, overload

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from typing_extensions import override

from lockstep.errors import TableError
from lockstep.model.position import SegmentRef, TopicIdPartition
from lockstep.model.table_schema import ABSENT_UP_TO, COMMIT_HOUR, to_delta
from lockstep.table import delta_log, transactions
from lockstep.table.commit import OutputLog
from lockstep.table.file_checksum import read_verified
from lockstep.table.head import Head, QuarantineRetention, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.verify.files import (
    UNREADABLE,
    ask_each,
    find_size,
    open_parquet,
    open_table,
    require_bytes,
)
from lockstep.verify.gates.base import is_readable_time
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations
from lockstep.verify.row_spool import BY_BATCH, BY_OFFSET, Numbers, PartitionRows, RowSpool

RowPosition = tuple[int, int]
"""Emit offset and row number of a row."""
EXPIRED = "expired"
LOSSES = frozenset({"accept-loss", "from-snapshot"})
"""Kinds of decisions that pass over offsets."""


class OffsetGap(msgspec.Struct, frozen=True):
    """Offsets [start, until) without a message, with the ledger's cause."""

    start: int
    until: int
    cause: str


class Skipped(msgspec.Struct, frozen=True):
    """A session that an operator skips: it is suspended if it started before an offset."""

    session: str
    before: int


class ClaimedLoss(msgspec.Struct, frozen=True):
    """States that a batch has discarded, by one cause."""

    cause: str
    offset: int
    sessions: int
    messages: int | None = None
    is_accepted: bool = False
    detail: str = ""


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
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None
    newest_timestamp: datetime | None = None
    lifecycle: str | None = None
    ending: str | None = None
    last_end: int | None = None
    last_end_age_seconds: float | None = None
    retired: bool = False
    losses: list[ClaimedLoss] = []
    discarded_by: str = ""
    uncounted_skips: list[str] = []
    lost_before: int = 0

    @property
    def lost_sessions(self) -> int:
        """Number of the states that it has discarded."""
        return sum(each.sessions for each in self.losses)

    @property
    def lost_messages(self) -> int:
        """Their messages, as far as they are known."""
        return sum(each.messages or 0 for each in self.losses)

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
        """The sessions that an operator skips, each with the offset from which it may restart."""
        return {each.session: each.before for each in self.suspended_sessions}

    @property
    def is_empty(self) -> bool:
        """Whether it only repeats a position."""
        return self.start == self.until

    @property
    def is_loss(self) -> bool:
        """Whether an operator gave up its offsets."""
        return self.is_operator_decision and not self.is_empty and any(each.kind in LOSSES for each in self.accepted)

    @property
    def is_operator_decision(self) -> bool:
        """Whether it records an operator's decision on a halted stream, without reading anything."""
        return bool(self.accepted) and not self.messages

    @property
    def is_forgotten(self) -> bool:
        """Whether it is the last row of a partition whose topic Kafka has not had for long."""
        return self.lifecycle == "forgotten"

    @property
    def read_from(self) -> int:
        """First offset that had not expired."""
        offset = self.start
        for hole in self.holes:
            if hole.cause == EXPIRED and hole.start == offset:
                offset = hole.until
        return offset


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(at: datetime | None) -> int | None:
    """A time in microseconds since 1970 (UTC)."""
    if at is None:
        return None
    return (at - _EPOCH) // timedelta(microseconds=1)


def to_stored_time(microseconds: int | None) -> datetime | None:
    """A time as the ledger has it: None also for a time that readers could not return."""
    if microseconds is None or not is_readable_time(microseconds):
        return None
    return _EPOCH + timedelta(microseconds=microseconds)


BLOCK_ROWS = 128
BLOCKS_KEPT = 3
"""Ranges that are made together, and how many blocks of them stay: a proof reads a range and the range before."""


class StoredRanges(Sequence[LedgerRange]):
    """The ranges of one partition, in order of batches, made from their rows as they are asked for.

    A few of them are in memory: an object of each would be 4 kB, and a month has half a million batches.
    """

    def __init__(self, rows: PartitionRows) -> None:
        self.rows = rows
        self._blocks: list[tuple[int, list[LedgerRange]]] = []

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> LedgerRange: ...

    @overload
    def __getitem__(self, at: slice) -> list[LedgerRange]: ...

    @override
    def __getitem__(self, at: int | slice) -> LedgerRange | list[LedgerRange]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = at
        if at < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(at)
        return self._find(number) or self._decode(number)

    @override
    def __iter__(self) -> Iterator[LedgerRange]:
        for first in range(0, len(self), BLOCK_ROWS):
            yield from map(_range, self.rows.read(first, first + BLOCK_ROWS))

    def select(self, numbers: Iterable[int]) -> tuple[LedgerRange, ...]:
        """Some ranges."""
        return tuple(self[int(number)] for number in numbers)

    def _find(self, number: int) -> LedgerRange | None:
        for first, ranges in self._blocks:
            if first <= number < first + len(ranges):
                return ranges[number - first]
        return None

    def _decode(self, number: int) -> LedgerRange:
        """Decode a range alone, or its whole block if a neighbour was read before: the caller walks on."""
        first = number
        until = number + 1
        if number == 0 or self._find(number - 1) or self._find(number + 1):
            first = number - number % BLOCK_ROWS
            until = first + BLOCK_ROWS
        # A few blocks: an object of each range is 4 kB, and a month has half a million batches.
        self._blocks = [*self._blocks[-BLOCKS_KEPT + 1 :], (first, [*map(_range, self.rows.read(first, until))])]
        return cast("LedgerRange", self._find(number))


class LedgerChain(msgspec.Struct):
    """All ranges of one partition, in order of batches.

    Attributes:
        place: The partition.
        ranges: Its ranges.
        grown_at: Batches at which its topic got another partition.
        erasing: Those of its ranges that are erasures.
        lossy: Those that an operator gave up.
        expired: Those with offsets that had expired before they were read.
        losing: Those with lost states.
        joined_at: The first offsets read of its log, if the log was joined after its start, as its ranges record.
        endings: Those with which its topic was left, because it was deleted or re-created.
    """

    place: ViolationPlace
    ranges: StoredRanges
    grown_at: frozenset[int] = frozenset()
    erasing: tuple[LedgerRange, ...] = ()
    lossy: tuple[LedgerRange, ...] = ()
    expired: tuple[LedgerRange, ...] = ()
    losing: tuple[LedgerRange, ...] = ()
    joined_at: frozenset[int] = frozenset()
    endings: tuple[LedgerRange, ...] = ()

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

    def find_batches(self, positions: Iterable[RowPosition]) -> Iterator[int | None]:
        """The batches that emitted some rows; None for an unknown row. Rows of a timer have the end of the range."""
        batch, until, emitted = (self.ranges.rows.read_numbers(name) for name in ("batch", "until", "rows_emitted"))
        for offset, row in positions:
            # Several ranges end at an offset if batches without messages emitted rows of timers there.
            index, after = np.searchsorted(until, [offset, offset + 1]).tolist()
            index += int(np.searchsorted(emitted[index:after], row, "right"))
            if index < len(batch):
                yield int(batch[index])
            else:
                yield None

    def end_of(self, batch: int) -> RowPosition:
        """The position at which the rows of later batches start. Rows of a timer are at the end of their range."""
        count = count_up_to(self.ranges, batch)
        if not count:
            return (self.start, 0)
        last = self.ranges[count - 1]
        return (last.until, last.rows_emitted)


def count_up_to(ranges: Sequence[LedgerRange], batch: int) -> int:
    """The number of ranges of batches up to one."""
    return bisect_right(ranges, batch, key=lambda row: row.batch)


def make_chains(
    rows: Mapping[TopicIdPartition, StoredRanges], violations: Violations
) -> dict[TopicIdPartition, LedgerChain]:
    """Ranges by partition; checks that each starts at the end of the range before."""
    chains = {key: _make_chain(ranges) for key, ranges in rows.items()}
    for key, chain in chains.items():
        _check_joints(chain.place, rows[key], violations)
        for other in rows[key].rows.find_texts("topic") - {chain.place.topic}:
            violations.add(ViolationKind.TOPIC_DIFFERS, chain.place, None, f"topic {chain.place.topic}", other)
    return {key: msgspec.structs.replace(chain, grown_at=_growth(chain, chains)) for key, chain in chains.items()}


def _make_chain(ranges: StoredRanges) -> LedgerChain:
    rows = ranges.rows
    return LedgerChain(
        ranges[0].place,
        ranges,
        erasing=ranges.select(rows.find_rows_with("erased")),
        lossy=tuple(each for each in ranges.select(rows.find_rows_with("accepted")) if each.is_loss),
        expired=ranges.select(rows.find_rows_with_part("holes", "cause", EXPIRED)),
        losing=ranges.select(rows.find_rows_with("losses")),
        joined_at=frozenset(np.unique(rows.read_numbers("joined_at")).tolist()),
        endings=tuple(each for each in ranges.select(rows.find_rows_with("lifecycle")) if each.ending is not None),
    )


def _check_joints(place: ViolationPlace, ranges: StoredRanges, violations: Violations) -> None:
    batch, start, until = (ranges.rows.read_numbers(name) for name in ("batch", "start", "until"))
    wrong = np.flatnonzero((batch[1:] == batch[:-1]) | (start[1:] != until[:-1]))
    for number in wrong.tolist():
        row = ranges[number]
        after = ranges[number + 1]
        if row.batch == after.batch:
            both = f"[{row.start}, {row.until}) and [{after.start}, {after.until}) in batch {after.batch}"
            violations.add(ViolationKind.LEDGER_ROW_DOUBLED, place, after.start, "one row a batch", both)
        else:
            kind = ViolationKind.RANGE_GAP if after.start > row.until else ViolationKind.RANGE_OVERLAP
            actual = f"batch {after.batch} starts at {after.start}"
            violations.add(kind, place, min(row.until, after.start), f"start {row.until}", actual)
    for number in np.flatnonzero(until < start).tolist():
        row = ranges[number]
        violations.add(ViolationKind.RANGE_OVERLAP, place, row.until, f"an end from {row.start} on", row.until)


def _growth(chain: LedgerChain, found: Mapping[TopicIdPartition, LedgerChain]) -> frozenset[int]:
    """Batches in which a partition of the same topic appears that its first batch did not have."""
    firsts = {other.ranges[0].batch for key, other in found.items() if key[0] == chain.place.topic_id}
    return frozenset(firsts - {min(firsts)})


def find_first_provable(ranges: StoredRanges, first_kept: int) -> int:
    """Index of the first range from which on Kafka retains everything that was read; len(ranges) for none.

    If a log was truncated and grew again, the records at the earlier offsets differ from the ones that were read.
    """
    start, until, catching_up = (ranges.rows.read_numbers(name) for name in ("start", "until", "catching_up"))
    is_plain = (catching_up == 0) & ((start == until) | (start >= first_kept))  # the others are few: up to the first
    # From the end: of a log that was cut and grew again, only what follows is as it was read.
    for number in np.flatnonzero(~is_plain)[::-1].tolist():
        if not _is_kept(ranges[number], first_kept):
            return int(number) + 1
    return 0


def find_first_repeatable(ranges: StoredRanges, unknown_up_to: int) -> int:
    """Index of the first range from which on no batch up to one quarantined messages; len(ranges) for none.

    These are dropped, and the fold needs them: one may have killed each worker that decoded it, and must not be decoded
    by the proof either.
    """
    batch, quarantined = (ranges.rows.read_numbers(name) for name in ("batch", "quarantined"))
    unknown = np.flatnonzero((batch <= unknown_up_to) & (quarantined > 0))
    # A message may have killed each worker that decoded it: the proof must not decode it, either.
    if len(unknown):
        return int(unknown[-1]) + 1
    return 0


def find_first_with_state(
    ranges: Sequence[LedgerRange], first: int, rewind_floor: int, *, inherited_up_to: int = 0
) -> int:
    """Index of the first range from `first` on whose fold can start with a stored state; len(ranges) for none.

    Housekeeping keeps the state in force at the rewind floor and all later states; the fold of a log from its first
    offset on needs none. Ranges of batches up to `inherited_up_to` are of another fold: a shadow took them over.
    """
    inherited = count_up_to(ranges, inherited_up_to)
    if first == 0 and not inherited:
        return 0
    # Housekeeping keeps the state in force at the rewind floor, and all later states.
    return max(first, inherited, count_up_to(ranges, rewind_floor))


def _is_kept(row: LedgerRange, first_kept: int) -> bool:
    return not row.catching_up and (row.is_empty or row.read_from >= first_kept)


Row = dict[str, object]
COMPACTED = "compacted-"
"""Prefix of the names of compacted files; repeated here, because the proof shares no code with the engine."""
NamedFiles = dict[int, tuple[SideFile, ...]]
"""By batch: no two generations use the same number."""


class StoredFile(msgspec.Struct, frozen=True):
    """A live file of a table, according to its log.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        rows: Number of rows.
        hour: Its commit hour; empty in a side table.
        at: Its row in the statistics of all files.
    """

    path: str
    size: int
    rows: int
    hour: str = ""
    at: int = 0


class BatchStamp(NamedTuple):
    """Generation and commit hour of a batch, from its commit; most batches share theirs."""

    generation: int
    hour: str


class NamedFile(msgspec.Struct):
    """The side files that the output table's commits name.

    Attributes:
        ledger: The ledger file of each batch.
        quarantine: The quarantine files of each batch that has any.
        late: Those of the late table.
        first_version: Oldest entry still in the log; older entries were cleaned up.
        begins: The first batch of each file of several batches, by path.
        stamps: Of each batch.
    """

    ledger: NamedFiles
    quarantine: NamedFiles
    late: NamedFiles
    first_version: int
    begins: dict[str, int]
    stamps: dict[int, BatchStamp] = {}

    def find_begin(self, batch: int, files: Iterable[SideFile]) -> int:
        """The first batch of the files of a commit."""
        return min(self.begins.get(file.path, batch) for file in files)


class SideTable(msgspec.Struct):
    """A side table at the version that was read.

    Attributes:
        name: "ledger" or "quarantine".
        folder: Its path.
        files: Its live files, by path.
        held: The newest batch that it contains, according to itself.
        columns: Their types.
    """

    name: str
    folder: Path
    files: dict[str, StoredFile]
    held: int
    columns: dict[str, object]


class StoredTables(msgspec.Struct):
    """Everything read from a stream's tables.

    Attributes:
        version: Version of the output table.
        head: Its head; the proof ends at the head's batch.
        data_files: Live files of the output table.
        statistics: The log's statistics of the columns of each file.
        absent: Columns that were added to it, each with the last batch before it.
        ledger: Ledger rows up to the head, without those of rewound generations, by partition.
        ledger_rows: How many.
        quarantine: Quarantine rows, likewise, in order of their offsets.
        late: Rows of the late table, likewise.
        retention: Which quarantine and late rows are dropped; those of its batches that are left are not compared.
        stamps: Of each batch, as far as its log has its commit.
        checked: Number of compared side files.
        notes: Limits of the comparison.
    """

    version: int
    head: Head
    data_files: list[StoredFile]
    statistics: pa.Table
    absent: dict[str, int]
    ledger: dict[TopicIdPartition, StoredRanges]
    ledger_rows: int
    quarantine: dict[TopicIdPartition, PartitionRows]
    late: dict[TopicIdPartition, PartitionRows]
    retention: QuarantineRetention
    stamps: dict[int, BatchStamp]
    checked: int
    notes: list[str]


NOTHING_DROPPED = QuarantineRetention(hour="", batch=0, at=0.0, cause="")


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
    _compare(sides[0], named.ledger, named, head, violations, ledger.add)  # 4
    dropped = _compare(sides[1], named.quarantine, named, head, violations, quarantine.add, retention.batch)
    if late is not None:
        dropped += _compare(late, named.late, named, head, violations, too_late.add, retention.batch)
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


def _list_unchecked(named: NamedFile) -> list[str]:
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


def _named(table: Path, version: int) -> NamedFile:
    """The files that commits name; also those after `version`, because the side tables may be ahead of it by now."""
    named = NamedFile({}, {}, {}, version, {})
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


def _name(named: NamedFile, entry: delta_log.LogEntry | None) -> None:
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


def _compare(
    side: SideTable,
    files: NamedFiles,
    named: NamedFile,
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
    named: NamedFile,
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
            damage = f"{wrong[0]}: {_describe_column(columns[wrong[0]])}"
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


def _range(row: Row) -> LedgerRange:
    """A ledger row; nulls become the defaults of their columns."""
    return msgspec.convert({name: value for name, value in row.items() if value is not None}, LedgerRange)


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
            expected = f"{file.path}: {name}, {_describe_column(declared.get(name))}"
            violations.add(ViolationKind.DATA_FILE_DAMAGED, None, None, expected, _describe_column(held.get(name)))


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


def _describe_column(kind: object) -> str:
    return "no such column" if kind is None else f"a column of type {kind}"
