"""Deliveries to Postgres tables, rows with all column types, and plain reads of the tables."""

from __future__ import annotations

import dataclasses
import enum
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from lockstep import DecimalType, IntegerType
from lockstep.delivery import (
    DeliveredRow,
    Delivery,
    PostgresTable,
    RowSource,
)
from lockstep.features.delivery.deliver import run_delivery
from lockstep.features.delivery.prove import prove_deliveries
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.settings import KafkaSettings, Settings
from tests.support.kept_stream import Row
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from lockstep.features.delivery.deliver import DeliveryRun
    from lockstep.verify.report import FollowerProof
    from tests.support.offline_stream import Offline

VARIABLE = "DELIVERED_DATABASE"


class Side(enum.Enum):
    """An enum of strings."""

    BUY = "buy"
    SELL = "sell"


class Level(enum.IntEnum):
    """An enum of integers."""

    LOW = 1
    HIGH = 2**40


class Part(msgspec.Struct):
    """A struct in a row."""

    name: str
    ratio: float
    price: Annotated[Decimal, DecimalType(38, 10)]


class Wide(msgspec.Struct):
    """A column of each kind."""

    text: str
    data: bytes
    flag: bool
    whole: int
    small: Annotated[int, IntegerType(32)]
    number: float
    price: Annotated[Decimal, DecimalType(38, 10)]
    at: datetime
    day: date
    side: Side
    level: Level
    word: Literal["a", "b"]
    part: Part
    parts: list[Part]
    words: dict[str, int]
    note: str | None = None
    last: datetime | None = None


class Current(msgspec.Struct):
    """The value of a name, or None if it was removed."""

    name: str
    value: int | None


class Alert(msgspec.Struct):
    """A row with a new optional field."""

    name: str
    value: int
    total: int
    comment: str | None = None


def to_current(row: Row, origin: RowSource) -> Current:
    """Return the value, or a removal if the total is a multiple of three."""
    del origin
    return Current(row.name, None if row.total % 3 == 0 else row.value)


def to_alert(row: Row, origin: RowSource) -> Alert:
    """Return the row with a comment."""
    return Alert(row.name, row.value, row.total, origin.session)


def to_nul(row: Row, origin: RowSource) -> Row:
    """Replace the name of one value by a text that Postgres cannot store."""
    del origin
    return Row("a\0b" if row.value == 9 else row.name, row.value, row.total)


def declare(offline: Offline, table: str = "readings", **options: Any) -> DeclaredDelivery:
    """Declare a delivery named readings from a stream to a table."""
    names = {"key", "removed", "new_columns", "transaction_rows"} & options.keys()
    target = PostgresTable(table=table, connection=f"env:{VARIABLE}", **{name: options.pop(name) for name in names})
    delivery = Delivery(name=options.pop("name", "readings"), target=target, **options)
    return DeclaredDelivery(delivery, dataclasses.replace(offline.stream, deliveries=(delivery,)))


def deliver(offline: Offline, declared: DeclaredDelivery, *, accepts: bool = False) -> DeliveryRun:
    """Deliver the current rows."""
    return run_delivery(declared, Settings(table_root=offline.folders.root), stop=threading.Event(), accepts=accepts)


def prove(offline: Offline, declared: DeclaredDelivery) -> FollowerProof:
    """Return the proof of the only delivery."""
    (proof,) = prove_deliveries(declared.stream, offline.folders, KafkaSettings())
    return proof


def read_rows(url: str, table: str = "readings") -> list[dict[str, Any]]:
    """Return the rows of a Postgres table, ordered by number."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        query = sql.SQL("SELECT * FROM {} ORDER BY _number").format(sql.Identifier(table))
        return connection.execute(query).fetchall()


def execute(url: str, *statements: str) -> None:
    """Execute statements on a connection outside the delivery."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def assert_appended(offline: Offline, rows: list[dict[str, Any]]) -> None:
    """Assert that each row of the stream is stored once, numbered consecutively and ordered by source partition."""
    names = ("_topic_id", "_partition", "_emit_offset", "_row", "_session", "name", "value", "total")
    table = read_table(offline.folders.table).to_pylist()
    read = itemgetter(*names)
    assert sorted(map(read, rows)) == sorted(map(read, table))
    assert [row["_number"] for row in rows] == list(range(1, len(rows) + 1))
    last = dict[str, tuple[int, int]]()
    for row in rows:
        place = (row["_emit_offset"], row["_row"])
        assert last.get(row["_topic_id"], (-1, 0)) < place
        last[row["_topic_id"]] = place


def make_row(value: msgspec.Struct, offset: int, batch: int = 1, session: str = "s") -> DeliveredRow:
    """Return a row with an origin."""
    origin = RowSource(
        topic="t",
        topic_id="id",
        partition=0,
        offset=offset,
        emit_offset=offset,
        row=0,
        session=session,
        sequence=None,
        event_time=datetime(2026, 1, 1, tzinfo=UTC),
        cause="update",
        batch=batch,
        generation=1,
    )
    return DeliveredRow(value, origin)
