"""Plain chunks by `lockstep-native`, an extension in Rust (native/): without an object a message.

Optional: without it `columnar_numpy` does the same. docs/decisions/0048-an-optional-extension-in-rust.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import astuple
from typing_extensions import override

from lockstep.engine.executor.column_range import (
    NOT_PLAIN,
    ChunkProvenance,
    ColumnRange,
    PlainChunks,
    find_offsets,
    has_readable_times,
)
from lockstep.engine.executor.rejects import Message
from lockstep.integrity.sequence_numbers import LARGEST
from lockstep.native import make_array
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.table.row_encoder import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from lockstep_native import ColumnTable


class NativeChunks(PlainChunks):
    """The plain chunks of one range, by a table of the extension."""

    def __init__(self, of_range: ColumnRange, table: ColumnTable) -> None:
        self._range = of_range
        self._table = table
        program = of_range.program
        self._types = [program.schema.field(n).type for n in range(len(program.source))] + [pa.string()]

    @override
    def write_back(self) -> None:
        self._range.put_rows(self._table.take_changed())

    @override
    def fold(self, messages: Sequence[Message]) -> bool:
        table = self._table
        program = self._range.program
        try:
            entries = self._read(messages)
            if entries is None:
                return False
            newest = table.follow([cast("int", entry.gate) for entry in entries], LARGEST)
            if newest is None:  # the numbers of a session are not consecutive
                return False
            times = None if program.event_time_us is None else np.frombuffer(table.times(), np.int64)
            if times is not None and not has_readable_times(times):
                return False
            if missing := table.missing():
                table.add([astuple(row) for row in self._range.find_rows(missing)])
        except NOT_PLAIN:
            return False
        self._range.emission.flush()  # its error does not concern this chunk, which has changed nothing yet
        try:
            encoded, counts = table.change(program.source, BATCH_BYTES_MAX)
        except NOT_PLAIN:
            return False
        rows = np.frombuffer(counts, np.int64)
        size = int(rows.sum())
        arrays = [make_array(kind, size, buffers) for kind, buffers in zip(self._types, encoded, strict=True)]
        *columns, sessions = arrays
        message = None  # each message has one row
        if size != len(rows) or not rows.all():
            message = np.repeat(np.arange(len(rows)), rows)
        proof = ChunkProvenance(
            offsets=find_offsets(messages),
            numbers=np.frombuffer(table.sequences(), np.int64),
            times=times,
            sessions=sessions,
            message=message,
            rows=rows,
        )
        self._range.append(self._range.build(columns, proof), proof, entries, newest)
        return True

    def _read(self, messages: Sequence[Message]) -> list[SessionEntry[object]] | None:
        """Read messages into the table. Returns the states of their sessions; None if a message is not plain."""
        kind = type(messages[0])
        keys: list[bytes | None] | None = None
        if self._range.program.session is None:
            keys = list(map(kind.key, messages))
        names = self._table.read(list(map(kind.value, messages)), keys)
        if names is None or self._range.emission.emitted_at(cast("int", messages[0].offset())):
            return None  # or its offset has rows before its own
        return self._range.find_entries(names)
