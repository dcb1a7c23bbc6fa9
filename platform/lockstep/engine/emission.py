"""Rows on their way into Arrow, with their proof, and the counts of the messages that gave them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import pyarrow as pa

from lockstep.engine.facts import Counts
from lockstep.engine.origin import Chunk, Numbering, Origin, proof_of
from lockstep.engine.plan import Position
from lockstep.integrity.time import PartitionTime
from lockstep.table.rows import RowsBuilder

CHUNK_ROWS = 500
"""Rows turned into Arrow at once: once per batch costs 2.5 times as much (caches), fewer cost calls."""


class Emission:
    """The rows of one range.

    The fold puts rows into `rows` and says whose they are by `proofs`: one entry for each message, in order.

    Attributes:
        batches: What is in Arrow already.
        rows: What is not.
        proofs: Whose rows these are.
        rows_written: Rows in `batches`.
        event_time_us: Smallest and largest event time so far.
    """

    def __init__(self, builder: RowsBuilder, position: Position, counts: Counts, time: PartitionTime | None) -> None:
        """Begin.

        Args:
            builder: Turns rows into Arrow.
            position: Where the range begins.
            counts: Of its messages.
            time: The watermark, where nothing depends on it and a look at each chunk is enough; else None.
        """
        self._builder, self._position, self._counts, self._time = builder, position, counts, time
        self._numbering = Numbering(position.next_offset, position.rows_emitted)
        self.batches: list[pa.RecordBatch] = []
        self.rows: list[msgspec.Struct] = []
        self.proofs: list[Origin] = []
        self.rows_written = 0
        self.event_time_us: tuple[int, int] | None = None
        self._beside: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether it is time to flush."""
        return len(self.proofs) >= CHUNK_ROWS or len(self.rows) >= CHUNK_ROWS

    def beside(self, origin: Origin) -> None:
        """Rows that no message emitted: those of a timer, or of a session that fell silent."""
        self._beside.add(len(self.proofs))
        self.proofs.append(origin)

    def proof_at(self, position: int) -> tuple[Origin, bool]:
        """Whose row stands at a position of what is not in Arrow yet, and whether it is no message's."""
        ends = accumulate(rows for _, rows, *_ in self.proofs)
        at = next(number for number, end in enumerate(ends) if position < end)
        return self.proofs[at], at in self._beside

    def forget_unproven(self) -> None:
        """Take back rows of a message that did not come to its end."""
        del self.rows[sum(number for _, number, *_ in self.proofs) :]

    def flush(self) -> None:
        """Turn rows into Arrow.

        Raises:
            RowRefused: A value does not fit its column.
        """
        if not self.proofs:
            return
        chunk = Chunk(*zip(*self.proofs, strict=True))
        without, messages = chunk.rows.count(0), len(chunk.rows) - len(self._beside)
        self._counts.without_rows += without
        self._counts.with_rows += messages - without
        self._counts.timer_rows += len(self._beside)
        self._note_times([time for time in chunk.event_times_us if time is not None])
        if self.rows:
            proof = proof_of(self._position, chunk, len(self.rows), self._numbering)
            self.batches.append(self._builder.build(self.rows, proof))
            self.rows_written += len(self.rows)
        self.rows.clear()
        self.proofs.clear()
        self._beside.clear()

    def emitted_at(self, offset: int) -> int:
        """Rows emitted at an offset so far; known of the newest only."""
        return self._numbering.rows_at(offset)

    def _note_times(self, times: Sequence[int]) -> None:
        if not times:
            return
        low, high = self.event_time_us or (times[0], times[0])
        newest = max(times)
        self.event_time_us = min(low, *times), max(high, newest)
        if self._time is None:
            return
        if self._time.is_absurd(newest):
            newest = max((time for time in times if not self._time.is_absurd(time)), default=-1)
        self._time.see(newest)
