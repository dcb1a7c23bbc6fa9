"""Counts of messages by outcome: of a range, of a row of the ledger, of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import Any, Self

import msgspec


class MessageCounts(msgspec.Struct, gc=False):
    """Counts of messages by outcome; the outcomes add up to `messages` and `released`.

    All names except `refused` are columns of the ledger.

    Attributes:
        messages: Messages read.
        with_rows: Accepted messages that emitted rows.
        accepted_without_row: Accepted messages that emitted no row.
        skipped: Messages of kind SKIP, and `before_snapshot`.
        dropped: Messages neither applied nor stored, by the rule of the class: duplicate or late.
        quarantined: Messages in quarantine, not applied.
        repeats: Messages found to be duplicates or out of order, accepted or dropped.
        gaps: Messages found to follow a gap: accepted, or quarantined if a gap suspends the session.
        refused: Quarantined messages that are undecodable, or on which the transform raised.
        late: Messages in the late table, not applied.
        buffered: Messages stored in the state for a later range.
        released: Messages buffered by an earlier range; they count under their final outcome, too.
        timer_rows: Timers, idle sessions and late messages that emitted rows.
        before_snapshot: Messages before the first snapshot of their session, in a log that is not read from its start.
        absurd_timestamps: Messages with a Kafka timestamp that no clock can have shown; at least, as not all are
            examined.
        absent_removals: Removals of keys that were not in the table of a `TableFold`.
    """

    messages: int = 0
    with_rows: int = 0
    accepted_without_row: int = 0
    skipped: int = 0
    dropped: int = 0
    quarantined: int = 0
    repeats: int = 0
    gaps: int = 0
    refused: int = 0
    late: int = 0
    buffered: int = 0
    released: int = 0
    timer_rows: int = 0
    before_snapshot: int = 0
    absurd_timestamps: int = 0
    absent_removals: int = 0

    @property
    def accounted(self) -> int:
        """Messages of this range with a known outcome."""
        accepted = self.with_rows + self.accepted_without_row
        return accepted + self.skipped + self.dropped + self.quarantined + self.late + self.buffered - self.released

    def make_columns(self) -> dict[str, Any]:
        """Return the columns of the ledger by name."""
        columns = msgspec.structs.asdict(self)
        del columns["refused"]
        return columns

    def make_counted_columns(self) -> dict[str, int]:
        """Return the columns of the ledger that are not zero."""
        counts = msgspec.structs.astuple(self)
        columns = dict(compress(zip(_NAMES, counts, strict=True), counts))
        columns.pop("refused", None)
        return columns

    @classmethod
    def add_up(cls, counts: Iterable[MessageCounts]) -> Self:
        """Return the sum of counts."""
        listed = [msgspec.structs.astuple(each) for each in counts]
        return cls(*map(sum, zip(*listed, strict=True)))


_NAMES = MessageCounts.__struct_fields__
