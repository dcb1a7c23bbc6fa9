"""The key of delivered rows, by which a target has the last row of each key, and the type of these rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import msgspec

from lockstep.errors import DeclarationError

if TYPE_CHECKING:
    from lockstep.model.columns import Column

SESSION_COLUMNS: Final = ("_topic", "_topic_id", "_partition", "_session")
"""Columns of the origin that may be part of a key."""
_NO_KEYS: Final = frozenset({"float", "struct", "list", "map"})
"""Kinds of columns that are not compared exactly, or not at all."""


def refuse_removed_without_key(target: str, key: tuple[str, ...], removed: str) -> None:
    """Refuse a field of removals in a target without a key. Raises DeclarationError."""
    if removed and not key:
        problem = "marks removed keys, and the target has no key"
        raise DeclarationError(f"{target}.removed", removed, problem, "key=(...), or no removed")


def check_row_key(target: str, key: tuple[str, ...], removed: str, value: type[msgspec.Struct]) -> None:
    """Refuse a key or a field of removals that rows of a type do not have.

    Args:
        target: Class of the target.
        key: Fields of the row, or columns of the origin.
        removed: The field that is None in the row of a removed key; empty for none.
        value: Type of the delivered rows.

    Raises:
        DeclarationError: Names the field, the value and a valid alternative.
    """
    from lockstep.model.table_schema import make_row_columns  # declarations load without pyarrow

    columns = {column.name: column for column in make_row_columns(value)}
    for name in key:
        _check_key(target, name, columns, value)
    if removed and (removed not in columns or removed in key or not columns[removed].type.nullable):
        problem = f"is not an optional field of {value.__name__} outside of the key"
        raise DeclarationError(f"{target}.removed", removed, problem, "the field that is None for a removed key")


def _check_key(target: str, name: str, columns: dict[str, Column], value: type[msgspec.Struct]) -> None:
    if name in SESSION_COLUMNS:
        return
    if name not in columns:
        right = f"fields of {value.__name__}, or of {', '.join(SESSION_COLUMNS)}"
        raise DeclarationError(f"{target}.key", name, f"is not a field of {value.__name__}", right)
    column = columns[name].type
    # Columns that may be null, or are not compared exactly, identify no row.
    if column.nullable or column.kind.value in _NO_KEYS:
        problem = f"is of the kind {column.kind.value}, which is no key"
        if column.nullable:
            problem = "is optional"
        raise DeclarationError(f"{target}.key", name, problem, "fields of text, integers, decimals or times")


def find_value_type(select: Callable[..., Any] | None, row: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The type of the delivered values: the result of `Delivery.select`, or the row type.

    Raises:
        DeclarationError: The function names no Struct as its result.
    """
    if select is None:
        return row
    try:
        result = get_type_hints(select).get("return")
    except (AttributeError, NameError, SyntaxError, TypeError) as error:  # an annotation without a meaning
        result = error
    if isinstance(result, type) and issubclass(result, msgspec.Struct):
        return result
    right = f"def {select.__name__}(row: {row.__name__}, origin: RowSource) -> Alert, a Struct"
    problem = f"has the result {result}: a table has its columns from it"
    raise DeclarationError("Delivery.select", select.__qualname__, problem, right)
