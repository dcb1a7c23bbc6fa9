"""Encodes rows with provenance as Arrow; spills to disk.

The rows of a file are ordered by partition, while messages of all partitions arrive interleaved, so
rows wait until the last message of the batch. Beyond a bound they are written to a scratch file
and memory-mapped: the same Arrow batches, in pages that the system can drop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from io import BufferedWriter
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep.engine.protocol import Counts
from lockstep.errors import EnvironmentProblem
from lockstep.integrity.base import PartitionTime
from lockstep.model.position import Position
from lockstep.model.row_cause import RowCause
from lockstep.storage import Scratch
from lockstep.table.row_encoder import VALUE_ERRORS, PartitionRun, Provenance, RowRejected, RowsBuilder

MessageOrigin = tuple[int, int, str, int | None, int | None, int]
"""Of one message: offset, number of its rows, session, sequence, event time in microseconds, and the offset
that was being processed when the rows were emitted."""


Numbers = npt.NDArray[np.int64]
"""A number for each message."""


class Chunk(NamedTuple):
    """Provenance columns of the accepted messages of a chunk."""

    offsets: Sequence[int]
    rows: Sequence[int]
    sessions: Sequence[str]
    sequences: Sequence[int | None]
    event_times_us: Sequence[int | None]
    emit_offsets: Sequence[int]
    causes: Mapping[int, RowCause]
    """By place in the chunk, where it is no update."""


class Expanded(NamedTuple):
    """Rows of a range, ready to be encoded.

    Attributes:
        rows: The rows.
        proof: Their provenance.
        chunk: The origins of which it was made.
        numbering: The numbering after them.
    """

    rows: list[msgspec.Struct]
    proof: Provenance
    chunk: Chunk
    numbering: RowNumbering


class RowNumbering:
    """Numbers the rows of each emit offset, across the chunks of a range."""

    def __init__(self, offset: int, rows: int) -> None:
        """Start at an offset that has this many rows already."""
        self._offset, self._rows = offset, rows

    def rows_at(self, offset: int) -> int:
        """Rows of an offset so far, if it is the newest; else none."""
        return self._rows if offset == self._offset else 0

    def next(self, offset: int, rows: int) -> range:
        """The numbers of the next rows of an emit offset."""
        first = self.rows_at(offset)
        self._offset, self._rows = offset, first + rows
        return range(first, first + rows)


def expand_origins(position: Position, known: Chunk, rows: int, numbering: RowNumbering) -> Provenance:
    """Expand one entry per message to one per row; nearly always each message has one row."""
    run, emitted = PartitionRun(position.topic, position.topic_id, position.partition, rows), known.emit_offsets
    own = known.offsets == emitted
    if own and not known.causes and set(known.rows) == {1} and not numbering.rows_at(emitted[0]):
        numbering.next(emitted[-1], 1)
        return Provenance((run,), known.offsets, [0] * rows, known.sessions, known.sequences, known.event_times_us)
    pairs = zip(emitted, known.rows, strict=True)
    numbers = [number for offset, count in pairs for number in numbering.next(offset, count)]
    offsets, sessions, sequences, times, emits = (_repeated(each, known.rows) for each in known[:1] + known[2:-1])
    causes = _list_causes(known) if known.causes else None
    return Provenance((run,), offsets, numbers, sessions, sequences, times, None if own else emits, causes)


def _list_causes(known: Chunk) -> list[RowCause]:
    """The cause of each row of a chunk."""
    causes = [known.causes.get(place, RowCause.UPDATE) for place in range(len(known.rows))]
    return _repeated(causes, known.rows)


def merge_provenance(parts: Sequence[Provenance]) -> Provenance:
    """The provenance of the rows of several ranges, one after the other."""
    if len(parts) == 1:
        return parts[0]
    emits = [value for part in parts for value in part.emit_offsets or part.offsets]
    return Provenance(
        [run for part in parts for run in part.runs],
        [value for part in parts for value in part.offsets],
        [value for part in parts for value in part.row_numbers],
        [value for part in parts for value in part.sessions],
        [value for part in parts for value in part.sequences],
        [value for part in parts for value in part.event_times_us],
        emits if any(part.emit_offsets is not None for part in parts) else None,
        _merge_causes(parts),
    )


def _merge_causes(parts: Sequence[Provenance]) -> list[RowCause] | None:
    """The causes of the rows of several ranges; None if all rows are of updates."""
    if all(part.causes is None for part in parts):
        return None
    merged = list[RowCause]()
    for part in parts:
        merged += part.causes or [RowCause.UPDATE] * len(part.offsets)
    return merged


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


CHUNK_ROWS = 500
"""Rows encoded at once: once per batch costs 2.5 times as much (caches), smaller chunks cost calls."""


class RowBuffer:
    """The rows of one range.

    The fold appends rows to `rows` and their origins to `proofs`: one entry for each message, in order.

    Attributes:
        batches: Encoded rows.
        rows: Rows not yet encoded.
        proofs: Origins of these rows.
        rows_written: Rows in `batches`.
        event_time_us: Smallest and largest event time so far.
    """

    def __init__(self, builder: RowsBuilder, position: Position, counts: Counts, time: PartitionTime | None) -> None:
        """Start a range.

        Args:
            builder: Encodes rows as Arrow.
            position: Start of the range.
            counts: Counts of the range.
            time: The watermark, where nothing depends on it and one update per chunk is enough; else None.
        """
        self._builder, self._position, self._counts, self._time = builder, position, counts, time
        self._numbering = RowNumbering(position.next_offset, position.rows_emitted)
        self.batches: list[pa.RecordBatch] = []
        self.rows: list[msgspec.Struct] = []
        self.proofs: list[MessageOrigin] = []
        self.rows_written = 0
        self.event_time_us: tuple[int, int] | None = None
        self._extra_origins: set[int] = set()
        self._causes: dict[int, RowCause] = {}

    @property
    def is_full(self) -> bool:
        """Whether it is time to flush."""
        return len(self.proofs) >= CHUNK_ROWS or len(self.rows) >= CHUNK_ROWS

    def note_cause(self, cause: RowCause) -> None:
        """Record which hook emits the rows of the next origin; by default it is `on_update`."""
        self._causes[len(self.proofs)] = cause

    def append_extra(self, origin: MessageOrigin, cause: RowCause) -> None:
        """Add rows that no accepted message emitted: those of a timer, an idle session, or a late message."""
        self.note_cause(cause)
        self._extra_origins.add(len(self.proofs))
        self.proofs.append(origin)

    def proof_at(self, position: int) -> tuple[MessageOrigin, bool]:
        """Origin of the row at an index of those not yet encoded, and whether no message emitted it."""
        ends = accumulate(rows for _, rows, *_ in self.proofs)
        at = next(number for number, end in enumerate(ends) if position < end)
        return self.proofs[at], at in self._extra_origins

    def rollback_message(self) -> None:
        """Remove the rows of a message that failed."""
        del self.rows[sum(number for _, number, *_ in self.proofs) :]

    def flush(self) -> None:
        """Encode the rows as Arrow.

        Raises:
            RowRejected: A value does not fit its column.
        """
        if self.rows:
            part = self.expand()
            self.replace_encoded(part, self.build([part]))
        elif self.proofs:
            self._count(self._chunk())

    def expand(self) -> Expanded:
        """The rows that are not yet encoded, with their provenance; nothing is changed."""
        chunk, numbering = self._chunk(), copy(self._numbering)
        return Expanded(self.rows, expand_origins(self._position, chunk, len(self.rows), numbering), chunk, numbering)

    def build(self, parts: Sequence[Expanded]) -> pa.RecordBatch:
        """Encode rows of ranges of the same stream as one batch. Raises as `flush` does."""
        return self._builder.build(
            [row for part in parts for row in part.rows], merge_provenance([part.proof for part in parts])
        )

    def replace_encoded(self, part: Expanded, batch: pa.RecordBatch) -> None:
        """Put the batch into the place of the rows of which it was made."""
        self.batches.append(batch)
        self.rows_written += len(part.rows)
        self._numbering = part.numbering
        self._count(part.chunk)

    def _chunk(self) -> Chunk:
        offsets, rows, sessions, sequences, times, emits = zip(*self.proofs, strict=True)
        return Chunk(offsets, rows, sessions, sequences, times, emits, self._causes)

    def _count(self, chunk: Chunk) -> None:
        """Count the messages of a chunk, which is done."""
        without, messages = chunk.rows.count(0), len(chunk.rows) - len(self._extra_origins)
        self._counts.without_rows += without
        self._counts.with_rows += messages - without
        self._counts.timer_rows += len(self._extra_origins)
        self._note_times([time for time in chunk.event_times_us if time is not None])
        self.rows.clear()
        self.proofs.clear()
        self._extra_origins.clear()
        self._causes = {}

    def append_encoded(self, batch: pa.RecordBatch, last: int, rows: Numbers, times: Numbers | None) -> None:
        """Add the rows of accepted messages that are encoded already, after those not yet encoded.

        Args:
            batch: The rows.
            last: Offset of the last of these messages.
            rows: For each of them the number of its rows.
            times: Their event times, where they have any.

        Raises:
            RowRejected: A value of an earlier row does not fit its column; nothing was added.
        """
        self.flush()
        without = len(rows) - int(np.count_nonzero(rows))
        self._counts.without_rows += without
        self._counts.with_rows += len(rows) - without
        if times is not None:
            bounds = [int(times.min()), int(times.max())]
            is_plain = self._time is None or not any(map(self._time.is_implausible, bounds))
            self._note_times(bounds if is_plain else times.tolist())
        self._numbering.next(last, int(rows[-1]))
        if batch.num_rows:
            self.batches.append(batch)
            self.rows_written += batch.num_rows

    def emitted_at(self, offset: int) -> int:
        """Rows emitted at an offset so far; known for the newest only."""
        return self._numbering.rows_at(offset)

    def _note_times(self, times: Sequence[int]) -> None:
        if not times:
            return
        low, high = self.event_time_us or (times[0], times[0])
        newest = max(times)
        self.event_time_us = min(low, *times), max(high, newest)
        if self._time is None:
            return
        if self._time.is_implausible(newest):
            newest = max((time for time in times if not self._time.is_implausible(time)), default=-1)
        self._time.advance(newest)


FEW_ROWS = 50
"""Rows of a range that are encoded together with those of others: a batch of its own costs 0.1 ms, however few."""


def encode_few(buffers: Iterable[RowBuffer]) -> None:
    """Encode the last rows of ranges that have only a few, many ranges at once.

    Where a value does not fit its column they stay as they are: the `flush` of its range finds it again.
    """
    for group in _grouped([buffer for buffer in buffers if 0 < len(buffer.rows) <= FEW_ROWS]):
        parts = [buffer.expand() for buffer in group]
        try:
            batch = group[0].build(parts)
        except (RowRejected, *VALUE_ERRORS):
            continue
        _hand_out(batch, group, parts)


def _grouped(buffers: Sequence[RowBuffer]) -> Iterator[list[RowBuffer]]:
    """The ranges in groups of about a chunk's rows."""
    group, rows = list[RowBuffer](), 0
    for buffer in buffers:
        group.append(buffer)
        rows += len(buffer.rows)
        if rows >= CHUNK_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _hand_out(batch: pa.RecordBatch, buffers: Sequence[RowBuffer], parts: Sequence[Expanded]) -> None:
    """Give each range its part of the batch that was made of all of them."""
    start = 0
    for buffer, part in zip(buffers, parts, strict=True):
        count = len(part.rows)
        buffer.replace_encoded(part, batch.slice(start, count))
        start += count


class Spill:
    """Limits the buffered rows of a task in memory."""

    def __init__(self, scratch: Path, *, bound_bytes: int) -> None:
        self._scratch, self._bound = scratch, bound_bytes
        self._in_memory: list[tuple[list[pa.RecordBatch], int]] = []
        self._held_bytes = 0

    def note(self, batches: list[pa.RecordBatch], before: int) -> None:
        """Record that a range's list of batches grew from `before`; past the bound, spill the batches in memory.

        Raises:
            EnvironmentProblem: The local disk is full.
        """
        for index in range(before, len(batches)):
            self._in_memory.append((batches, index))
            # Whole buffers, which belong to the batch: `nbytes` looks into each array, at 0.1 us a row.
            self._held_bytes += batches[index].get_total_buffer_size()
        if self._held_bytes > self._bound:
            moved = self._moved([held[place] for held, place in self._in_memory])
            for (held, place), mapped in zip(self._in_memory, moved, strict=True):
                held[place] = mapped
            self._in_memory, self._held_bytes = [], 0

    def _moved(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The same batches, in pages of an unlinked file: nothing is left after a kill."""
        try:
            with Scratch(self._scratch).open_file("spill-") as (file, path):
                return _written_and_mapped(file, path, batches)
        except OSError as error:
            raise EnvironmentProblem(
                f"the local disk cannot hold the rows of a batch: {error}",
                next_step=f"make room in {self._scratch}, or set local_root to a larger disk",
            ) from error


def _written_and_mapped(file: BufferedWriter, path: Path, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    with file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(index) for index in range(reader.num_record_batches)]
