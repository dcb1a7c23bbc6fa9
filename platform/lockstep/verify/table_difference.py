"""The rows that a ready fold owes for a replaced table, by docs/add-a-stream.md and not by the engine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

import msgspec

from lockstep.declare.transform import Transform
from lockstep.verify.inline_rules import InlineRules

AnyTransform = Transform[Any, Any, Any]
Table = dict[Any, Any]
"""The state of a ready fold."""
READY_FOLDS = ("TableFold", "ColumnFold")
"""By name: the proof shares no code with them."""


class TableDifference(msgspec.Struct, frozen=True):
    """The difference between two tables of a session, as rows.

    Attributes:
        emit: `TableFold.emit`, from message, key, new and previous value.
        rules: The rules that each row must keep.
        ends_remove: Whether the end of a session removes its keys.
        is_shared: The user's `on_snapshot` may change the previous table in place.
    """

    emit: Callable[[Any, Any, Any, Any], msgspec.Struct]
    rules: InlineRules
    ends_remove: bool
    is_shared: bool

    def copied(self, table: object) -> object:
        """The table as it is before `on_snapshot`."""
        if self.is_shared:
            # The fold's own `on_snapshot` may change the previous table in place.
            return copy.deepcopy(table)
        return table

    def list_rows(self, before: object, after: object, message: object) -> list[msgspec.Struct]:
        """List the rows of a replacement; an unchanged value of the new table is replaced by the previous value.

        Args:
            before: The table that is replaced; None without one.
            after: The new table; None at the end of a session.
            message: The message that replaces it; None without one.
        """
        old = cast("Table", before or {})
        new = cast("Table", after or {})
        rows: list[msgspec.Struct] = []
        for key, value in new.items():
            previous = old.get(key)
            if previous is not None and (previous == value or _is_stored_alike(previous, value)):
                # An equal value may be written otherwise, as 1.0 and 1.00: the stored one stays.
                new[key] = previous
            else:
                rows.append(self.emit(message, key, value, previous))
        removed = {_spell(key): old[key] for key in old.keys() - new.keys()}
        # Sorted by their stored form: the order of a dict is not that of the engine's table.
        rows += [self.emit(message, key, None, removed[key]) for key in sorted(removed, key=msgspec.msgpack.encode)]
        return self.rules.check(rows)


def find_table_difference(transform: AnyTransform, rules: InlineRules) -> TableDifference | None:
    """The difference of a ready fold; None for a fold by hand, which emits its own rows."""
    base: Any = next((each for each in type(transform).__mro__ if _is_ready(each)), None)
    if base is None:
        return None
    fold: Any = transform
    is_shared = type(fold).on_snapshot is not base.on_snapshot
    return TableDifference(fold.emit, rules, fold.ends_remove, is_shared)


def _is_ready(base: type) -> bool:
    return base.__name__ in READY_FOLDS and base.__module__.startswith("lockstep.folds.")


def _spell(key: object) -> object:
    """The one spelling of a removed key: a decimal without zeros at the end of its fraction, in up to 40 digits."""
    if isinstance(key, tuple):
        return tuple(map(_spell, key))
    if isinstance(key, Decimal) and key.is_finite():
        mantissa, _, exponent = f"{key:e}".lower().partition("e")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        short = Decimal(0)
        if key:
            short = Decimal(f"{mantissa}e{exponent}")
        if 0 <= short.adjusted() < SPELLED_DIGITS:
            return Decimal(f"{short:f}")
        return short
    return 0.0 if type(key) is float and key == 0 else key


SPELLED_DIGITS = 40


def _is_stored_alike(old: object, new: object) -> bool:
    """Whether two values that are not equal are the same in a stored state: NaN is stored as NaN."""
    try:
        return msgspec.msgpack.encode(old) == msgspec.msgpack.encode(new)
    except (TypeError, ValueError, OverflowError):
        return False  # a value that no state can hold
