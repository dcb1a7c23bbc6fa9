"""The ledger as plain data: which offsets each batch read of each partition, and whether they join up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec

from lockstep.operations.verify.proof import Place, ViolationKind, Violations
from lockstep.state.address import SectionRef

Key = tuple[str, int]
"""(topic id, partition)."""
EXPIRED = "expired"


class Hole(msgspec.Struct, frozen=True):
    """Offsets [start, until) without a message, with the cause that the ledger names."""

    start: int
    until: int
    cause: str


class Skipped(msgspec.Struct, frozen=True):
    """A session that an operator skips: it waits where it began before an offset."""

    session: str
    before: int


class Accepted(msgspec.Struct, frozen=True):
    """What an operator accepted, so that a halted stream went on."""

    kind: str
    who: str = ""
    why: str = ""


class LedgerRange(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger row: what the proof needs of it, and nothing of the engine's own type of it.

    Columns that a later release added have defaults: rows of an older one are without.
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
    holes: list[Hole]
    state_file: str | None = None
    state_start: int | None = None
    state_length: int | None = None
    accepted_loss: str | None = None
    accepted: list[Accepted] = []
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

    @property
    def place(self) -> Place:
        """Its partition."""
        return Place(self.topic, self.topic_id, self.partition)

    @property
    def section(self) -> SectionRef | None:
        """Where the partition's state lies after it."""
        if self.state_file is None or self.state_start is None or self.state_length is None:
            return None
        return SectionRef(file=self.state_file, start=self.state_start, length=self.state_length)

    @property
    def watermark_us(self) -> int | None:
        """Event time that the partition had come to; None before any."""
        return microseconds(self.watermark)

    @property
    def planned_us(self) -> int | None:
        """When its batch was planned."""
        return microseconds(self.planned_at)

    @property
    def is_empty(self) -> bool:
        """Whether it only repeats a position."""
        return self.start == self.until

    @property
    def is_loss(self) -> bool:
        """Whether its offsets were given up by an operator."""
        return self.accepted_loss is not None and not self.is_empty

    @property
    def is_word(self) -> bool:
        """Whether it is an operator's word on a halted stream, and read nothing."""
        return bool(self.accepted) and not self.messages

    @property
    def read_from(self) -> int:
        """First offset that was still there to read."""
        at = self.start
        for hole in self.holes:
            if hole.cause == EXPIRED and hole.start == at:
                at = hole.until
        return at


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime | None) -> int | None:
    """A time in microseconds since 1970 (UTC)."""
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


class Chain(msgspec.Struct):
    """All ranges of one partition, in order of batches.

    Attributes:
        place: The partition.
        ranges: Its ranges.
        grown_at: Batches at which its topic got another partition.
    """

    place: Place
    ranges: list[LedgerRange]
    grown_at: frozenset[int] = frozenset()

    @property
    def start(self) -> int:
        """First offset that the stream wanted."""
        return self.ranges[0].start

    @property
    def until(self) -> int:
        """First offset not committed."""
        return self.ranges[-1].until


def chains(rows: Iterable[LedgerRange], violations: Violations) -> dict[Key, Chain]:
    """Ranges by partition; checks that each begins where the one before ended."""
    found: dict[Key, Chain] = {}
    for row in sorted(rows, key=lambda each: (each.batch, each.start, each.until)):
        found.setdefault((row.topic_id, row.partition), Chain(row.place, [])).ranges.append(row)
    for chain in found.values():
        _check_joints(chain, violations)
    return {key: msgspec.structs.replace(chain, grown_at=_growth(chain, found)) for key, chain in found.items()}


def _check_joints(chain: Chain, violations: Violations) -> None:
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


def _growth(chain: Chain, found: Mapping[Key, Chain]) -> frozenset[int]:
    """Batches in which a partition of the same topic appears that its first batch did not have."""
    firsts = {each.ranges[0].batch for key, each in found.items() if key[0] == chain.place.topic_id}
    return frozenset(firsts - {min(firsts)})


def provable_from(ranges: Sequence[LedgerRange], first_kept: int) -> int:
    """Index of the first range from which on Kafka still has all that was read; len(ranges) for none.

    Where a log was cut and grew again, what lies at the offsets before is not what was read.
    """
    index = len(ranges)
    while index > 0 and _is_kept(ranges[index - 1], first_kept):
        index -= 1
    return index


def _is_kept(row: LedgerRange, first_kept: int) -> bool:
    return not row.catching_up and (row.is_empty or row.read_from >= first_kept)
