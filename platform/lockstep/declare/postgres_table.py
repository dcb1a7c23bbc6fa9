"""A table of a Postgres database as the target of a delivery."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from lockstep.declare.row_key import check_row_key, refuse_removed_without_key
from lockstep.declare.secret_location import require_location
from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_field_types

NAME_BYTES_MAX: Final = 63
"""Postgres cuts longer names without an error."""
_TABLE = re.compile(r"(?:([a-z_][a-z0-9_]*)\.)?([a-z_][a-z0-9_]*)")
_TAKEN: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Columns that each table of Postgres has."""
ROWS_MAX: Final = 1_000_000
SECONDS_MAX: Final = 20.0


class NewColumns(Enum):
    """The effect of a field of the row type for which the table has no column."""

    ADD = "add"
    """The column is added by ALTER TABLE; rows that are there already have NULL in it."""
    REFUSE = "refuse"
    """The run is refused by name until somebody has added the column."""


@dataclass(frozen=True, kw_only=True)
class PostgresTable(Declaration):
    """A table of a Postgres database: exactly once.

    The table is created from the row type if it does not exist. Without `key`, each row is appended; with it, the table
    has the last row of each key (docs/deliver.md).

    Example: `PostgresTable(table="market.large_moves", connection="env:MARKET_DATABASE")`

    Attributes:
        table: Name of the table, lower-case, after its schema and a dot; by default in the schema public.
        connection: Location of the connection string, a secret: `file:` and an absolute path, or `env:` and a variable.
            It is libpq's, as "host=db.example dbname=market user=lockstep password=...".
        key: Fields of the row, or columns of the origin, of which the table has the last row; empty to append each row.
        removed: The field that is None exactly in the row of a removed key.
        new_columns: The effect of a new field of the row type.
        transaction_rows: Rows of a transaction, at most.
        transaction_seconds: Time for which a transaction collects rows, at most.
    """

    table: str
    connection: str
    key: tuple[str, ...] = ()
    removed: str = ""
    new_columns: NewColumns = NewColumns.ADD
    transaction_rows: int = 10_000
    transaction_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that no table or connection can have."""
        check_field_types(self)
        found = _TABLE.fullmatch(self.table)
        if found is None or any(len(part) > NAME_BYTES_MAX for part in found.groups("")):
            problem = "is not a lower-case name of a table, with or without its schema"
            raise DeclarationError("PostgresTable.table", self.table, problem, "for example 'market.large_moves'")
        problem = "does not name the location of a connection string"
        right = "'env:MARKET_DATABASE' or 'file:/run/secrets/market_database'"
        require_location("PostgresTable.connection", self.connection, problem, right)
        refuse_removed_without_key("PostgresTable", self.key, self.removed)
        _check_between("transaction_rows", self.transaction_rows, ROWS_MAX, "10_000")
        _check_between("transaction_seconds", self.transaction_seconds, SECONDS_MAX, "1.0")

    @property
    def schema(self) -> str:
        """The schema of the table."""
        return self.table.rpartition(".")[0] or "public"

    @property
    def name(self) -> str:
        """The table inside its schema."""
        return self.table.rpartition(".")[2]

    @property
    def address(self) -> str:
        """Table and location of the connection, as two deliveries to one place are refused by it."""
        return f"postgres table {self.schema}.{self.name} of {self.connection}"

    @property
    def joins_batches(self) -> bool:
        """Rows of several batches may be delivered together: the last row of a key depends on the order of batches."""
        return not self.key

    def check_rows(self, value: type[msgspec.Struct]) -> None:
        """Refuse a row type that no table can have, or to which key and removals do not belong.

        Raises:
            DeclarationError: Names the field, the value and a valid alternative.
        """
        from lockstep.model.table_schema import make_row_columns  # declarations load without pyarrow

        for name in (column.name for column in make_row_columns(value)):
            if len(name.encode()) > NAME_BYTES_MAX or name in _TAKEN or "\0" in name:
                problem = f"cannot name a column in Postgres: {NAME_BYTES_MAX} bytes at most, and not a name of its own"
                raise DeclarationError(f"{value.__name__}.{name}", name, problem, "rename it by Delivery.select")
        check_row_key("PostgresTable", self.key, self.removed, value)


def _check_between(name: str, given: float, most: float, right: str) -> None:
    if not 0 < given <= most:
        raise DeclarationError(f"PostgresTable.{name}", given, f"is not more than 0 and at most {most:g}", right)
