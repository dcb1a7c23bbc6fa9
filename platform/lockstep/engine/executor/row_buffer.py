"""Encodes rows with provenance as Arrow; spills to disk.

The rows of a file are ordered by partition, while messages of all partitions arrive interleaved, so
rows wait until the last message of the batch. Beyond a bound they are written to a scratch file
and memory-mapped: the same Arrow batches, in pages that the system can drop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from io import BufferedWriter
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep.engine.executor.limits import RowsTooLarge
from lockstep.engine.executor.outcome import BufferFull, StopFold
from lockstep.integrity.base import PartitionTime
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from lockstep.model.record import Envelope
from lockstep.model.row_cause import RowCause
from lockstep.storage import Scratch
from lockstep.table.row_encoder import (
    BATCH_ROWS_MAX,
    VALUE_ERRORS,
    BatchTooLarge,
    PartitionRun,
    Provenance,
    RowRejected,
    RowsBuilder,
)

V = TypeVar("V")

RowsOrigin = tuple[int, str, int | None, int | None, int]
"""Of rows: offset of their message, session, sequence, event time in microseconds, and the offset that was being
processed when they were emitted."""


def make_origin(envelope: Envelope, offset: int, at: int) -> RowsOrigin:
    """The origin of the rows of a message, emitted while the one at `at` was processed."""
    return offset, envelope.session, envelope.sequence, envelope.event_time_us, at


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
    """By place in the chunk, unless it is an update."""


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
        self._offset = offset
        self._rows = rows

    def rows_at(self, offset: int) -> int:
        """Rows of an offset so far, if it is the newest; else none."""
        return self._rows if offset == self._offset else 0

    def next(self, offset: int, rows: int) -> range:
        """The numbers of the next rows of an emit offset."""
        first = self.rows_at(offset)
        self._offset = offset
        self._rows = first + rows
        return range(first, first + rows)


def expand_origins(position: Position, chunk: Chunk, rows: int, numbering: RowNumbering) -> Provenance:
    """Expand one entry per message to one per row; nearly always each message has one row."""
    run = PartitionRun(position.topic, position.topic_id, position.partition, rows)
    emitted = chunk.emit_offsets
    is_immediate = chunk.offsets == emitted
    if is_immediate and not chunk.causes and set(chunk.rows) == {1} and not numbering.rows_at(emitted[0]):
        numbering.next(emitted[-1], 1)
        return Provenance((run,), chunk.offsets, [0] * rows, chunk.sessions, chunk.sequences, chunk.event_times_us)
    numbers = list[int]()
    for offset, count in zip(emitted, chunk.rows, strict=True):
        numbers += numbering.next(offset, count)
    return Provenance(
        (run,),
        _repeated(chunk.offsets, chunk.rows),
        numbers,
        _repeated(chunk.sessions, chunk.rows),
        _repeated(chunk.sequences, chunk.rows),
        _repeated(chunk.event_times_us, chunk.rows),
        None if is_immediate else _repeated(emitted, chunk.rows),
        _list_causes(chunk),
    )


def _list_causes(chunk: Chunk) -> list[RowCause] | None:
    """The cause of each row of a chunk; None if all rows are of updates."""
    if not chunk.causes:
        return None
    causes = [chunk.causes.get(place, RowCause.UPDATE) for place in range(len(chunk.rows))]
    return _repeated(causes, chunk.rows)


def merge_provenance(parts: Sequence[Provenance]) -> Provenance:
    """The provenance of the rows of several ranges, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Provenance(
        _join(part.runs for part in parts),
        _join(part.offsets for part in parts),
        _join(part.row_numbers for part in parts),
        _join(part.sessions for part in parts),
        _join(part.sequences for part in parts),
        _join(part.event_times_us for part in parts),
        _merge_emit_offsets(parts),
        _merge_causes(parts),
    )


def _join(columns: Iterable[Iterable[V]]) -> list[V]:
    """The values of the columns, one column after the other."""
    return list(chain.from_iterable(columns))


def _merge_emit_offsets(parts: Sequence[Provenance]) -> list[int] | None:
    """The emit offsets of the rows of several ranges; None if all rows were emitted at the offset of their message."""
    if all(part.emit_offsets is None for part in parts):
        return None
    return _join(part.emit_offsets or part.offsets for part in parts)


def _merge_causes(parts: Sequence[Provenance]) -> list[RowCause] | None:
    """The causes of the rows of several ranges; None if all rows are of updates."""
    if all(part.causes is None for part in parts):
        return None
    merged = list[RowCause]()
    for part in parts:
        merged += part.causes or [RowCause.UPDATE] * len(part.offsets)
    return merged


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """The value of each message, once for each of its rows."""
    repeated = list[Any]()
    for value, count in zip(values, counts, strict=True):
        repeated += [value] * count
    return repeated


CHUNK_ROWS = BATCH_ROWS_MAX
"""Rows encoded at once."""
ROWS_FULL = "the rows of a task have as many bytes as one batch may have"
"""Why a range ends earlier: see `Tuning.rows_bytes`."""


class RowSpace:
    """Rows of a task: in memory up to a bound, then on the local disk.

    Attributes:
        memory_bytes: Bound of the encoded rows in memory, and of the messages whose rows are not encoded yet.
        rows_bytes: Bound of all rows; then ranges end that have more than their share.
        total_bytes: Bytes of all encoded rows so far.
        kept_bytes: Bytes of the rejected messages of all ranges so far.
    """

    def __init__(self, scratch: Path, *, memory_bytes: int, rows_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.rows_bytes = rows_bytes
        self.total_bytes = self.kept_bytes = 0
        self._scratch = scratch
        self._in_memory: list[tuple[list[pa.RecordBatch], int, int]] = []
        self._held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether all rows have more bytes than they may."""
        return self.total_bytes > self.rows_bytes

    def note(self, batches: list[pa.RecordBatch], size: int) -> None:
        """Record that a range's list has a new record batch of so many bytes; past the bound, spill those in memory.

        Raises:
            OSError: The local disk cannot hold them.
        """
        self._in_memory.append((batches, len(batches) - 1, size))
        self._held_bytes += size
        self.total_bytes += size
        if self._held_bytes > self.memory_bytes:
            self._spill()

    def release(self, batches: list[pa.RecordBatch], size: int) -> None:
        """Discard the record batches of a range, which have so many bytes: it is folded again."""
        # By identity: two ranges may have equal lists of record batches.
        self._in_memory = [entry for entry in self._in_memory if entry[0] is not batches]
        self._held_bytes = sum(size for _, _, size in self._in_memory)
        self.total_bytes -= size
        batches.clear()

    def _spill(self) -> None:
        """Move the record batches in memory to pages of an unlinked file: nothing is left after a kill."""
        in_memory = [batches[place] for batches, place, _ in self._in_memory]
        with Scratch(self._scratch).open_file("spill-") as (file, path):
            moved = _written_and_mapped(file, path, in_memory)
        # Into the lists of the ranges, so that the batches in memory are freed.
        for (batches, place, _), mapped in zip(self._in_memory, moved, strict=True):
            batches[place] = mapped
        self._in_memory = []
        self._held_bytes = 0


class RowRoom(NamedTuple):
    """Room for the rows of one range.

    Attributes:
        space: That of the task.
        share_bytes: The range's share of it: it may have more while the task is not full.
    """

    space: RowSpace
    share_bytes: float


class RowBuffer:
    """The rows of one range.

    The fold appends rows to `rows` and their origins to `proofs`: one entry for each message, in order.

    Attributes:
        batches: Encoded rows.
        rows: Rows not yet encoded.
        proofs: Origins of these rows.
        rows_written: Rows in `batches`.
        event_time_us: Smallest and largest event time so far.
        first: The first row in `rows` of the message or timer that emits.
    """

    def __init__(
        self,
        builder: RowsBuilder,
        position: Position,
        counts: MessageCounts,
        time: PartitionTime | None,
        room: RowRoom | None = None,
    ) -> None:
        """Start a range.

        Args:
            builder: Encodes rows as Arrow.
            position: Start of the range.
            counts: Counts of the range.
            time: The watermark, if nothing depends on it and one update per chunk is enough; else None.
            room: Room for the rows; None without a bound.
        """
        self._room = room
        self._bytes = 0
        self._builder = builder
        self._position = position
        self._counts = counts
        self._time = time
        self._numbering = RowNumbering(position.next_offset, position.rows_emitted)
        self.batches: list[pa.RecordBatch] = []
        self.rows: list[msgspec.Struct] = []
        self.proofs: list[MessageOrigin] = []
        self.rows_written = 0
        self.event_time_us: tuple[int, int] | None = None
        self._extra_origins: set[int] = set()
        self._causes: dict[int, RowCause] = {}
        self._continued = 0
        self._origin: RowsOrigin = -1, "", None, None, -1
        self._emitting: tuple[RowsOrigin | None, int] = None, 0
        self.first = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to flush."""
        return len(self.proofs) >= CHUNK_ROWS or len(self.rows) >= CHUNK_ROWS

    def note_cause(self, cause: RowCause) -> None:
        """Record which hook emits the rows of the next origin; by default it is `on_update`."""
        self._causes[len(self.proofs)] = cause

    def proof_at(self, position: int) -> tuple[MessageOrigin, bool]:
        """Origin of the row at an index of those not yet encoded, and whether no message emitted it."""
        ends = accumulate(rows for _, rows, *_ in self.proofs)
        place = next(number for number, end in enumerate(ends) if position < end)
        return self.proofs[place], place in self._extra_origins

    def rollback_message(self) -> None:
        """Remove the rows of a message that failed."""
        del self.rows[sum(number for _, number, *_ in self.proofs) :]

    def begin(self, origin: RowsOrigin, cause: RowCause | None = None) -> None:
        """Start the rows of a message or a timer; the cause is noted as by `note_cause`."""
        self._origin = origin
        self.first = len(self.rows)
        if cause is not None:
            self.note_cause(cause)

    def emit(self, emitted: Iterable[msgspec.Struct]) -> None:
        """Add rows of the current origin; of rows that arrive one by one a bounded number is in memory.

        Raises:
            RowRejected: A value of a row that was encoded does not fit its column.
            RowsTooLarge: They have more bytes than all rows of a batch may have.
        """
        if type(emitted) is list:  # already in memory as a whole: nothing is gained by parts
            self.rows.extend(emitted)
            return
        rows = self.rows
        append = self.rows.append
        for row in emitted:
            if len(rows) >= CHUNK_ROWS:  # before the next row: a message that fills the chunk is not split
                self._flush_part()
            append(row)

    def retract(self) -> bool:
        """Remove the rows of the current origin; False if a part of them is encoded."""
        if self._emitting[0] == self._origin:
            return False
        del self.rows[self.first :]
        return True

    def flush_part(self, origin: RowsOrigin, first: int) -> int:
        """Encode all rows, although the origin of the last rows emits more.

        Args:
            origin: Their origin.
            first: The first of its rows in `rows`.

        Returns:
            The first of its next rows in `rows`. Raises as `emit` does.
        """
        self._origin = origin
        self.first = first
        self._flush_part()
        return self.first

    def end(self) -> None:
        """End the rows of a message: those not yet encoded have its origin."""
        offset, session, sequence, event_time_us, emit_offset = self._origin
        self.proofs.append((offset, len(self.rows) - self.first, session, sequence, event_time_us, emit_offset))

    def end_extra(self) -> None:
        """End the rows that no accepted message emitted: those of a timer, an idle session, or a late message."""
        if len(self.rows) > self.first:
            self._extra_origins.add(len(self.proofs))
            self.end()
        else:
            self._causes.pop(len(self.proofs), None)

    def _flush_part(self) -> None:
        """Encode all rows, although the origin of the last rows emits more."""
        if self._origin != self._emitting[0]:
            self._emitting = self._origin, self._bytes
        cause = self._causes.get(len(self.proofs))
        if len(self.rows) > self.first:
            self._continued += 1
            self.end()
        else:
            self._causes.pop(len(self.proofs), None)
        self.flush()
        self.first = 0
        if cause is not None:  # the flush has cleared the causes, and more rows of this origin follow
            self.note_cause(cause)
        if self._room is not None and self._bytes - self._emitting[1] > self._room.space.rows_bytes:
            raise RowsTooLarge(f"more than {self._room.space.rows_bytes} bytes")

    def flush_chunk(self, offset: int) -> None:
        """Encode the rows as Arrow, after the message at an offset. Raises as `flush` and `check_room` do."""
        self.flush()
        self.check_room(offset)

    def check_room(self, offset: int) -> None:
        """Call after a flush, if the message at an offset is dealt with completely.

        Raises:
            StopFold: The task has no room for more rows, and the range has its share of it.
        """
        if self.is_over:
            raise StopFold(BufferFull(offset + 1, ROWS_FULL))

    @property
    def is_over(self) -> bool:
        """Whether the task has no room for more rows, and the range has its share of it."""
        room = self._room
        return room is not None and room.space.is_full and self._bytes > room.share_bytes

    def release(self) -> None:
        """Discard all rows: the range is folded again."""
        if self._room is not None:
            self._room.space.release(self.batches, self._bytes)
        self._bytes = 0
        self.rows.clear()

    def flush(self) -> None:
        """Encode the rows as Arrow.

        Raises:
            RowRejected: A value does not fit its column; earlier rows may be in `batches`.
        """
        if self.rows and not self._flush_updates():
            part = self.expand()
            for batch in self._builder.encode(part.rows, part.proof):
                self._keep(batch, batch.get_total_buffer_size())  # whole buffers: `nbytes` costs 0.1 us a row
            self._finish_part(part)
        elif self.proofs:
            self._count(self._chunk())

    def _flush_updates(self) -> bool:
        """Encode the rows by the extension, if all are of updates that have a row each; otherwise change nothing."""
        proofs = self.proofs
        others = self._causes or self._extra_origins or self._continued or len(self.rows) != len(proofs)
        if others or len(proofs) > BATCH_ROWS_MAX or self._numbering.rows_at(proofs[0][0]):
            return False
        position = self._position
        run = PartitionRun(position.topic, position.topic_id, position.partition, len(proofs))
        encoded = self._builder.build_plain(self.rows, run, proofs)
        if encoded is None:
            return False
        self._keep(encoded.batch, encoded.batch.get_total_buffer_size())
        self._numbering.next(proofs[-1][0], 1)
        self._counts.with_rows += len(proofs)
        if encoded.times_us is not None:
            # Only an implausible bound needs the single times.
            self._note_bounds(encoded.times_us, lambda: [time for *_, time, _ in proofs if time is not None])
        self.rows.clear()
        proofs.clear()
        return True

    def _keep(self, batch: pa.RecordBatch, size: int) -> None:
        self.batches.append(batch)
        self.rows_written += batch.num_rows
        self._bytes += size
        if self._room is not None:
            self._room.space.note(self.batches, size)

    def expand(self) -> Expanded:
        """The rows that are not yet encoded, with their provenance; nothing is changed."""
        chunk = self._chunk()
        numbering = copy(self._numbering)  # takes effect only when the rows are encoded
        return Expanded(self.rows, expand_origins(self._position, chunk, len(self.rows), numbering), chunk, numbering)

    def build(self, parts: Sequence[Expanded]) -> pa.RecordBatch:
        """Encode rows of ranges of the same stream as one batch. Raises as `flush` does."""
        rows = _join(part.rows for part in parts)
        return self._builder.build(rows, merge_provenance([part.proof for part in parts]))

    def replace_encoded(self, part: Expanded, batch: pa.RecordBatch, size: int) -> None:
        """Put the batch of so many bytes into the place of the rows of which it was made."""
        self._keep(batch, size)
        self._finish_part(part)

    def _finish_part(self, part: Expanded) -> None:
        self._numbering = part.numbering
        self._count(part.chunk)

    def _chunk(self) -> Chunk:
        offsets, rows, sessions, sequences, times, emits = zip(*self.proofs, strict=True)
        return Chunk(offsets, rows, sessions, sequences, times, emits, self._causes)

    def _count(self, chunk: Chunk) -> None:
        """Count the messages of a chunk, which is done."""
        without_rows = chunk.rows.count(0)
        # An entry without a message is of a timer, or an earlier part of a message that is counted with its last part.
        messages = len(chunk.rows) - len(self._extra_origins) - self._continued
        self._continued = 0
        self._counts.accepted_without_row += without_rows
        self._counts.with_rows += messages - without_rows
        self._counts.timer_rows += len(self._extra_origins)
        self._note_times([time for time in chunk.event_times_us if time is not None])
        self.rows.clear()
        self.proofs.clear()
        self._extra_origins.clear()
        self._causes = {}  # not cleared in place: the chunk refers to the old one

    def append_encoded(self, batch: pa.RecordBatch, last: int, rows: Numbers, times: Numbers | None) -> None:
        """Add the rows of accepted messages that are encoded already, after those not yet encoded.

        Args:
            batch: The rows.
            last: Offset of the last of these messages.
            rows: For each of them the number of its rows.
            times: Their event times, if they have any.

        Raises:
            RowRejected: A value of an earlier row does not fit its column; nothing was added.
        """
        self.flush()
        without_rows = len(rows) - int(np.count_nonzero(rows))
        self._counts.accepted_without_row += without_rows
        self._counts.with_rows += len(rows) - without_rows
        if times is not None:
            self._note_bounds((int(times.min()), int(times.max())), times.tolist)
        self._numbering.next(last, int(rows[-1]))
        if batch.num_rows:
            self._keep(batch, batch.get_total_buffer_size())

    def emitted_at(self, offset: int) -> int:
        """Rows emitted at an offset so far; known for the newest only."""
        return self._numbering.rows_at(offset)

    def _note_bounds(self, bounds: tuple[int, int], list_times: Callable[[], Sequence[int]]) -> None:
        """Note event times by their bounds, unless one of them is implausible."""
        is_plain = self._time is None or not any(map(self._time.is_implausible, bounds))
        self._note_times(bounds if is_plain else list_times())

    def _note_times(self, times: Sequence[int]) -> None:
        if not times:
            return
        low, high = self.event_time_us or (times[0], times[0])
        newest = max(times)
        self.event_time_us = min(low, *times), max(high, newest)
        if self._time is None:
            return
        if self._time.is_implausible(newest):  # a clock far ahead would make all later messages late
            newest = max((time for time in times if not self._time.is_implausible(time)), default=-1)
        self._time.advance(newest)


FEW_ROWS = 50
"""Rows of a range that are encoded together with those of others: a separate batch costs 0.1 ms, however few."""


def encode_few(buffers: Iterable[RowBuffer]) -> None:
    """Encode the last rows of ranges that have only a few, many ranges at once.

    If a value does not fit its column they stay as they are: the `flush` of its range finds it again.
    """
    buffers_with_few = [buffer for buffer in buffers if 0 < len(buffer.rows) <= FEW_ROWS]
    for group in _grouped(buffers_with_few):
        parts = [buffer.expand() for buffer in group]
        try:
            batch = group[0].build(parts)
        except (RowRejected, BatchTooLarge, *VALUE_ERRORS):
            continue  # nothing is changed yet: `flush` of each range raises it with the right message
        _hand_out(batch, group, parts)


def _grouped(buffers: Sequence[RowBuffer]) -> Iterator[list[RowBuffer]]:
    """The ranges in groups of about a chunk's rows."""
    group = list[RowBuffer]()
    rows = 0
    for buffer in buffers:
        group.append(buffer)
        rows += len(buffer.rows)
        if rows >= CHUNK_ROWS:
            yield group
            group = []
            rows = 0
    if group:
        yield group


def _hand_out(batch: pa.RecordBatch, buffers: Sequence[RowBuffer], parts: Sequence[Expanded]) -> None:
    """Give each range its part of the batch that was made from all."""
    start = 0
    row_bytes = batch.get_total_buffer_size() / batch.num_rows
    for buffer, part in zip(buffers, parts, strict=True):
        count = len(part.rows)
        buffer.replace_encoded(part, batch.slice(start, count), int(count * row_bytes))
        start += count


def _written_and_mapped(file: BufferedWriter, path: Path, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    with file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(index) for index in range(reader.num_record_batches)]
