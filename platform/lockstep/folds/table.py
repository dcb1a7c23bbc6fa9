"""TableFold: the state is a table of rows; snapshots set it, updates change rows of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from lockstep.declare.transform import M, R, Transform
from lockstep.model.record import Record

K = TypeVar("K")
V = TypeVar("V")


class TableFold(Transform[M, dict[K, V], R], Generic[M, K, V, R]):
    """Keeps a table of rows V by key K per session, and emits one row R for each changed row.

    A user defines the envelope (`envelope`), the rows of a message (`changes`) and the output row
    (`emit`). For updates that carry only some columns of a row, also define `merge`. An update that
    leaves a row unchanged emits nothing for it; neither does a snapshot, which sets the table.
    """

    @abstractmethod
    def changes(self, message: M) -> Iterable[tuple[K, V | None]]:
        """The rows of a message as (key, new row), in order; None removes a row."""

    @abstractmethod
    def emit(self, message: M, key: K, new: V | None, previous: V | None) -> R:
        """The output row of one changed row; `previous` is None when it is new, `new` when removed."""

    def merge(self, previous: V | None, change: V) -> V:
        """The new row from the previous one and the update; by default the update.

        Returns a new row (or `previous` itself, when nothing changes) and never changes `previous`:
        a row changed in place would look unchanged and emit nothing.
        """
        del previous
        return change

    def on_snapshot(self, message: M, record: Record) -> dict[K, V]:
        """Set the table from a snapshot."""
        del record
        return {key: self.merge(None, row) for key, row in self.changes(message) if row is not None}

    def on_update(self, state: dict[K, V], message: M, record: Record) -> Iterable[R]:
        """Change the table and emit the changed rows."""
        del record
        emitted: list[R] = []
        for key, change in self.changes(message):
            previous = state.get(key)
            if change is None:
                if state.pop(key, None) is not None:
                    emitted.append(self.emit(message, key, None, previous))
                continue
            new = self.merge(previous, change)
            if new != previous:
                state[key] = new
                emitted.append(self.emit(message, key, new, previous))
        return emitted
