"""A `ColumnFold` compiled for chunks: whether a stream has a plain case, and how its messages are read there."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType
from msgspec.structs import fields

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
    taken = any(getattr(kind, hook) is not getattr(ColumnFold, hook) for hook in ("envelope", "on_update"))
    if taken or len(names.updates) != 1 or places.sequence is None:
        return None
    update = names.updates[0]
    change = find_row_type(update, places.rows)
    types = {each.name: each.type for each in fields(update)}
    columns = None if change is None else _find_columns(names, change)
    plain = (types.get(places.session or "", str), types[places.sequence], types.get(places.event_time_us or "", int))
    if change is None or columns is None or plain != (str, int, int) or not _are_plain(update, change, names):
        return None
    twin = make_twin(update, {places.rows: list[make_twin(change, {})]})  # type: ignore[misc]  # made at run time
    others = [each for each in list_members(stream.types.message) if each is not update]
    message: Any = twin
    for each in others:
        message |= each
    return ColumnProgram(
        decode=decoder.build(message),
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


def make_twin(struct: type[msgspec.Struct], replaced: dict[str, Any]) -> type[msgspec.Struct]:
    """A type that is decoded alike from JSON, with a value that JSON lacks for an omitted field: None, or NaN."""
    twin: list[tuple[str, Any, Any]] = []
    for each in fields(struct):
        default = msgspec.field(default_factory=each.default_factory) if each.default is msgspec.NODEFAULT else None
        if each.default is not msgspec.NODEFAULT:
            default = each.default if each.default is not UNSET else math.nan if _is_float(each.type) else None
        elif each.default_factory is msgspec.NODEFAULT:
            default = msgspec.field()
        twin.append((each.name, replaced.get(each.name, each.type), default))
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
        rename={each.name: each.encode_name for each in fields(struct)},
    )


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
    changed = {each.name: each.type for each in fields(change)}
    of_value = {each.name: each.type for each in fields(names.value)}
    defaults = {each.name: each.default for each in fields(change)}
    if changed[names.key] not in {str, int}:
        return None
    for name in names.columns:
        kind = of_value[name]
        if kind not in ARROW or changed[name] not in {kind, kind | UnsetType} or _is_nan(defaults[name]):
            return None
    kinds = [changed[names.key], *(2 * [of_value[name] for name in names.columns])]
    for at, column in zip(names.source, make_row_columns(names.row), strict=True):
        if column.type.kind is ColumnKind.ENUM or column.type.arrow != ARROW[kinds[at]]:
            return None
    return tuple((of_value[name], change.__struct_fields__.index(name)) for name in names.columns)
