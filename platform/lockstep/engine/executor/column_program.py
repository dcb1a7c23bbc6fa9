"""A `ColumnFold` compiled for chunks: whether a stream has a plain case, and how its messages are read there."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType
from msgspec.structs import FieldInfo, fields

from lockstep.declare.decoders.base import Decode, list_members
from lockstep.declare.decoders.plain import Json
from lockstep.declare.stream import AnyStream
from lockstep.engine.executor.update_shape import find_table
from lockstep.folds.columns import ColumnFold, ColumnNames, compile_fields, find_row_type
from lockstep.model.columns import ColumnKind
from lockstep.model.table_schema import make_row_columns

if TYPE_CHECKING:
    from lockstep_native import ColumnTable

ARROW: Final[dict[object, pa.DataType]] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
"""The types of columns that are plain."""


class ColumnProgram(msgspec.Struct, frozen=True):
    """A `ColumnFold` compiled for chunks.

    Attributes:
        decode: Decodes a value; the columns that an update leaves out are None.
        update: The type of updates that `decode` returns.
        session: Reads the session of an update; None: it is the record's key.
        sequence: Reads the number of an update.
        event_time_us: Reads the event time of an update; None without one.
        rows: Reads the rows of an update.
        key: Place of the key in a row of an update.
        columns: For each column its type, and its place in a row of an update.
        value: The type of a row of the state.
        source: See `ColumnNames`.
        schema: Of the record batches.
        emits_unchanged: See `TableFields`.
        message_bytes_max: Larger messages are undecodable.
        messages_min: Messages of a chunk: below, some hundred calls of numpy and Arrow cost more than they save.
        pause_max: Chunks that are not tried after one that was not plain: none, then one, then twice as many each
            time, at most these.
        make_table: Makes the table of a range by `lockstep-native`; None if it is not installed, or does not support
            such messages.
    """

    decode: Decode
    update: type[msgspec.Struct]
    session: Callable[[object], str] | None
    sequence: Callable[[object], int]
    event_time_us: Callable[[object], int] | None
    rows: Callable[[object], list[msgspec.Struct]]
    key: int
    columns: tuple[tuple[type, int], ...]
    value: type[msgspec.Struct]
    source: tuple[int, ...]
    schema: pa.Schema
    emits_unchanged: bool
    message_bytes_max: int
    messages_min: int = 64
    pause_max: int = 64
    make_table: Callable[[], ColumnTable] | None = None


def compile_columns(stream: AnyStream, schema: pa.Schema) -> ColumnProgram | None:
    """The program of a stream; None if its messages cannot be folded in chunks.

    Args:
        stream: The declaration.
        schema: Of its data files.
    """
    transform = stream.transform
    decoder = stream.decoder
    if not isinstance(transform, ColumnFold) or not isinstance(decoder, Json):
        return None
    kind = type(transform)
    names = compile_fields(type(transform))
    places = transform.fields
    is_overridden = kind.envelope is not ColumnFold.envelope or kind.on_update is not ColumnFold.on_update
    if is_overridden or len(names.updates) != 1 or places.sequence is None:
        return None
    update = names.updates[0]
    change = find_row_type(update, places.rows)
    types = {item.name: item.type for item in fields(update)}
    roles = (types.get(places.session or "", str), types[places.sequence], types.get(places.event_time_us or "", int))
    if change is None or roles != (str, int, int):
        return None
    columns = _find_columns(names, change)
    if columns is None or not _are_plain(update, change, names):
        return None
    twin = make_twin(update, {places.rows: list[make_twin(change, {})]})  # type: ignore[misc]  # made at run time
    return ColumnProgram(
        decode=decoder.build(_replace_member(stream.types.message, update, twin)),
        update=twin,
        session=None if places.session is None else attrgetter(places.session),
        sequence=attrgetter(places.sequence),
        event_time_us=None if places.event_time_us is None else attrgetter(places.event_time_us),
        rows=attrgetter(places.rows),
        key=change.__struct_fields__.index(names.key),
        columns=columns,
        value=names.value,
        source=names.source,
        schema=schema,
        emits_unchanged=places.emits_unchanged,
        message_bytes_max=stream.limits.message_bytes,
        make_table=find_table(update, change, places, names, stream.limits.message_bytes),
    )


def _replace_member(message: object, member: type[msgspec.Struct], twin: type[msgspec.Struct]) -> Any:
    """A message type with another type in the place of one of its members."""
    union: Any = twin
    for other in list_members(message):
        if other is not member:
            union |= other
    return union


def make_twin(struct: type[msgspec.Struct], replaced: dict[str, Any]) -> type[msgspec.Struct]:
    """A type that is decoded alike from JSON, with a value that JSON lacks for an omitted field: None, or NaN."""
    twin = [(item.name, replaced.get(item.name, item.type), _make_default(item)) for item in fields(struct)]
    declared = struct.__struct_config__
    return msgspec.defstruct(
        struct.__name__,
        twin,
        frozen=True,
        gc=False,
        kw_only=True,
        tag=declared.tag,
        tag_field=declared.tag_field,
        forbid_unknown_fields=declared.forbid_unknown_fields,
        rename={item.name: item.encode_name for item in fields(struct)},
    )


def _make_default(item: FieldInfo) -> Any:
    """The default of a field in a twin."""
    if item.default is UNSET:  # JSON has no NaN, and arrays of floats take it without a mask
        return math.nan if _is_float(item.type) else None
    if item.default is not msgspec.NODEFAULT:
        return item.default
    if item.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=item.default_factory)
    return msgspec.field()


def _is_nan(default: object) -> bool:
    """Whether it is the value that marks an omitted column."""
    return isinstance(default, float) and math.isnan(default)


def _is_float(kind: object) -> bool:
    return float in list_members(kind)


def _are_plain(update: type[msgspec.Struct], change: type[msgspec.Struct], names: ColumnNames) -> bool:
    """Whether an update, its rows, the state's rows and the emitted ones are their fields, and nothing more."""
    if any(hasattr(struct, "__post_init__") for struct in (update, change, names.value, names.row)):
        return False
    if any(struct.__struct_config__.array_like for struct in (update, change)):
        return False
    return names.value.__struct_config__.eq and names.value.__eq__ is msgspec.Struct.__eq__


def _find_columns(names: ColumnNames, change: type[msgspec.Struct]) -> tuple[tuple[type, int], ...] | None:
    """Type and place of each column; None if one is not plain."""
    changed = {item.name: item.type for item in fields(change)}
    of_value = {item.name: item.type for item in fields(names.value)}
    defaults = {item.name: item.default for item in fields(change)}
    if changed[names.key] not in {str, int}:
        return None
    for name in names.columns:
        kind = of_value[name]
        if kind not in ARROW or changed[name] not in {kind, kind | UnsetType} or _is_nan(defaults[name]):
            return None
    values = [of_value[name] for name in names.columns]
    kinds = [changed[names.key], *values, *values]  # the key; the columns after a change; those before it
    for source, column in zip(names.source, make_row_columns(names.row), strict=True):
        if column.type.kind is ColumnKind.ENUM or column.type.arrow != ARROW[kinds[source]]:
            return None
    return tuple((of_value[name], change.__struct_fields__.index(name)) for name in names.columns)
