"""Rows of the ledger as stored, and the chain that they make of each partition."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import cast, overload

import msgspec
import numpy as np
from typing_extensions import override

from lockstep.model.position import SegmentRef, TopicIdPartition
from lockstep.verify.gates.base import is_readable_time
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations
from lockstep.verify.row_spool import PartitionRows

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


Row = dict[str, object]
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
    def key(self) -> TopicIdPartition:
        """The partition, by the id of its topic."""
        return TopicIdPartition(self.place.topic_id, self.place.partition)

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


def _range(row: Row) -> LedgerRange:
    """A ledger row; nulls become the defaults of their columns."""
    return msgspec.convert({name: value for name, value in row.items() if value is not None}, LedgerRange)
