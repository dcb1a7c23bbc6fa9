"""The schemas of an output table: the user's columns, the provenance columns, and the commit hour.

A column of a type without `| None` is declared NOT NULL in Parquet and in Delta. Nested fields
are nullable for readers (see Column.inner_field), though not in the rows that are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lockstep.errors import DeclarationError
from lockstep.model.columns import Column, make_columns

if TYPE_CHECKING:
    import msgspec
    from deltalake import Schema


COMMIT_HOUR: Final = "commit_hour"
"""The partition column, "YYYY-MM-DDTHH" in UTC. It is part of a file's path, not of the file."""

ABSENT_UP_TO: Final = "lockstep.absent_up_to_batch"
"""In the metadata of a column that was added: the last batch before it. Files up to that batch do not
have the column; a compaction of them holds null there, and only this tells it from a lost value."""

IDENTITY: Final = ("_topic_id", "_partition", "_emit_offset", "_row")
"""The columns that identify a row and its order, everywhere."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_PROOF: Final[list[pa.Field[Any]]] = [
    pa.field("_topic", pa.string(), nullable=False),
    pa.field("_topic_id", pa.string(), nullable=False),
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_emit_offset", pa.int64(), nullable=False),
    pa.field("_row", pa.int32(), nullable=False),
    pa.field("_session", pa.string(), nullable=False),
    pa.field("_sequence", pa.int64(), nullable=True),
    pa.field("_event_time", TIMESTAMP, nullable=True),
    pa.field("_cause", pa.string(), nullable=False),
]


def make_row_columns(row_type: type[msgspec.Struct]) -> tuple[Column, ...]:
    """The user's columns, in the order of the fields.

    Raises:
        DeclarationError: A field has a name that is lockstep's own, or a type that has no column.
    """
    for name in row_type.__struct_fields__:
        if name.startswith("_") or name.lower() == COMMIT_HOUR:
            raise DeclarationError(
                f"{row_type.__name__}.{name}",
                name,
                f"names that begin with _ and {COMMIT_HOUR} belong to lockstep's own columns",
                "rename the field",
            )
    return make_columns(row_type)


def make_row_schema(row_type: type[msgspec.Struct]) -> pa.Schema:
    """The user's part of the table. Raises DeclarationError as `make_row_columns` does."""
    return pa.schema([column.field() for column in make_row_columns(row_type)])


def make_provenance_schema() -> pa.Schema:
    """The provenance columns, after the user's: the source of a row.

    `_offset` is the source message's offset, `_emit_offset` the one processed when the row was
    emitted, `_row` the number of the row inside its emit offset, `_cause` the hook that emitted it (`RowCause`).
    """
    return pa.schema(_PROOF)


def make_file_schema(row_type: type[msgspec.Struct]) -> pa.Schema:
    """The schema of a data file: the user's and the provenance columns."""
    return pa.unify_schemas([make_row_schema(row_type), make_provenance_schema()])


def make_table_schema(row_type: type[msgspec.Struct]) -> pa.Schema:
    """The schema of the table: the file's columns and the commit hour."""
    return make_file_schema(row_type).append(pa.field(COMMIT_HOUR, pa.string(), nullable=False))


def to_delta(schema: pa.Schema) -> Schema:
    """The same schema as Delta declares it."""
    from deltalake import Schema  # declarations load without deltalake

    return Schema.from_arrow(schema)
