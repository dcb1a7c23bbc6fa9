"""The part of `lockstep doctor` about tables in Postgres: login, version and rights. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg

from lockstep.declare.postgres_table import PostgresTable
from lockstep.features.delivery.postgres_layout import TOKENS
from lockstep.features.delivery.postgres_target import explain_postgres_error, open_database
from lockstep.operations.doctor.diagnosis import Diagnosis, make_error, make_ok, make_warning

VERSION_MIN: Final = 140_000
"""Older servers get no corrections any more."""
_SERVER: Final = "SELECT current_setting('server_version_num')::int, current_user, to_regnamespace(%s) IS NOT NULL"
_TABLE: Final = "SELECT to_regclass(%s) IS NOT NULL"
_HAS: Final = {
    "schema": "SELECT has_schema_privilege(%s, %s)",
    "table": "SELECT has_table_privilege(%s, %s)",
    "database": "SELECT has_database_privilege(%s, %s)",
}


def check_table(check: str, delivery: str, target: PostgresTable) -> Iterator[Diagnosis]:
    """Check login, version and rights.

    Args:
        check: Name of the check.
        delivery: Name of the delivery.
        target: The table.

    Raises:
        TargetRefused: The connection string is wrong, or the server refuses the user.
        TargetInterrupted: The server does not answer.
        SettingsError: The connection string is missing.
    """
    with open_database(delivery, target) as connection:
        try:
            yield from _Rights(check, target, connection).check()
        except psycopg.Error as error:
            raise explain_postgres_error(delivery, target, error) from error


class _Rights:
    def __init__(self, check: str, target: PostgresTable, connection: psycopg.Connection[Any]) -> None:
        self._check = check
        self._target = target
        self._connection = connection

    def check(self) -> Iterator[Diagnosis]:
        target = self._target
        version, user, has_schema = self._ask(_SERVER, target.schema)
        yield make_ok(self._check, f"{target.connection}: {user} can log in, Postgres {version // 10_000}")
        if version < VERSION_MIN:
            problem = f"Postgres {version // 10_000} gets no corrections any more"
            yield make_warning(self._check, problem, f"upgrade it to Postgres {VERSION_MIN // 10_000} or later")
        if not has_schema:
            step = f"CREATE SCHEMA {target.schema}; or correct PostgresTable.table"
            yield make_error(self._check, f"PostgresTable.table = {target.table}: its schema does not exist", step)
            return
        yield from self._require("schema", target.schema, "USAGE")
        rows = ("SELECT", "INSERT", "UPDATE", "DELETE") if target.key else ("SELECT", "INSERT")
        missing = [
            *self._list_missing(f"{target.schema}.{target.name}", rows),
            *self._list_missing(f"{target.schema}.{TOKENS}", ("SELECT", "INSERT", "UPDATE")),
        ]
        yield from missing
        if target.key:
            (database,) = self._ask("SELECT current_database()")
            yield from self._require("database", database, "TEMPORARY")
        if not missing:
            yield make_ok(self._check, f"PostgresTable.table = {target.table}: {user} has the rights of a delivery")

    def _list_missing(self, table: str, rights: tuple[str, ...]) -> list[Diagnosis]:
        """The rights on a table that are missing; on its schema, if the first run is to create it."""
        (exists,) = self._ask(_TABLE, table)
        if not exists:
            return list(self._require("schema", self._target.schema, "CREATE", f" to create {table}"))
        found = list[Diagnosis]()
        for right in rights:
            found += self._require("table", table, right)
        return found

    def _require(self, kind: str, name: str, right: str, reason: str = "") -> Iterator[Diagnosis]:
        (has,) = self._ask(_HAS[kind], name, right)
        if not has:
            problem = f"PostgresTable.table = {self._target.table}: the user of {self._target.connection} lacks {right}"
            yield make_error(
                self._check,
                f"{problem} on {kind} {name}{reason}",
                f"GRANT {right} ON {kind.upper()} {name} TO its role",
            )

    def _ask(self, query: str, *values: str) -> tuple[Any, ...]:
        return self._connection.execute(query.encode(), values).fetchone() or ()
