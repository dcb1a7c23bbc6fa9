"""Rows of the table as the structs of the stream, with their origins."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from lockstep.declare.delivery_target import RowSource
from lockstep.errors import TableError
from lockstep.features.delivery.steps import PlacedRows
from lockstep.model.columns import Column
from lockstep.model.decoding import decode_value
from lockstep.model.table_schema import make_row_columns

_ORIGIN = ("_topic", "_offset", "_emit_offset", "_row", "_session", "_sequence", "_event_time", "_cause")


class RowDecoder:
    """Decodes the rows of one stream."""

    def __init__(self, row_type: type[msgspec.Struct]) -> None:
        self._kind = row_type
        fields = {field.name: field for field in msgspec.structs.fields(row_type)}
        columns = make_row_columns(row_type)
        self._names = [column.name for column in columns]
        self._encoded = {name: field.encode_name for name, field in fields.items()}
        self._defaulted = frozenset(
            column.name for column in columns if not column.field().nullable and not fields[column.name].required
        )
        self._plain = columns if _is_plain(row_type, self._names) else None

    def decode(self, placed: PlacedRows) -> tuple[Sequence[msgspec.Struct], Sequence[RowSource]]:
        """Decode rows of one partition and batch.

        A column that was added to the table later is null in earlier rows: the field has its default then.

        Raises:
            TableError: A row is not of the row type.
        """
        if self._plain is not None and all(_has_values(placed.rows[each.name], each) for each in self._plain):
            values = (placed.rows[name].to_pylist() for name in self._names)
            return list(map(self._kind, *values)), _make_origins(placed)
        columns = [self._read_column(placed.rows, name) for name in self._names]
        names = [self._encoded[name] for name in self._names]
        plain = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        if self._defaulted:
            plain = [_drop_absent(row) for row in plain]
        try:
            rows = decode_value(plain, list[self._kind])  # type: ignore[name-defined]  # a type that is given
        except msgspec.ValidationError as error:
            key = placed.range.key
            place = f"topic id {key.topic_id}, partition {key.partition}, emit offset {placed.first.emit_offset}"
            problem = f"rows from {place} on are no {self._kind.__name__}: {error}"
            raise TableError(problem, next_step="declare the row type with which the table was written") from error
        return rows, _make_origins(placed)

    def _read_column(self, rows: pa.Table, name: str) -> list[object]:
        column = rows[name]
        # Asked for maps, Arrow makes each value by itself: 0.7 us instead of 0.05 us.
        values = column.to_pylist(maps_as_pydicts="strict") if pa.types.is_nested(column.type) else column.to_pylist()
        return [_ABSENT if value is None else value for value in values] if name in self._defaulted else values


_SCALARS: Any = (bool, bytes, date, datetime, Decimal, float, int, str)
_PLAIN = (*_SCALARS, *(each | None for each in _SCALARS))
_ABSENT: Any = object()


def _is_plain(row_type: type[msgspec.Struct], names: Sequence[str]) -> bool:
    """Whether Arrow's values are those of the fields, so that a row can be made without its validation."""
    parameters = inspect.signature(row_type).parameters.values()
    given = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    types = [field.type for field in msgspec.structs.fields(row_type)]
    is_plain = all(each in _PLAIN for each in types)
    return is_plain and given == list(names) and not hasattr(row_type, "__post_init__")


def _has_values(values: pa.ChunkedArray[Any], column: Column) -> bool:
    """Whether a column has the declared type, and no null that its field cannot have."""
    return values.type == column.type.arrow and (column.type.nullable or not values.null_count)


def _drop_absent(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not _ABSENT}


def _make_origins(placed: PlacedRows) -> list[RowSource]:
    key = placed.range.key
    batch = placed.range.batch
    generation = placed.range.generation
    columns = (placed.rows[name].to_pylist() for name in _ORIGIN)
    return [
        RowSource(
            topic=topic,
            topic_id=key.topic_id,
            partition=key.partition,
            offset=offset,
            emit_offset=emit_offset,
            row=row,
            session=session,
            sequence=sequence,
            event_time=event_time,
            cause=cause,
            batch=batch,
            generation=generation,
        )
        for topic, offset, emit_offset, row, session, sequence, event_time, cause in zip(*columns, strict=True)
    ]
