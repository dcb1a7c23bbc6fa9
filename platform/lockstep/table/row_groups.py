"""Slices of rows as row groups of even size, with the columns of one schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa


def regroup_rows(slices: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `rows` rows, except the last."""
    pieces: list[pa.Table] = []
    count = 0
    for piece in slices:
        while count + len(piece) >= rows:
            cut = rows - count
            yield pa.concat_tables([*pieces, piece.slice(0, cut)])
            pieces = []
            count = 0
            piece = piece.slice(cut)  # noqa: PLW2901  # its rest
        if len(piece):
            pieces.append(piece)
            count += len(piece)
    if pieces:
        yield pa.concat_tables(pieces)


def _carry_dictionaries(rows: pa.Table) -> pa.Table:
    """A table without rows: rows that are joined to it get dictionaries that start with those of these rows."""
    columns = list[Any]()
    for column in rows.columns:
        # A large dictionary would be in each later run of rows.
        if _has_large_dictionary(column):
            columns.append(pa.chunked_array([], column.type))
        else:
            columns.append(column.slice(0, 0))
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _has_large_dictionary(column: Any) -> bool:
    return pa.types.is_dictionary(column.type) and column.chunk(0).dictionary.nbytes > DICTIONARY_BYTES_MAX


def widen_schema(rows: pa.Table, widest: pa.Schema) -> pa.Table:
    """Rows with all columns of a schema, in its order; missing ones are null."""
    columns = list[Any]()
    for field in widest:
        if field.name in rows.column_names:
            columns.append(rows[field.name])
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.table(columns, schema=widest)


DICTIONARY_BYTES_MAX = 64 * 1024
"""A column of text is written by its codes if its dictionary has so many bytes at most. Each row group holds all of it:
with 1 MB an hour of order books was 64 % larger, and what its codes spared went into writing and reading that."""
