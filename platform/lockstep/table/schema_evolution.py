"""Adapts a table to its declared type: additions are made in one commit, all other changes are refused by name.

An added column must be optional or have a default; older rows show null in it. A column may become optional.
Dropping, renaming, narrowing and retyping are refused: old files would have wrong values.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field

from lockstep.errors import TableError
from lockstep.model.decoding import decode_value
from lockstep.model.table_schema import ABSENT_UP_TO, to_delta
from lockstep.table import commit_kinds, delta_log, transactions
from lockstep.table.delta_log import NO_HOOKS, NextEntry
from lockstep.table.foreign_commits import refresh, refuse_foreign

T = TypeVar("T", bound=msgspec.Struct)


class SchemaChange(msgspec.Struct, frozen=True):
    """Differences of a table from a declared type.

    Attributes:
        added: Missing columns.
        loosened: NOT NULL columns that are optional now.
    """

    added: tuple[Field, ...] = ()
    loosened: tuple[str, ...] = ()

    def __str__(self) -> str:
        changes = [f"column {field.name} ({_type(field)}) is added" for field in self.added]
        changes += [f"column {name} may be null" for name in self.loosened]
        return "; ".join(changes)


def find_schema_changes(
    table: DeltaTable, wanted: pa.Schema, *, defaulted: frozenset[str] = frozenset()
) -> SchemaChange:
    """The changes that a table needs for a schema.

    Args:
        table: The current table.
        wanted: The schema of the current type.
        defaulted: Its columns whose fields have a default.

    Raises:
        TableError: The table cannot be adapted to the schema; lists the columns.
    """
    present = {field.name: field for field in table.schema().fields}
    asked = {field.name: field for field in to_delta(wanted).fields}
    wrong = list[str]()
    for name in sorted(present.keys() | asked.keys()):
        problem = _problem(name, present, asked, defaulted)
        if problem:
            wrong.append(problem)
    # A missing provenance column cannot be added: the old rows would have none.
    older = sorted(name for name in asked.keys() - present.keys() if name.startswith("_"))
    if older:
        raise TableError(
            f"{table.table_uri} was written by an earlier lockstep: it has no provenance column {', '.join(older)}",
            next_step="start fresh: give the stream a new name for a new table, and read its topics again",
        )
    if wrong:
        raise TableError(
            f"the row type does not fit {table.table_uri}: {'; '.join(wrong)}",
            next_step=(
                "keep the existing columns, and add only optional columns or columns with a default; "
                "or give the stream a new name for a new table"
            ),
        )
    added = list[Field]()
    loosened = list[str]()
    for name, field in asked.items():
        if name not in present:
            # Older rows show null in it, even if the type declares a default.
            added.append(Field(name, field.type, nullable=True))
        elif field.nullable and not present[name].nullable:
            loosened.append(name)
    return SchemaChange(tuple(added), tuple(loosened))


def mark_added(added: Iterable[Field], batch: int) -> list[Field]:
    """Columns to add, with the last batch before them."""
    return [Field(each.name, each.type, nullable=True, metadata={ABSENT_UP_TO: batch}) for each in added]


def evolve_side_table(folder: Path, wanted: pa.Schema) -> bool:
    """Add the columns that this release has and an older release's side table lacks; True when there were any.

    Raises:
        ForeignCommit: It has a foreign commit.
        TableError: The table is of another kind, or of an incompatible release.
    """
    table = delta_log.open_delta_table(folder)
    everything = frozenset(wanted.names)

    def next_entry() -> NextEntry | None:
        refresh(table, folder)
        changes = find_schema_changes(table, _with_newer(table, wanted), defaulted=everything)
        if not changes.added:
            return None
        refuse_foreign(folder, table.version())
        batch = table.transaction_version(transactions.BATCH) or 0
        return NextEntry(
            version=table.version() + 1,
            kind=commit_kinds.SIDE,
            alter=partial(add_columns, changes.added, table),
            transactions={transactions.BATCH: batch},
        )

    return delta_log.append_entry(folder, next_entry) is not None


def add_columns(added: Iterable[Field], table: DeltaTable, properties: CommitProperties) -> None:
    """Add columns to a table in one commit."""
    table.alter.add_columns(list(added), commit_properties=properties, post_commithook_properties=NO_HOOKS)


def with_defaults(rows: pa.Table, row_type: type[T]) -> list[T]:
    """The rows of a side table; columns missing in an older release's file get the field's default."""
    optional = [field for field in msgspec.structs.fields(row_type) if not field.required]
    absent = [field.name for field in optional if field.name in rows.column_names and rows[field.name].null_count]
    values = rows.to_pylist()
    if absent:
        for row in values:
            for name in absent:
                if row[name] is None:
                    del row[name]
    return decode_value(values, list[row_type])  # type: ignore[valid-type]  # a type that is given


def find_defaulted_columns(row_type: type[msgspec.Struct]) -> frozenset[str]:
    """Columns of a row type whose fields have a default."""
    return frozenset(field.name for field in msgspec.structs.fields(row_type) if not field.required)


def _with_newer(table: DeltaTable, wanted: pa.Schema) -> pa.Schema:
    """The schema with the columns of a newer release, which this release ignores."""
    present = pa.schema(cast("pa.Schema", table.schema().to_arrow()))
    return pa.schema([*wanted, *(field for field in present if field.name not in wanted.names)])


def _problem(name: str, held: dict[str, Field], asked: dict[str, Field], defaulted: frozenset[str]) -> str | None:
    if name not in asked:
        return f"{name}: the table has it ({_type(held[name])}), the row type does not (dropped or renamed)"
    if name not in held:
        if asked[name].nullable or name in defaulted:
            return None
        return f"{name}: new and neither optional nor with a default; declare it X | None, or give it a default"
    if held[name].type != asked[name].type:
        return f"{name}: table {_type(held[name])}, declared {_type(asked[name])}"
    return None


def _type(field: Field) -> str:
    """The type's name, for people."""
    return str(pa.field(cast("Any", field.to_arrow())).type)
