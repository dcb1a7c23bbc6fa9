"""Keeps the memory of a long batch bounded: rows that wait for their file move to the local disk.

The rows of a file are in order of partitions, while messages come from all partitions at once, so
rows wait until the last message of the batch. Beyond a bound they are written to a scratch file
and mapped back: the same Arrow batches, in pages that the system can drop.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa

from lockstep.errors import EnvironmentProblem

SPILL_BYTES = 64_000_000
"""Some 400,000 rows of 160 bytes: more than a batch of seconds holds, less than a worker notices."""


class Spill:
    """Watches the waiting rows of a task."""

    def __init__(self, scratch: Path, *, bound_bytes: int = SPILL_BYTES) -> None:
        self._scratch, self._bound = scratch, bound_bytes
        self._in_memory: list[tuple[list[pa.RecordBatch], int]] = []
        self._held_bytes = 0

    def note(self, batches: list[pa.RecordBatch], before: int) -> None:
        """Note that a range's list of batches grew from `before`; past the bound, move what is in memory.

        Raises:
            EnvironmentProblem: The local disk takes no more.
        """
        for index in range(before, len(batches)):
            self._in_memory.append((batches, index))
            # Whole buffers, which are the batch's own: `nbytes` looks into each array, at 0.1 us a row.
            self._held_bytes += batches[index].get_total_buffer_size()
        if self._held_bytes > self._bound:
            moved = self._moved([held[place] for held, place in self._in_memory])
            for (held, place), mapped in zip(self._in_memory, moved, strict=True):
                held[place] = mapped
            self._in_memory, self._held_bytes = [], 0

    def _moved(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The same batches, in pages of a file that has no name any more: nothing is left after a kill."""
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=self._scratch, prefix="spill-")
            try:
                return _written_and_mapped(number, name, batches)
            finally:
                Path(name).unlink()
        except OSError as error:
            raise EnvironmentProblem(
                f"the local disk cannot hold the rows of a batch: {error}",
                next_step=f"make room in {self._scratch}, or set local_root to a larger disk",
            ) from error


def _written_and_mapped(number: int, name: str, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    with os.fdopen(number, "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with pa.memory_map(name) as source:
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(index) for index in range(reader.num_record_batches)]
