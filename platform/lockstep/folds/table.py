"""TableFold: the state is a table of rows; snapshots set it, updates change rows of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

from typing_extensions import override

from lockstep.declare.transform import M, R, Transform
from lockstep.errors import DeclarationError
from lockstep.folds.changed_values import find_change_test
from lockstep.folds.removals import add_absent
from lockstep.folds.stored_table import find_stored_type
from lockstep.model.record import Record

K = TypeVar("K")
V = TypeVar("V")


class TableFold(Transform[M, dict[K, V], R], Generic[M, K, V, R]):
    """Keeps a table of rows V by key K per session, and emits one row R for each changed row.

    A user defines `envelope`, `changes` and `emit`, and names the columns of the key (`key`) and of removals
    (`removed`); for updates that carry only some columns of a row also `merge`. A row that stays the same emits
    nothing.

    A snapshot emits its difference to the table that it replaces: a row for each new or changed key, in the order of
    the message, then a row for each removed key, in the order of the encoded keys. The end of a session removes all
    keys.

    Attributes:
        key: Fields of R that spell K, in its order: `key = ("side", "price")` for a `tuple[str, Decimal]`.
        removed: Field of R that is null exactly in the row of a removed key.
        ends_remove: Whether the end of a session emits a row for each of its keys. Without these rows the table does
            not show which sessions have ended.
    """

    ends_remove: ClassVar[bool] = True

    @abstractmethod
    def changes(self, message: M) -> Iterable[tuple[K, V | None]]:
        """The rows of a message as (key, new row), in order; None removes a row. The last row of a key counts.

        A number that a producer sends as text becomes a key by `DecimalType.canonical`: "1.0" and "1.00" are two keys.
        The removal of an absent key changes nothing; the ledger counts it (`absent_removals`).
        """

    @abstractmethod
    def emit(self, message: M | None, key: K, new: V | None, previous: V | None) -> R:
        """The output row of one changed row; `previous` is None if it is new, `new` if it is removed.

        `message` is None if the session ended by its idle timeout.
        """

    def merge(self, previous: V | None, change: V) -> V:
        """The new row from the previous row and the update; by default the update.

        Returns a new row (or `previous` itself, when nothing changes) and never changes `previous` in place.
        """
        del previous
        return change

    def on_snapshot(self, message: M, record: Record, previous: dict[K, V] | None) -> dict[K, V]:
        """Set the table from a snapshot. lockstep emits the difference to the previous table."""
        del record, previous
        table: dict[K, V] = {}
        for key, row in self.changes(message):
            if row is None:
                table.pop(key, None)
            else:
                table[key] = self.merge(None, row)
        return table

    def on_update(self, state: dict[K, V], message: M, record: Record) -> Iterable[R]:
        """Change the table and emit the changed rows."""
        del record
        emitted = list[R]()
        absent = 0
        is_changed = find_change_test(type(self))
        for key, change in self.changes(message):
            previous = state.get(key)
            if change is None:
                if state.pop(key, None) is not None:
                    emitted.append(self.emit(message, key, None, previous))
                else:
                    absent += 1
                continue
            new = self.merge(previous, change)
            if is_changed(new, previous):
                state[key] = new
                emitted.append(self.emit(message, key, new, previous))
        if absent:
            add_absent(absent)
        return emitted

    @override
    @classmethod
    def find_stored_type(cls, state: object) -> object:
        """A table that is stored row by row, unless a class overrides a hook that sees all of it."""
        return find_stored_type(cls, TableFold, state)

    @override
    def replay_columns(self) -> tuple[tuple[str, ...], str] | None:
        """`key` and `removed`; None if `key` is empty.

        Raises:
            DeclarationError: One of them is not set.
        """
        if type(self).key is None:
            problem = "is not set"
            instead = 'key = ("name",), the fields of the row that spell the key of the state'
            raise DeclarationError(f"{type(self).__name__}.key", None, problem, instead)
        return super().replay_columns()
