"""Delivery to a table of a Postgres database, exactly once.

    <schema>.lockstep_deliveries    a row for each target: its token, and the epoch of the newest claim
    <schema>.<table>                the rows

Rows and token are in one transaction, which first updates the token under the condition that the epoch is still that of
its claim. Writes share an advisory lock that a claim holds alone: a claim waits for the write in progress, and ends the
session of a write that takes too long. So it reads the token that the write left, also if its outcome is
unknown; then it raises the epoch.

All settings are local to a transaction, and no statement is prepared, so a connection may go through a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lockstep.declare.delivery_target import (
    DeliveredRow,
    DeliveryFenced,
    DeliveryToken,
    RowUndeliverable,
    TargetConnection,
    TargetInterrupted,
    TargetRefused,
)
from lockstep.declare.postgres_table import PostgresTable
from lockstep.errors import LockstepError
from lockstep.features.delivery.changeable_target import ChangeableTarget
from lockstep.features.delivery.erasures import ErasedSession
from lockstep.features.delivery.postgres_layout import TargetLayout, TargetTable
from lockstep.features.delivery.postgres_rows import RowValues
from lockstep.kafka.secrets import fetch_secret
from lockstep.model.decoding import decode_json

PATIENCE_SECONDS: Final = 5
"""Time for the write in progress of an earlier run to end before its session is ended: its process may hang."""
TRANSACTION_SECONDS: Final = 60
"""A statement that takes longer is cancelled; so is a session that waits for longer inside of a transaction."""
DELETE_SECONDS: Final = 600
"""Time for a statement that deletes the rows of a session or of undone batches: it reads the whole table."""
CONNECT_SECONDS: Final = 15
_DEFAULTS: Final = {
    "connect_timeout": CONNECT_SECONDS,
    "target_session_attrs": "read-write",  # after a failover, the new primary of several hosts
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "application_name": "lockstep",
}
_SETTINGS: Final = {
    "client_min_messages": "warning",
    "idle_in_transaction_session_timeout": f"{TRANSACTION_SECONDS}s",
    "lock_timeout": f"{TRANSACTION_SECONDS + 10}s",
    "statement_timeout": f"{TRANSACTION_SECONDS + 20}s",
    "synchronous_commit": "on",
    "TimeZone": "UTC",
}
_REFUSED_CLASSES: Final = ("0A", "28", "3D", "3F", "42")
"""Classes of SQL states that no repetition changes: features, login, databases, schemas, rights and names."""
_ROW_CLASSES: Final = ("22", "23", "44", "54", "P0")
"""Classes that a value of a row can cause: data, constraints, checks of views, limits, triggers."""


class TargetState(msgspec.Struct, frozen=True):
    """The state of a target table that a token has.

    Attributes:
        number: Number of the newest delivered row.
        key: The key by which rows replace each other; empty if they are appended.
        code: Digest of the functions that made the newest rows.
        code_number: The rows after this number were made by these functions.
        code_batch: The rows of batches after this batch were made by these functions.
        first_number: The rows up to this number were replaced by a rebuild.
    """

    number: int
    key: tuple[str, ...]
    code: str
    code_number: int = 0
    code_batch: int = 0
    first_number: int = 0


class _Claimed(NamedTuple):
    epoch: int
    token: DeliveryToken | None


def open_database(delivery: str, target: PostgresTable) -> psycopg.Connection[Any]:
    """Connect to the database of a target.

    Raises:
        TargetRefused: The connection string is wrong, or the server refuses the user.
        TargetInterrupted: The server does not answer.
        SettingsError: The connection string is missing.
    """
    given = fetch_secret(f"delivery {delivery}, PostgresTable.connection", target.connection)
    try:
        options: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(given)}
        conninfo = make_conninfo(**options)
        return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.ProgrammingError:
        problem = f"the connection string of {target.connection} is not libpq's"  # its text has the password
        step = "write it as host=... port=5432 dbname=... user=... password=..."
        raise TargetRefused(delivery, problem, next_step=step) from None
    except psycopg.Error as error:
        raise explain_postgres_error(delivery, target, error) from error


def explain_postgres_error(delivery: str, target: PostgresTable, error: psycopg.Error) -> LockstepError:
    """The error of a target for an error of Postgres, without the detail, which has the row."""
    found = error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
    state = error.sqlstate or ""
    if state.startswith(_REFUSED_CLASSES):
        step = f"grant the rights of docs/deliver.md, or correct table {target.table}; then lockstep deliver {delivery}"
        return TargetRefused(delivery, f"Postgres refuses it: {found} (SQLSTATE {state})", next_step=step)
    return TargetInterrupted(delivery, f"Postgres: {found}{f' (SQLSTATE {state})' if state else ''}")


class PostgresConnection(ChangeableTarget):
    """A claimed table."""

    def __init__(
        self, delivery: str, target: PostgresTable, value: type[msgspec.Struct], *, rebuilds: bool = False
    ) -> None:
        """Claim the table.

        1. Connect. 2. Wait for the write of an earlier run, and lock the token. 3. Refuse a table that is not
        as the token has it; create it, or add its new columns. 4. Raise the epoch.

        Args:
            delivery: Name of the delivery.
            target: The table.
            value: Type of the delivered rows.
            rebuilds: The rows are to be replaced: a dropped table, or rows that the token does not count, are accepted.

        Raises:
            TargetRefused: The table has other columns, rows of others or another delivery, or a right is missing.
            TargetInterrupted: The server did not answer in time.
            SettingsError: The connection string is missing.
        """
        self._delivery = delivery
        self._target = target
        self._rows = RowValues(value)
        self._layout = TargetLayout(target)
        self._epoch = 0
        self._rebuilds = rebuilds
        self._token: DeliveryToken | None = None
        self._state = TargetState(0, target.key, "")
        self._connection = open_database(delivery, target)  # 1
        try:
            with self._explain():
                self._claim()
        except LockstepError:
            self._connection.close()
            raise

    @property
    def token(self) -> DeliveryToken | None:
        """The newest committed token."""
        return self._token

    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Write rows and token in one transaction. Raises as `TargetConnection.write`."""
        state = self._advance(token, len(rows))
        stamped = self._stamp(token, state)
        try:
            with self._begin():
                self._connection.execute(self._layout.lock_write)
                self._move_token(stamped)
                self._write_rows(rows, self._state.number)
        except psycopg.Error as error:
            raise self._explain_write(error, rows) from None  # its text has the row
        self._token = stamped
        self._state = state

    def erase(self, sessions: Sequence[ErasedSession], token: DeliveryToken) -> int:
        """Delete the rows of erased sessions: Postgres computes the digests. Raises as `write`."""

        def delete() -> int:
            self._connection.execute(sql.SQL(f"SET LOCAL statement_timeout = '{DELETE_SECONDS}s'"))
            return sum(self._delete_session(each, token.table_id) for each in sessions)

        return self._change(token, delete)

    def _delete_session(self, erased: ErasedSession, table_id: str) -> int:
        values = (erased.key.topic_id, erased.key.partition, erased.batch, f"{table_id}\n", erased.digest)
        return self._connection.execute(self._layout.erase, values).rowcount

    def retract(self, valid: Mapping[int, int], token: DeliveryToken) -> int | None:
        """Delete the rows of undone batches. A table with a key has lost the rows that these replaced: None."""
        if self._target.key:
            return None
        generations = list(valid)
        batches = [valid[each] for each in generations]

        def delete() -> int:
            self._connection.execute(sql.SQL(f"SET LOCAL statement_timeout = '{DELETE_SECONDS}s'"))
            return self._connection.execute(self._layout.retract, (generations, batches)).rowcount

        return self._change(token, delete)

    def _change(self, token: DeliveryToken, delete: Callable[[], int]) -> int:
        """Delete rows and write the token in one transaction."""
        stamped = token
        deleted = 0
        try:
            with self._begin():
                self._connection.execute(self._layout.lock_write)
                self._move_token(self._stamp(token, self._state))
                deleted = delete()
                left = max(0, token.delivered - deleted)
                stamped = self._stamp(msgspec.structs.replace(token, delivered=left), self._state)
                self._move_token(stamped)
        except psycopg.Error as error:
            raise self._explain_write(error, ()) from None  # its text has the row
        self._token = stamped
        return deleted

    @contextmanager
    def rebuild(self, token: DeliveryToken) -> Iterator[TargetConnection]:
        """Replace all rows in one transaction: readers see the table before, then after. Raises as `write`."""
        writer = _RebuildWriter(token, self._state.number, self._write_savepoint)
        try:
            with self._begin():
                self._connection.execute(self._layout.lock_write)
                self._move_token(self._stamp(token, self._state))
                self._connection.execute(sql.SQL("SET LOCAL statement_timeout = 0"))
                self._connection.execute(
                    sql.SQL(f"SET LOCAL idle_in_transaction_session_timeout = '{DELETE_SECONDS}s'")
                )
                self._connection.execute(self._layout.delete_all)
                yield writer
                first = self._state.number
                state = TargetState(writer.number, self._target.key, token.code, first, token.since, first)
                stamped = self._stamp(writer.token, state)
                self._move_token(stamped)
        except psycopg.Error as error:
            raise self._explain_write(error, writer.rows) from None  # its text has the row
        self._token = stamped
        self._state = state

    def _write_savepoint(self, rows: Sequence[DeliveredRow], after: int) -> None:
        """Write rows in the transaction of a rebuild; if one of them cannot be encoded, none of them is written."""
        with self._connection.transaction():
            self._write_rows(rows, after)

    def _stamp(self, token: DeliveryToken, state: TargetState) -> DeliveryToken:
        encoded = msgspec.json.encode(state).decode()
        return msgspec.structs.replace(token, epoch=self._epoch, target_state=encoded)

    def close(self) -> None:
        """Close the connection: Postgres undoes a transaction that is open."""
        with suppress(psycopg.Error):
            self._connection.close()

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise explain_postgres_error(self._delivery, self._target, error) from error

    @contextmanager
    def _begin(self, *, undo: bool = False) -> Iterator[None]:
        with self._connection.transaction(force_rollback=undo):
            names = [f"set_config('{name}', '{value}', true)" for name, value in _SETTINGS.items()]
            self._connection.execute(sql.SQL("SELECT " + ", ".join(names)))
            yield

    def _claim(self) -> None:
        try:
            with self._begin():
                self._connection.execute(sql.SQL(f"SET LOCAL lock_timeout = '{PATIENCE_SECONDS}s'"))
                self._connection.execute(self._layout.lock_claim)
                self._claim_locked()
        except psycopg.errors.LockNotAvailable:
            self._connection.execute(self._layout.end_writers)
            with self._begin():
                self._connection.execute(self._layout.lock_claim)
                self._claim_locked()

    def _claim_locked(self) -> None:
        found = self._lock_token()  # 2
        self._token = found.token
        if found.token is not None:
            self._state = decode_json(found.token.target_state, TargetState)
        table = TargetTable(self._delivery, self._target, self._layout, self._connection)
        number = None if found.token is None else self._state.number
        table.check_or_create(self._rows.columns, number, rebuilds=self._rebuilds)  # 3
        self._epoch = found.epoch + 1
        self._connection.execute(self._layout.claim, (self._target.name, self._delivery, self._epoch))  # 4

    def _lock_token(self) -> _Claimed:
        """Lock the token. Raises TargetRefused for the token of another delivery, before it is fenced."""
        if not self._layout.has_tokens(self._connection):
            self._connection.execute(self._layout.create_tokens)
        row = self._connection.execute(self._layout.lock_token, (self._target.name,)).fetchone()
        if row is None:
            return _Claimed(0, None)
        delivery, epoch, token = row
        if delivery != self._delivery:
            problem = f"table {self._target.table} is the target of delivery {delivery}, whose rows it has"
            step = f"name another table; or continue that delivery by its name, {delivery}"
            raise TargetRefused(self._delivery, problem, next_step=step)
        return _Claimed(epoch, None if token is None else self._decode(token))

    def _decode(self, token: str) -> DeliveryToken:
        try:
            decoded = decode_json(token, DeliveryToken)
            state = decode_json(decoded.target_state, TargetState)
        except msgspec.DecodeError as error:
            problem = f"its token in {self._target.schema}.lockstep_deliveries cannot be decoded: {error}"
            step = "deliver with the release that wrote it; or to a new table, from the first row on"
            raise TargetRefused(self._delivery, problem, next_step=step) from error
        if state.key != self._target.key:
            problem = (
                f"table {self._target.table} has the key {state.key or 'none'}, and {self._target.key} is declared"
            )
            step = "deliver to a new table, from the first row on"
            raise TargetRefused(self._delivery, problem, next_step=step)
        return decoded

    def _advance(self, token: DeliveryToken, rows: int) -> TargetState:
        state = self._state
        if token.code != state.code:
            batch = self._token.step_batch if self._token is not None else token.since
            state = msgspec.structs.replace(state, code=token.code, code_number=state.number, code_batch=batch)
        return msgspec.structs.replace(state, number=state.number + rows)

    def _move_token(self, token: DeliveryToken) -> None:
        """Lock the token and replace it. Raises DeliveryFenced if a newer claim has raised the epoch."""
        values = (token.table_id, token.generation, token.batch, token.delivered, token.written_at)
        text = msgspec.json.encode(token).decode()
        moved = self._connection.execute(self._layout.move_token, (*values, text, self._target.name, self._epoch))
        if moved.rowcount != 1:
            raise DeliveryFenced(self._delivery)

    def _write_rows(self, rows: Sequence[DeliveredRow], after: int) -> None:
        """Write rows, whose numbers follow `after`."""
        if not rows:
            return
        columns = self._rows.columns
        if self._target.key:
            self._connection.execute(self._layout.create_stage(columns))
            self._copy(rows, self._layout.copy_to_stage(columns), after)
            self._connection.execute(self._layout.merge(columns))
            self._connection.execute(self._layout.clear_stage(columns))
        else:
            self._copy(rows, self._layout.copy(columns), after)

    def _copy(self, rows: Sequence[DeliveredRow], statement: sql.Composed, after: int) -> None:
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types([column.copied_type for column in self._rows.columns])
            for number, row in enumerate(rows, after + 1):
                try:
                    copy.write_row(self._rows.make(row, number))
                except psycopg.OperationalError:
                    raise
                except Exception as error:  # the encoder of a value: whatever it raises
                    raise _make_undeliverable(row, f"{type(error).__name__}: {error}") from error

    def _explain_write(self, error: psycopg.Error, rows: Sequence[DeliveredRow]) -> LockstepError:
        explained = explain_postgres_error(self._delivery, self._target, error)
        if not _is_of_rows(error):
            return DeliveryFenced(self._delivery) if self._was_overtaken() else explained
        step = f"correct the table, its constraints and triggers; then lockstep deliver {self._delivery}"
        return self._find_poison(rows) or TargetRefused(self._delivery, explained.problem, next_step=step)

    def _was_overtaken(self) -> bool:
        """Whether a newer run has claimed the table: it ends the session of a write that takes too long."""
        with suppress(LockstepError, psycopg.Error), open_database(self._delivery, self._target) as connection:
            row = connection.execute(self._layout.read_epoch, (self._target.name,)).fetchone()
            return row is not None and row[0] > self._epoch
        return False

    def _find_poison(self, rows: Sequence[DeliveredRow]) -> RowUndeliverable | None:
        """The first row that Postgres refuses by itself; None if the rows are refused together only."""
        if not rows:
            return None
        low = 0
        high = len(rows)
        while high - low > 1:
            middle = (low + high) // 2
            if self._try_rows(rows[low:middle]) is None:
                low = middle
            else:
                high = middle
        error = self._try_rows(rows[low:high])
        return None if error is None else _make_undeliverable(rows[low], f"Postgres refuses it: {error}")

    def _try_rows(self, rows: Sequence[DeliveredRow]) -> str | None:
        """Write rows, and undo that; the error, if any."""
        try:
            with self._begin(undo=True):
                self._write_rows(rows, self._state.number)
                self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except psycopg.Error as error:
            if not _is_of_rows(error):
                raise explain_postgres_error(self._delivery, self._target, error) from None
            return error.diag.message_primary or type(error).__name__
        return None


class _RebuildWriter(TargetConnection):
    """Writes rows in the transaction of a rebuild; its token is written at the end.

    Attributes:
        number: Number of the newest row.
        rows: The rows of the newest write.
    """

    def __init__(self, token: DeliveryToken, number: int, write: Callable[[Sequence[DeliveredRow], int], None]) -> None:
        self._token = token
        self._write = write
        self.number = number
        self.rows: Sequence[DeliveredRow] = ()

    @property
    def token(self) -> DeliveryToken:
        """The token of the newest write."""
        return self._token

    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Write rows. Raises the errors of the driver, which the rebuild explains."""
        self.rows = rows
        self._write(rows, self.number)
        self.number += len(rows)
        self._token = token

    def close(self) -> None:
        """The rebuild ends the transaction."""


def _is_of_rows(error: psycopg.Error) -> bool:
    return (error.sqlstate or "").startswith(_ROW_CLASSES)


def _make_undeliverable(row: DeliveredRow, problem: str) -> RowUndeliverable:
    step = "let Delivery.select make a value that the table can hold, or Delivery.where leave it out"
    return RowUndeliverable(row.origin.identity, problem, next_step=step)
