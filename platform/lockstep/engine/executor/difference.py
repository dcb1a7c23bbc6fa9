"""The rows of a replaced table: what differs between the states before and after a snapshot or an end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final, cast

import msgspec

from lockstep.declare.rules import InlineRule, check_rows
from lockstep.declare.transform import Transform
from lockstep.folds.changed_values import is_changed
from lockstep.folds.columns import ColumnFold
from lockstep.folds.table import TableFold
from lockstep.model.map_state import TableState
from lockstep.model.number_keys import make_canonical_key
from lockstep.model.record import Record

Emit = Callable[[object, object, object, object], msgspec.Struct]
"""`TableFold.emit`: from message, key, new and previous value."""

NO_ROWS: Final[Mapping[object, object]] = {}
"""The table of a session that is new, or has ended."""


class Replacement(msgspec.Struct, frozen=True):
    """How a ready fold emits the replacement of a table.

    Attributes:
        difference: Rows of the difference of two tables; from the table before, the new table, the message, and its
            record. Message and record are None if no message replaces the table.
        on_part: Applies one part of a multi-part snapshot, whose rows do not count: the difference is taken once.
        ends_remove: See `TableFold`.
        preserve: Copies a table before `on_snapshot` sees it, if the user's own `on_snapshot` may change it in place.
    """

    difference: Callable[[Any, Any, object, Record | None], Iterable[msgspec.Struct]]
    on_part: Callable[[object, object, Record], object]
    ends_remove: bool
    preserve: Callable[[object], object]


def find_replacement(
    transform: Transform[object, object, msgspec.Struct], rules: tuple[InlineRule, ...]
) -> Replacement | None:
    """The replacement of a transform's tables; None for a fold by hand, which emits its own rows."""
    if not isinstance(transform, TableFold | ColumnFold):
        return None
    emit = cast("Emit", transform.emit)
    kind = type(transform)
    is_own = kind.on_snapshot in {TableFold.on_snapshot, ColumnFold.on_snapshot}
    on_update: Callable[[object, object, Record], Iterator[object]] = cast("Any", transform.on_update)

    def difference(before: Any, after: Any, message: object, record: Record | None) -> Iterator[msgspec.Struct]:
        del record
        return list_difference(emit, NO_ROWS if before is None else before, after, message)

    return Replacement(
        difference=check_rows(rules, difference),
        on_part=lambda state, message, record: deque(on_update(state, message, record), maxlen=0),
        ends_remove=transform.ends_remove,
        preserve=_unchanged if is_own else deepcopy,
    )


def list_difference(
    emit: Emit, before: Mapping[object, object], after: dict[object, object], message: object
) -> Iterator[msgspec.Struct]:
    """Emit a row for each new or changed key, in the order of the new table, then for each removed key.

    An equal value is replaced by the previous value: other spellings of one value (1.0 and 1.00, 0.0 and -0.0)
    would change the state without a row. Removed keys are in the order of their encoded form, and numbers
    have one spelling: a table that was stored by rows has no other.

    Args:
        emit: See `TableFold.emit`.
        before: The table that is replaced.
        after: The new table.
        message: The message that replaces it; None without one.
    """
    if isinstance(before, TableState):
        before = before.read_rows()
    for key, new in after.items():
        previous = before.get(key)
        if previous is None or is_changed(new, previous):
            yield emit(message, key, new, previous)
        elif new is not previous:  # the same value, in another spelling
            after[key] = previous
    removed = {make_canonical_key(key): row for key, row in before.items() if key not in after}
    for key in sorted(removed, key=_ENCODER.encode):
        yield emit(message, key, None, removed[key])


_ENCODER = msgspec.msgpack.Encoder()


def _unchanged(table: object) -> object:
    return table
