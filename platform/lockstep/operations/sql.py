"""SQL over Delta tables without Spark: DataFusion, as it comes with deltalake."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from lockstep.errors import LockstepError

READS = re.compile(r"\s*(select|with|explain|describe|show|values)\b", re.IGNORECASE)
"""What a query may begin with; COPY and the like would write files."""
PLAIN: dict[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""DataFusion's own types of text, which other libraries do not take yet."""


class WrongQuery(LockstepError):
    """The SQL is wrong, or names what is not there.

    Attributes:
        sql: The query.
    """

    def __init__(self, sql: str, reason: str, tables: Mapping[str, DeltaTable]) -> None:
        listed = ", ".join(sorted(tables)) or "none yet"
        super().__init__(f"the query failed: {reason}", next_step=f"correct the SQL; tables: {listed}")
        self.sql = sql


def run_sql(tables: Mapping[str, DeltaTable], sql: str, until: Mapping[str, int] | None = None) -> pa.Table:
    """The whole result of a query that reads.

    Args:
        tables: The tables by name.
        sql: The query.
        until: The last batch to be seen, of tables that have a column `batch`.

    Raises:
        WrongQuery: With what DataFusion says, and the tables that there are.
    """
    if not READS.match(sql):
        raise WrongQuery(sql, "it does not begin with SELECT, WITH, VALUES, EXPLAIN, DESCRIBE or SHOW", tables)
    builder = QueryBuilder()
    for name, table in tables.items():
        _register(builder, name, table, (until or {}).get(name))
    try:
        found = pa.table(builder.execute(sql).read_all())
    except Exception as error:  # what fails while rows are read is a bare Exception of DataFusion
        raise WrongQuery(sql, str(error), tables) from error
    return found.cast(pa.schema([pa.field(field.name, PLAIN.get(field.type, field.type)) for field in found.schema]))


def _register(builder: QueryBuilder, name: str, table: DeltaTable, until: int | None) -> None:
    if until is None:
        builder.register(name, table)
        return
    builder.register(f"{name}__all", table)
    view = f'CREATE VIEW "{name}" AS SELECT * FROM "{name}__all" WHERE batch <= {until}'  # noqa: S608  # a stream's name is checked
    builder.execute(view).read_all()
