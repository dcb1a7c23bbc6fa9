"""Tables and statements of a target in Postgres."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from lockstep.declare.delivery_target import TargetRefused
from lockstep.declare.postgres_table import NewColumns, PostgresTable
from lockstep.features.delivery.postgres_rows import NUMBER, TableColumn

TOKENS: Final = "lockstep_deliveries"
_COLUMNS: Final = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> ''
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
_UNIQUE: Final = """
SELECT ARRAY(SELECT attname::text FROM pg_attribute
             WHERE attrelid = indrelid AND attnum = ANY(indkey[0:indnkeyatts - 1]) ORDER BY attname)
FROM pg_index WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL AND indisvalid
"""
_END_WRITERS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND classid = {}::bigint::oid AND objid = {}::bigint::oid AND objsubid = 1 AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
"""
"""A session that waits for a client in a COPY takes no notice of a cancel or a timeout."""


_ERASE: Final = """
DELETE FROM {} WHERE _topic_id = %s AND _partition = %s AND _batch < %s
AND left(encode(sha256(convert_to(%s || _session, 'UTF8')), 'hex'), 32) = %s
"""
_RETRACT: Final = """
DELETE FROM {} AS old WHERE NOT EXISTS (
    SELECT FROM unnest(%s::bigint[], %s::bigint[]) AS valid (generation, batch)
    WHERE old._generation = valid.generation AND old._batch <= valid.batch)
"""


class TargetLayout:
    """The statements for one target table."""

    def __init__(self, target: PostgresTable) -> None:
        self._target = target
        self.table = sql.Identifier(target.schema, target.name)
        self.tokens = sql.Identifier(target.schema, TOKENS)
        lock = hashlib.sha256(f"lockstep {target.schema}.{target.name}".encode()).digest()
        key = sql.Literal(int.from_bytes(lock[:8], signed=True))
        self.lock_claim = sql.SQL("SELECT pg_advisory_xact_lock({})").format(key)
        self.lock_write = sql.SQL("SELECT pg_advisory_xact_lock_shared({})").format(key)
        self.end_writers = sql.SQL(_END_WRITERS).format(
            sql.Literal(int.from_bytes(lock[:4])), sql.Literal(int.from_bytes(lock[4:8]))
        )
        self.lock_token = self._of_tokens("SELECT delivery, epoch, token FROM {} WHERE target = %s FOR UPDATE")
        self.read_token = self._of_tokens("SELECT delivery, token FROM {} WHERE target = %s")
        self.read_epoch = self._of_tokens("SELECT epoch FROM {} WHERE target = %s")
        self.claim = self._of_tokens(
            "INSERT INTO {} (target, delivery, epoch) VALUES (%s, %s, %s) "
            "ON CONFLICT (target) DO UPDATE SET epoch = excluded.epoch"
        )
        self.move_token = self._of_tokens(
            "UPDATE {} SET table_id = %s, generation = %s, batch = %s, rows = %s, written_at = %s, token = %s "
            "WHERE target = %s AND epoch = %s"
        )
        self.create_tokens = self._of_tokens(
            "CREATE TABLE {} (target text PRIMARY KEY, delivery text NOT NULL, epoch bigint NOT NULL, table_id text, "
            "generation bigint, batch bigint, rows bigint, written_at timestamptz, token text)"
        )

        self.delete_all = sql.SQL("DELETE FROM {}").format(self.table)
        self.erase = sql.SQL(_ERASE).format(self.table)
        self.retract = sql.SQL(_RETRACT).format(self.table)

    def _of_tokens(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(self.tokens)

    def has_tokens(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the table of tokens exists."""
        return self._exists(connection, TOKENS)

    def has_table(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the table of rows exists."""
        return self._exists(connection, self._target.name)

    def _exists(self, connection: psycopg.Connection[Any], name: str) -> bool:
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{self._target.schema}.{name}",)).fetchone()
        return row is not None and bool(row[0])

    def create_table(self, columns: Sequence[TableColumn]) -> list[sql.Composed]:
        """Create the table. Rows that are appended have their number as the primary key, and an index of batches."""
        key = self._target.key or (NUMBER,)
        required = {column.name for column in columns if column.is_required} | set(key)
        parts = [_define(column, is_required=column.name in required) for column in columns]
        parts.append(sql.SQL("PRIMARY KEY ({})").format(_list_names(key)))
        made = [sql.SQL("CREATE TABLE {} ({})").format(self.table, sql.SQL(", ").join(parts))]
        if not self._target.key:
            made.append(sql.SQL("CREATE INDEX ON {} USING brin (_batch)").format(self.table))
        return made

    def add_column(self, column: TableColumn) -> sql.Composed:
        """Add a column: of the rows that are there, nothing is known."""
        return sql.SQL("ALTER TABLE {} ADD COLUMN {}").format(self.table, _define(column, is_required=False))

    def copy(self, columns: Sequence[TableColumn]) -> sql.Composed:
        """Copy rows into the table."""
        return _make_copy(self.table, columns)

    def create_stage(self, columns: Sequence[TableColumn]) -> sql.Composed:
        """Create the staging table of this session; it is empty at the start of a transaction."""
        parts = [_define(column, is_required=False) for column in columns]
        return sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}) ON COMMIT DELETE ROWS").format(
            self._stage(columns), sql.SQL(", ").join(parts)
        )

    def copy_to_stage(self, columns: Sequence[TableColumn]) -> sql.Composed:
        """Copy rows into the staging table."""
        return _make_copy(self._stage(columns), columns)

    def clear_stage(self, columns: Sequence[TableColumn]) -> sql.Composed:
        """Empty the staging table for further rows of the transaction."""
        return sql.SQL("TRUNCATE {}").format(self._stage(columns))

    def _stage(self, columns: Sequence[TableColumn]) -> sql.Identifier:
        """Its name has a digest of table and columns: sessions of a pool are shared."""
        spelled = f"{self._target.schema}.{self._target.name} {columns}"
        return sql.Identifier(f"lockstep_stage_{hashlib.sha256(spelled.encode()).hexdigest()[:16]}")

    def merge(self, columns: Sequence[TableColumn]) -> sql.Composed:
        """Put the last row of each key into the table; a removal deletes it."""
        key = _list_names(self._target.key)
        removed: sql.Composable = sql.SQL("false")
        if self._target.removed:
            removed = sql.SQL("last.{} IS NULL").format(sql.Identifier(self._target.removed))
        same = sql.SQL(" AND ").join(
            sql.SQL("old.{0} = last.{0}").format(sql.Identifier(name)) for name in self._target.key
        )
        updates = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column.name))
            for column in columns
            if column.name not in self._target.key
        )
        return sql.SQL(
            "WITH last AS (SELECT DISTINCT ON ({key}) * FROM {stage} ORDER BY {key}, _number DESC), "
            "gone AS (DELETE FROM {table} old USING last WHERE {removed} AND {same}) "
            "INSERT INTO {table} ({names}) SELECT {names} FROM last WHERE NOT ({removed}) "
            "ON CONFLICT ({key}) DO UPDATE SET {updates}"
        ).format(
            key=key,
            stage=self._stage(columns),
            table=self.table,
            removed=removed,
            same=same,
            names=_list_names(column.name for column in columns),
            updates=updates,
        )


def _list_names(names: Any) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _define(column: TableColumn, *, is_required: bool) -> sql.Composed:
    null = sql.SQL(" NOT NULL" if is_required else "")
    return sql.SQL("{} {}{}").format(sql.Identifier(column.name), sql.SQL(column.type), null)


def _make_copy(table: sql.Identifier, columns: Sequence[TableColumn]) -> sql.Composed:
    names = _list_names(column.name for column in columns)
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(table, names)


class _FoundColumn(NamedTuple):
    type: str
    is_required: bool
    has_default: bool


class TargetTable:
    """The table of rows as it is in the database."""

    def __init__(
        self, delivery: str, target: PostgresTable, layout: TargetLayout, connection: psycopg.Connection[Any]
    ) -> None:
        self._delivery = delivery
        self._target = target
        self._layout = layout
        self._connection = connection

    def check_or_create(self, columns: Sequence[TableColumn], number: int | None, *, rebuilds: bool = False) -> None:
        """Create the table, or refuse a table that is not as the token has it; add new columns.

        Args:
            columns: The columns of the rows.
            number: Number of the newest row by the token; None without a token.
            rebuilds: All rows are to be replaced.

        Raises:
            TargetRefused: The table is missing, has rows of others, or other columns.
        """
        name = self._target.table
        if not self._layout.has_table(self._connection):
            if number and not rebuilds:
                step = f"lockstep delivery rebuild {self._delivery} --plan; or deliver by another name to another table"
                raise self._refuse(f"table {name} was dropped, and {number} rows were delivered to it", step)
            for statement in self._layout.create_table(columns):
                self._connection.execute(statement)
            return
        self._check_columns(columns)
        if not (rebuilds and number is not None):
            self._check_rows(number)

    def _check_columns(self, columns: Sequence[TableColumn]) -> None:
        path = f"{self._target.schema}.{self._target.name}"
        found = {name: _FoundColumn(*rest) for name, *rest in self._connection.execute(_COLUMNS, (path,))}
        for column in columns:
            if column.name not in found:
                self._add(column)
            elif found[column.name].type != column.type:
                problem = f"column {column.name} of table {path} is {found[column.name].type}, not {column.type}"
                step = f"change its type by ALTER TABLE; or deliver to a new table, whose column is {column.type}"
                raise self._refuse(problem, step)
        names = {column.name for column in columns}
        self._refuse_required({name: each for name, each in found.items() if name not in names})
        key = sorted(self._target.key)
        if key and (key,) not in self._connection.execute(_UNIQUE, (path,)).fetchall():
            step = f"create one: CREATE UNIQUE INDEX ON {path} ({', '.join(self._target.key)})"
            raise self._refuse(f"table {path} has no unique index on {', '.join(self._target.key)}", step)

    def _add(self, column: TableColumn) -> None:
        if column.is_origin or self._target.new_columns is NewColumns.REFUSE:
            problem = f"table {self._target.table} has no column {column.name}"
            step = f"ALTER TABLE {self._target.table} ADD COLUMN {column.name} {column.type}; or NewColumns.ADD"
            if column.is_origin:
                step = "deliver to a table that lockstep creates, or add its columns of the origin (docs/deliver.md)"
            raise self._refuse(problem, step)
        self._connection.execute(self._layout.add_column(column))

    def _refuse_required(self, others: Mapping[str, _FoundColumn]) -> None:
        for name, column in others.items():
            if column.is_required and not column.has_default:
                problem = f"column {name} of table {self._target.table} is NOT NULL, and the rows have no such field"
                step = f"ALTER TABLE {self._target.table} ALTER COLUMN {name} DROP NOT NULL"
                raise self._refuse(problem, step)

    def _check_rows(self, number: int | None) -> None:
        """Refuse rows that the token does not count."""
        if number is None:
            query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(self._layout.table)
        elif not self._target.key:
            query = sql.SQL("SELECT coalesce(max(_number), 0) > {} FROM {}").format(number, self._layout.table)
        else:
            return
        row = self._connection.execute(query).fetchone()
        if row is not None and row[0]:
            counted = "has no token" if number is None else f"has its token at row {number}"
            problem = f"table {self._target.table} has rows that this delivery did not count: it {counted}"
            step = "restore the table together with lockstep_deliveries; or deliver to a new table"
            if number is not None:
                step = f"{step}; or lockstep delivery rebuild {self._delivery} --plan"
            raise self._refuse(problem, step)

    def _refuse(self, problem: str, next_step: str) -> TargetRefused:
        return TargetRefused(self._delivery, problem, next_step=next_step)
