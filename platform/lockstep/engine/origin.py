"""Where the rows of a chunk came from: from one entry a message to one entry a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lockstep.engine.plan import Position
from lockstep.table.rows import Proof, Run

Origin = tuple[int, int, str, int | None, int | None, int]
"""Of one message: offset, number of its rows, session, sequence, event time in microseconds, and the offset
that was being worked on when the rows were emitted."""


class Chunk(NamedTuple):
    """Columns of what is known of each accepted message of a chunk."""

    offsets: Sequence[int]
    rows: Sequence[int]
    sessions: Sequence[str]
    sequences: Sequence[int | None]
    event_times_us: Sequence[int | None]
    emit_offsets: Sequence[int]


class Numbering:
    """Numbers the rows of each emit offset, over the chunks of a range."""

    def __init__(self, offset: int, rows: int) -> None:
        """Begin where an offset has so many rows already."""
        self._offset, self._rows = offset, rows

    def rows_at(self, offset: int) -> int:
        """Rows of an offset so far, where it is the newest; else none."""
        return self._rows if offset == self._offset else 0

    def next(self, offset: int, rows: int) -> range:
        """The numbers of the next rows of an emit offset."""
        first = self.rows_at(offset)
        self._offset, self._rows = offset, first + rows
        return range(first, first + rows)


def proof_of(position: Position, known: Chunk, rows: int, numbering: Numbering) -> Proof:
    """One entry a row, from one entry a message; nearly always each message has one row, of its own."""
    run, emitted = Run(position.topic, position.topic_id, position.partition, rows), known.emit_offsets
    own = known.offsets == emitted
    if own and set(known.rows) == {1} and not numbering.rows_at(emitted[0]):
        numbering.next(emitted[-1], 1)
        return Proof((run,), known.offsets, [0] * rows, known.sessions, known.sequences, known.event_times_us)
    pairs = zip(emitted, known.rows, strict=True)
    numbers = [number for offset, count in pairs for number in numbering.next(offset, count)]
    offsets, sessions, sequences, times, emits = (_repeated(each, known.rows) for each in known[:1] + known[2:])
    return Proof((run,), offsets, numbers, sessions, sequences, times, None if own else emits)


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
