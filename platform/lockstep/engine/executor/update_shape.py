"""The updates of a `ColumnFold` as `lockstep-native` reads them from JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import fields

from lockstep.declare.decoders.base import list_members
from lockstep.folds.columns import ColumnNames, TableFields
from lockstep.native import extension

if TYPE_CHECKING:
    from lockstep_native import ColumnTable

FieldShape = tuple[str, str, bool]
"""Name in JSON, type, and whether it is required."""

FIELDS_MAX: Final = 64
"""Fields of an object that the extension takes."""


class UpdateShape(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of updates, for the extension.

    Attributes:
        message: The fields of an update: name, type and whether it is required.
        tag_field: The field that names the type of a message.
        tag: Its value in updates.
        session: The field with the session; None: it is the record's key.
        sequence: The field with the number.
        time: The field with the event time; None without one.
        rows: The field with the rows.
        row: The fields of a row.
        key: The field with its key.
        columns: The fields with its columns.
        message_forbids_unknown: Whether an update may have no other fields.
        row_forbids_unknown: Whether a row may have no other fields.
        message_bytes_max: Larger messages are undecodable.
        emits_unchanged: See `TableFields`.
    """

    message: list[FieldShape]
    tag_field: str
    tag: str
    session: str | None
    sequence: str
    time: str | None
    rows: str
    row: list[FieldShape]
    key: str
    columns: list[str]
    message_forbids_unknown: bool
    row_forbids_unknown: bool
    message_bytes_max: int
    emits_unchanged: bool


def find_table(
    update: type[msgspec.Struct], row: type[msgspec.Struct], places: TableFields, names: ColumnNames, bytes_max: int
) -> Callable[[], ColumnTable] | None:
    """Makes the table of a range; None without the extension, or if it does not support such updates.

    Args:
        update: The type of updates.
        row: The type of their rows.
        places: The fields of a message.
        names: The names of the columns.
        bytes_max: Larger messages are undecodable.
    """
    if extension is None:
        return None
    shape = _find_shape(update, row, places, names, bytes_max)
    if shape is None:
        return None
    return partial(extension.ColumnTable, shape)


def _find_shape(
    update: type[msgspec.Struct], row: type[msgspec.Struct], places: TableFields, names: ColumnNames, bytes_max: int
) -> UpdateShape | None:
    of_update = update.__struct_config__
    of_row = row.__struct_config__
    roles = [places.session, places.sequence, places.event_time_us, places.rows]
    read = [name for name in roles if name is not None]
    message = _list_fields(update, read, rows=places.rows)
    columns = _list_fields(row, [names.key], names.columns)
    is_tagged = isinstance(of_update.tag, str) and of_row.tag is None
    if message is None or columns is None or not is_tagged or len({*read}) < len(read) or names.key in names.columns:
        return None
    tag_field = cast("str", of_update.tag_field)
    in_update = _encoded_names(update)
    in_row = _encoded_names(row)
    return UpdateShape(
        message=[(tag_field, "str", True), *message],
        tag_field=tag_field,
        tag=cast("str", of_update.tag),
        session=in_update.get(cast("str", places.session)),
        sequence=in_update[cast("str", places.sequence)],
        time=in_update.get(cast("str", places.event_time_us)),
        rows=in_update[places.rows],
        row=columns,
        key=in_row[names.key],
        columns=[in_row[name] for name in names.columns],
        message_forbids_unknown=of_update.forbid_unknown_fields,
        row_forbids_unknown=of_row.forbid_unknown_fields,
        message_bytes_max=bytes_max,
        emits_unchanged=places.emits_unchanged,
    )


def _list_fields(
    struct: type[msgspec.Struct], required: Collection[str], left_out: Collection[str] = (), rows: str | None = None
) -> list[FieldShape] | None:
    """The fields of a Struct; None if the extension cannot read a field as msgspec does.

    Args:
        struct: The type.
        required: Those that have to be there.
        left_out: Those that may be left out, and are UNSET then.
        rows: The one that holds rows.
    """
    shapes: list[FieldShape] = []
    for item in fields(struct):
        kind = "str" if item.name == rows else _find_kind(item.type)  # the type of rows is not checked
        is_defaulted = item.name in required or (item.name in left_out and item.default is not UNSET)
        if kind is None or (is_defaulted and not item.required):
            return None
        shapes.append((item.encode_name, kind, item.required))
    if len(shapes) >= FIELDS_MAX:  # one more is the tag
        return None
    return shapes


def _find_kind(declared: Any) -> str | None:
    """The type of a column; None if a field has another type."""
    kinds = [kind for kind in list_members(declared) if kind is not UnsetType]
    if len(kinds) != 1 or kinds[0] not in (str, int, float, bool):
        return None
    return kinds[0].__name__


def _encoded_names(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {item.name: item.encode_name for item in fields(struct)}
