"""Where the rows of a chunk came from: from one entry a message to one entry a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lockstep.engine.plan import Position
from lockstep.table.rows import Proof, Run

Origin = tuple[int, int, str, int | None, int | None]
"""Of one message: offset, number of its rows, session, sequence, event time in microseconds."""


class Chunk(NamedTuple):
    """Columns of what is known of each accepted message of a chunk."""

    offsets: Sequence[int]
    rows: Sequence[int]
    sessions: Sequence[str]
    sequences: Sequence[int | None]
    event_times_us: Sequence[int | None]


def proof_of(position: Position, known: Chunk, rows: int) -> Proof:
    """One entry a row, from one entry a message; nearly always each message has one row."""
    run = Run(position.topic, position.topic_id, position.partition, rows)
    if set(known.rows) == {1}:
        return Proof((run,), known.offsets, [0] * rows, known.sessions, known.sequences, known.event_times_us)
    offsets, sessions, sequences, times = (_repeated(values, known.rows) for values in known[:1] + known[2:])
    numbers = [number for count in known.rows for number in range(count)]
    return Proof((run,), offsets, numbers, sessions, sequences, times)


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
