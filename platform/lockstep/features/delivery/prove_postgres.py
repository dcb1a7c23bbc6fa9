"""The part of `lockstep verify` about tables in Postgres: table and target are compared, row by row.

A table to which rows are appended has each row up to the token once, with its values, numbered in the order of its
source partition. A table with a key has the last row of each key alone. Token and rows are read in one snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb, set_json_loads

from lockstep.declare.delivery import Delivery
from lockstep.declare.delivery_target import DeliveredRow, DeliveryToken
from lockstep.declare.postgres_table import PostgresTable
from lockstep.declare.row_key import find_value_type
from lockstep.declare.stream import AnyStream
from lockstep.features.delivery.compare import (
    ComparedBatches,
    DigestComparison,
    choose_batches,
    judge_difference,
    make_proof,
)
from lockstep.features.delivery.expected_rows import EncodedRow, ExpectedRows, TableReading
from lockstep.features.delivery.postgres_layout import TargetLayout
from lockstep.features.delivery.postgres_rows import NUMBER, RowValues, Values
from lockstep.features.delivery.postgres_target import TargetState, explain_postgres_error, open_database
from lockstep.model.decoding import decode_json
from lockstep.operations.stream_table import open_table
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import FollowerProof, InvariantStatus

ROWS_A_FETCH = 10_000
_EXACT = Context(prec=2_000)
"""No decimal of a table, and no number of a document, has so many digits: none is rounded."""


def prove_table(delivery: Delivery, target: PostgresTable, stream: AnyStream, folders: StreamFolders) -> FollowerProof:
    """Compare a table in Postgres with the table of its stream.

    Raises:
        TargetRefused: The database cannot be used.
        TargetInterrupted: It does not answer.
    """
    layout = TargetLayout(target)
    connection = open_database(delivery.name, target)
    try:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        set_json_loads(_load_json, connection)
        with connection.transaction():
            connection.execute("SET LOCAL TimeZone = 'UTC'")
            token = _read_token(delivery, target, layout, connection)
            base = open_table(folders).base()
            if token is None or token.table_id != base.head.table_id:
                return make_proof(delivery, InvariantStatus.NOT_CLAIMED, "no row of this table", "")
            rows = RowValues(find_value_type(delivery.select, stream.types.row))
            comparison = _TableComparison(target, token, choose_batches(token, base.head), rows)
            comparison.take_rows(_read_rows(layout, rows, connection))
            comparison.compare_rows(ExpectedRows(delivery, stream, TableReading(folders, base), token.dead))
    except psycopg.Error as error:
        raise explain_postgres_error(delivery.name, target, error) from error
    finally:
        connection.close()
    excuses = comparison.find_excuses(delivery.digest_code(), base.head)
    return judge_difference(delivery, token, comparison.digests.result(), "rows", excuses)


def _read_token(
    delivery: Delivery, target: PostgresTable, layout: TargetLayout, connection: psycopg.Connection[Any]
) -> DeliveryToken | None:
    if not layout.has_tokens(connection) or not layout.has_table(connection):
        return None
    row = connection.execute(layout.read_token, (target.name,)).fetchone()
    if row is None or row[0] != delivery.name or row[1] is None:
        return None
    return decode_json(row[1], DeliveryToken)


def _read_rows(layout: TargetLayout, rows: RowValues, connection: psycopg.Connection[Any]) -> Iterator[Values]:
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in rows.columns)
    query = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(names, layout.table, sql.Identifier(NUMBER))
    with connection.cursor("lockstep_proof", scrollable=False) as cursor:
        cursor.itersize = ROWS_A_FETCH
        cursor.execute(query, binary=True)
        yield from cursor


class _TableComparison:
    """One comparison of a table in Postgres with the table of a stream."""

    def __init__(self, target: PostgresTable, token: DeliveryToken, batches: ComparedBatches, rows: RowValues) -> None:
        self._key = target.key
        self._removed = target.removed
        self._token = token
        self._state = decode_json(token.target_state, TargetState)
        self._batches = batches
        self._rows = rows
        self._at = {column.name: at for at, column in enumerate(rows.columns)}
        self._first_number = 0
        self.digests = DigestComparison()

    def take_rows(self, found: Iterator[Values]) -> None:
        """Take the rows of the table in Postgres, in the order of their numbers."""
        last = dict[tuple[str, int], tuple[int, int, int]]()
        for values in found:
            number, generation, batch = (values[self._at[name]] for name in (NUMBER, "_generation", "_batch"))
            self._first_number = self._first_number or number
            if number > self._state.number:
                self.digests.note("foreign", f"row {number}: {self._state.number} rows were delivered")
            elif not self._batches.counts(generation, batch):
                self.digests.note("undone", "")
            elif self._key:
                compares = batch > self._state.code_batch
                self.digests.add(self._encode_key(values), self._encode(values), compares=compares)
            else:
                self._check_order(values, last)
                if self._batches.has(batch):
                    compares = number > self._state.code_number
                    self.digests.add(self._encode_identity(values), self._encode(values), compares=compares)
        self.digests.settle()

    def _check_order(self, values: Values, last: dict[tuple[str, int], tuple[int, int, int]]) -> None:
        names = ("_topic_id", "_partition", "_generation", "_emit_offset", "_row", NUMBER)
        topic_id, partition, *place, number = (values[self._at[name]] for name in names)
        key = (topic_id, partition)
        here = (place[0], place[1], place[2])
        if key in last and here <= last[key]:
            self.digests.note("disordered", f"row {number}: {topic_id}/{partition} has a later row before it")
        last[key] = max(here, last.get(key, here))

    def compare_rows(self, expected: ExpectedRows) -> None:
        """Compare the rows of the stream that are delivered, or the last of each key, with those of Postgres."""
        if self._key:
            for key, newest in expected.find_newest(self._batches, self._token, self._encode_row).items():
                if newest.content is not None:
                    self.digests.compare(key, newest.content, newest.row)
            return
        for row in expected.read_batches(self._batches):
            values = self._rows.make(row, 0)
            named = f"row {row.origin.identity} of batch {row.origin.batch}"
            self.digests.compare(self._encode_identity(values), self._encode(values), named)

    def _encode_row(self, row: DeliveredRow) -> EncodedRow:
        values = self._rows.make(row, 0)
        is_gone = bool(self._removed) and values[self._at[self._removed]] is None
        return EncodedRow(self._encode_key(values), None if is_gone else self._encode(values))

    def find_excuses(self, code: str, head: Head) -> dict[str, str]:
        """The reasons for which rows may be missing or more than those of the stream."""
        excuses = dict[str, str]()
        is_other = self._state.code_number > self._state.first_number or self._state.code != code
        if is_other:
            excuses = dict.fromkeys(("missing", "extra"), "functions of the delivery were changed")
            if self._state.code != code:
                excuses["changed"] = "the functions are not those of the newest rows"
        if not self._key and self._first_number > self._state.first_number + 1:
            excuses["missing"] = f"the rows before number {self._first_number} were deleted in Postgres"
        erasure = 0 if head.erasure is None else head.erasure.batch
        if erasure > self._token.erasure:
            excuses["extra"] = "they may be of an erased session, whose rows the next run deletes"
        if erasure and self._key and "_session" not in self._key:
            excuses["missing"] = "the last rows of their keys were of an erased session: a rebuild adds them"
        elif head.retention is not None and self._key:
            excuses["extra"] = "retention has dropped the last rows of some keys"
        return excuses

    def _encode_identity(self, values: Values) -> bytes:
        names = ("_generation", "_topic_id", "_partition", "_emit_offset", "_row")
        return encode_values([values[self._at[name]] for name in names])

    def _encode_key(self, values: Values) -> bytes:
        return encode_values([values[self._at[name]] for name in self._key])

    def _encode(self, values: Values) -> bytes:
        number = self._at[NUMBER]
        return encode_values([*values[:number], *values[number + 1 :]])


def _load_json(text: str | bytes) -> Jsonb:
    """A value of a jsonb column, of which the sender's form is made the same way."""
    return Jsonb(text)


def encode_values(values: Sequence[object]) -> bytes:
    """Encode the values of columns: equal values have equal bytes, as they were sent and as they were read."""
    return repr([_make_plain(value) for value in values]).encode()


def _make_plain(value: object) -> object:
    """One form for equal values of a column, as it was sent and as it was read."""
    if isinstance(value, Decimal):
        return str(value.normalize(_EXACT))
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Jsonb):
        text: Any = value.obj if value.dumps is None else value.dumps(value.obj)
        loaded = json.loads(text, parse_float=_make_number, parse_int=_make_number)
        return json.dumps(loaded, sort_keys=True)
    return value


def _make_number(text: str) -> str:
    return f"number {Decimal(text).normalize(_EXACT)}"
