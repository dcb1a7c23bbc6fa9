"""Folds a chunk of messages of a `ColumnFold` together.

The result of a chunk is computed before anything is changed. Outside the plain case (numbered updates, in
order, of rows that exist), nothing has changed, and the fold takes the chunk message by message: one meaning, and all
verdicts from one place. There are two implementations of the plain case, `columnar_native` and `columnar_numpy`.

Measured: docs/decisions/0029-ready-folds-take-a-chunk-at-once.md, 0048-an-optional-extension-in-rust.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.engine.executor.column_range import ColumnRange, PlainChunks
from lockstep.engine.executor.columnar_native import NativeChunks
from lockstep.engine.executor.columnar_numpy import NumpyChunks
from lockstep.engine.executor.rejects import Message
from lockstep.integrity.strict import Sequence as Numbers


class ChunkFold:
    """The chunks of one range.

    Attributes:
        folded: Number of chunks that were plain.
    """

    def __init__(self, of_range: ColumnRange) -> None:
        self._program = of_range.program
        self._sessions = of_range.sessions
        self._plain = _make_chunks(of_range)
        self._pause = 0
        self._next_pause = 0
        self.folded = 0
        of_range.state.write_back = self.write_back

    def write_back(self) -> None:
        """Bring the states of the sessions up to date: before anybody else reads them."""
        self._plain.write_back()

    def fold(self, messages: Sequence[Message]) -> bool:
        """Fold messages, if all are plain.

        Returns:
            Whether they were. Otherwise nothing has changed, and the states of the sessions are up to date.
        """
        if self._pause == 0 and len(messages) >= self._program.messages_min:
            if self._is_numbered() and self._plain.fold(messages):
                self._next_pause = 0
                self.folded += 1
                return True
            # Chunks that are not plain are seldom alone, and each attempt costs: twice as long a pause each time.
            self._pause = self._next_pause
            self._next_pause = min(self._program.pause_max, 2 * self._next_pause or 1)
        else:
            self._pause = max(0, self._pause - 1)
        self.write_back()
        return False

    def _is_numbered(self) -> bool:
        gate = self._sessions.gate
        return type(gate) is Numbers and gate.wraps_at is None


def _make_chunks(of_range: ColumnRange) -> PlainChunks:
    make_table = of_range.program.make_table
    if make_table is None:
        return NumpyChunks(of_range)
    return NativeChunks(of_range, make_table())
