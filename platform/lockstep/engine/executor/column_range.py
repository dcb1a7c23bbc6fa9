"""What both ways to fold a chunk share: the range, the states of its sessions, and the record batches of its rows."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep.engine.executor.column_program import ColumnProgram
from lockstep.engine.executor.rejects import Message
from lockstep.engine.executor.row_buffer import RowBuffer
from lockstep.engine.executor.sessions import Sessions
from lockstep.model.position import Position
from lockstep.model.readable_times import EARLIEST_US, LATEST_US
from lockstep.model.table_schema import TIMESTAMP
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState
from lockstep.table.row_encoder import make_causes

Words = npt.NDArray[np.int64]
Pair = tuple[str, object]
"""Session and key of a row."""

NOT_PLAIN: Final = (ValueError, TypeError, OverflowError, LookupError, RecursionError, struct.error, pa.ArrowException)
"""Raised by messages and values that are not plain; the general fold finds the reason and its meaning."""


class PlainChunks(Protocol):
    """Folds the plain chunks of one range."""

    def fold(self, messages: Sequence[Message]) -> bool:
        """Fold messages, if all are plain; returns whether they were. Otherwise nothing has changed."""

    def write_back(self) -> None:
        """Return the changed rows to the states of their sessions, and forget all."""


class ChunkProvenance(msgspec.Struct, frozen=True):
    """The provenance of the rows of a chunk.

    Attributes:
        offsets: Of each message.
        numbers: Of each message the producer's.
        times: Of each message the event time; None without.
        sessions: Of each row.
        message: For each row the place of its message; None: each message has one row.
        rows: Of each message the number of its rows.
    """

    offsets: Words
    numbers: Words
    times: Words | None
    sessions: pa.Array[Any]
    message: Words | None
    rows: Words


class ColumnRange:
    """One range of a `ColumnFold`.

    Attributes:
        program: The fold.
        state: The states of its partition.
        sessions: Its sessions.
        emission: Its rows.
    """

    def __init__(
        self,
        program: ColumnProgram,
        position: Position,
        state: PartitionState[object],
        sessions: Sessions,
        emission: RowBuffer,
    ) -> None:
        self.program = program
        self.state = state
        self.sessions = sessions
        self.emission = emission
        self._constants = (
            pa.scalar(position.topic, pa.string()),
            pa.scalar(position.topic_id, pa.string()),
            pa.scalar(position.partition, pa.int32()),
        )

    def find_entries(self, names: Sequence[str]) -> list[SessionEntry[object]] | None:
        """The states of sessions; None if a session has not started."""
        entries = self.state.entries
        loaded = [entries.get(session) or self.sessions.load(session) for session in names]
        if any(entry is None or type(entry.gate) is not int for entry in loaded):  # not started
            return None
        if not entries.keys() >= set(names):  # one session evicted another
            return None
        return cast("list[SessionEntry[object]]", loaded)

    def find_rows(self, pairs: Sequence[Pair]) -> list[msgspec.Struct]:
        """Rows as they are in the states. Raises KeyError if a session has no such row."""
        states = self._tables(session for session, _ in pairs)
        return [states[session][key] for session, key in pairs]

    def put_rows(self, rows: Iterable[tuple[str, object, Iterable[object]]]) -> None:
        """Put rows, as session, key and columns, into the states."""
        make = cast("Any", self.program.value)
        changed = list(rows)
        states = self._tables(session for session, _, _ in changed)
        for session, key, values in changed:
            states[session][key] = make(*values)

    def build(self, columns: Sequence[pa.Array[Any]], proof: ChunkProvenance) -> pa.RecordBatch:
        """The record batch of a chunk, of the fold's own columns and the provenance of its rows."""
        offsets = proof.offsets
        numbers = proof.numbers
        times = proof.times
        message = proof.message
        rows = proof.rows
        number = np.zeros(len(rows), np.int32)
        if message is not None:
            first_row = np.cumsum(rows) - rows  # of each message
            number = (np.arange(len(message)) - first_row[message]).astype(np.int32)
            offsets = offsets[message]
            numbers = numbers[message]
            times = None if times is None else times[message]
        size = len(number)
        offset = pa.array(offsets)
        proven = [
            *(pa.repeat(cast("Any", constant), size) for constant in self._constants),
            offset,
            offset,
            pa.array(number),
            proof.sessions,
            pa.array(numbers),
            pa.nulls(size, TIMESTAMP) if times is None else pa.array(times).view(TIMESTAMP),
            make_causes(None, size),
        ]
        return pa.RecordBatch.from_arrays([*columns, *proven], schema=self.program.schema)

    def append(
        self,
        batch: pa.RecordBatch,
        proof: ChunkProvenance,
        entries: Sequence[SessionEntry[object]],
        newest: Sequence[int],
    ) -> None:
        """Emit a batch, and keep the newest number of each session. Raises as `RowBuffer.append_encoded` does."""
        self.emission.append_encoded(batch, int(proof.offsets[-1]), proof.rows, proof.times)
        for entry, number in zip(entries, newest, strict=True):
            entry.gate = number

    def _tables(self, sessions: Iterable[str]) -> dict[str, dict[object, msgspec.Struct]]:
        return {name: cast("Any", self.state.entries[name].state) for name in dict.fromkeys(sessions)}


def has_readable_times(times: Words) -> bool:
    """Whether readers can return all of these event times."""
    return not len(times) or bool(times.min() >= EARLIEST_US and times.max() <= LATEST_US)


def find_offsets(messages: Sequence[Message]) -> Words:
    """The offsets of messages, which rise."""
    first = cast("int", messages[0].offset())
    last = cast("int", messages[-1].offset())
    if last - first == len(messages) - 1:
        return np.arange(first, last + 1)
    return pack([cast("int", message.offset()) for message in messages])


def pack(numbers: Sequence[int]) -> Words:
    """Integers as words: a third of the cost of `np.array`. Raises struct.error for an integer of more than 64 bits."""
    return np.frombuffer(struct.pack(f"{len(numbers)}q", *numbers), np.int64)
