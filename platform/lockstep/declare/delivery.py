"""Deliveries: the committed rows of a stream, written to a target outside of its table, in order."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, cast

import msgspec

from lockstep.declare.delivery_target import RowSource, Target
from lockstep.declare.naming import NAME, NO_NAME
from lockstep.declare.options import Topics
from lockstep.declare.postgres_table import PostgresTable
from lockstep.declare.row_key import check_row_key, find_value_type, refuse_removed_without_key
from lockstep.declare.row_schema import make_avro_schema
from lockstep.declare.webhook import Webhook
from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_classes, check_field_types

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
EXAMPLE = "a function at the top level of a module: def is_large(row: Move, origin: RowSource) -> bool"


class FirstRows(Enum):
    """The rows with which a delivery starts that has no position in its target."""

    ALL = "all"
    """All rows of the table; rows that retention has dropped are not among them."""
    NEW = "new"
    """Rows of batches that are committed after the first run."""


class UndeliverableRows(Enum):
    """The effect of a row at which a function fails, or that the target cannot store."""

    HALT = "halt"
    """The delivery halts, and names the row."""
    DEAD_LETTER = "dead letter"
    """The row is left out, and written to a file for people (docs/deliver.md)."""


class RowFormat(Enum):
    """The format of the value of a message."""

    JSON = "json"
    """JSON without a schema."""
    AVRO = "avro"
    """Avro, whose schema is made from the type of the value, and registered as `<topic>-value`."""


@dataclass(frozen=True, kw_only=True)
class KafkaTopic(Declaration):
    """A Kafka topic of the cluster of the settings: exactly once for consumers with isolation.level=read_committed.

    Without `key`, a message has the session as its key; with it, the topic is compacted, and has the last row of each
    key (docs/deliver.md).

    Example: `KafkaTopic(topic="large_moves")`

    Attributes:
        topic: It must exist.
        tokens: Name of the compacted topic with the positions of deliveries. Several deliveries may share it.
        key: Fields of the row, or columns of the origin such as `_session`, that are the key of a message; empty for
            the session.
        removed: The field that is None exactly in the row of a removed key: its message is a tombstone.
        format: Format of the values. Avro needs a schema registry, and the extra `registry`.
        transaction_rows: Rows of a transaction, at most.
        transaction_seconds: Time for which a transaction collects rows, at most.
    """

    topic: str
    tokens: str = "lockstep-deliveries"
    key: tuple[str, ...] = ()
    removed: str = ""
    format: RowFormat = RowFormat.JSON
    transaction_rows: int = 10_000
    transaction_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse names and limits that no topic or transaction can have."""
        check_field_types(self)
        for name in ("topic", "tokens"):
            value = getattr(self, name)
            if not _TOPIC.fullmatch(value):
                problem = "is not a name of a topic: letters, digits, dots, underscores and hyphens, 249 at most"
                raise DeclarationError(f"KafkaTopic.{name}", value, problem, "for example 'large_moves'")
        if self.topic == self.tokens:
            raise DeclarationError("KafkaTopic.tokens", self.tokens, "is the topic of the rows", "another topic")
        refuse_removed_without_key("KafkaTopic", self.key, self.removed)
        if not 1 <= self.transaction_rows <= ROWS_MAX:
            problem = f"is not between 1 and {ROWS_MAX}"
            raise DeclarationError("KafkaTopic.transaction_rows", self.transaction_rows, problem, "10_000")
        if not 0 < self.transaction_seconds <= SECONDS_MAX:
            problem = f"is not more than 0 and at most {SECONDS_MAX:g}"
            raise DeclarationError("KafkaTopic.transaction_seconds", self.transaction_seconds, problem, "1.0")

    @property
    def address(self) -> str:
        """The topic, as two deliveries to one place are refused by it."""
        return f"kafka topic {self.topic}"

    @property
    def joins_batches(self) -> bool:
        """Rows of several batches may be delivered together: the last row of a key depends on the order of batches."""
        return not self.key

    @property
    def needs_value_type(self) -> bool:
        """Whether the type of the values must be declared."""
        return bool(self.key) or self.format is RowFormat.AVRO

    def check_rows(self, value: type[msgspec.Struct]) -> None:
        """Refuse a key that rows of a type do not have, and a type that Avro cannot have. Raises DeclarationError."""
        if self.key:
            check_row_key("KafkaTopic", self.key, self.removed, value)
        if self.format is RowFormat.AVRO:
            make_avro_schema(value)


ROWS_MAX = 50_000
"""The client buffers 100,000 messages at most."""
SECONDS_MAX = 20.0
"""A transaction that is open for longer than a minute is aborted by the broker."""


@dataclass(frozen=True, kw_only=True)
class Delivery(Declaration):
    """The delivery of a stream's committed rows to a target, in order (docs/deliver.md).

    Example: `Delivery(name="large_moves", target=KafkaTopic(topic="large_moves"), where=is_large)`

    Attributes:
        name: Lower-case name, unique in the platform.
        target: Where rows go.
        where: Chooses the rows to deliver, by row and origin; None for all rows.
        select: Makes the delivered value, a Struct, of a row and its origin; None for the row itself.
        first_rows: The rows with which the delivery starts.
        holds_rows: How long rows that it has not read are exempt from `Stream.retention`; None for no exemption.
        undeliverable: The effect of a row that cannot be delivered.

    Raises:
        DeclarationError: Names the field, the value and a valid alternative.
    """

    name: str
    target: KafkaTopic | PostgresTable | Webhook | Target
    where: Callable[[Any, RowSource], bool] | None = None
    select: Callable[[Any, RowSource], msgspec.Struct] | None = None
    first_rows: FirstRows = FirstRows.ALL
    holds_rows: timedelta | None = timedelta(days=7)
    undeliverable: UndeliverableRows = UndeliverableRows.HALT

    def __post_init__(self) -> None:
        """Check everything that needs neither the target nor the table."""
        check_classes(self)
        name = cast("object", self.name)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise DeclarationError("Delivery.name", self.name, NO_NAME, "for example 'large_moves'")
        _check_target(self.target)
        _check_function("where", self.where)
        _check_function("select", self.select)
        if not isinstance(cast("object", self.first_rows), FirstRows):
            right = "FirstRows.ALL or FirstRows.NEW"
            raise DeclarationError("Delivery.first_rows", self.first_rows, "is not one of FirstRows", right)
        if not isinstance(cast("object", self.undeliverable), UndeliverableRows):
            right = "UndeliverableRows.HALT or UndeliverableRows.DEAD_LETTER"
            raise DeclarationError(
                "Delivery.undeliverable", self.undeliverable, "is not one of UndeliverableRows", right
            )
        holds_rows = cast("object", self.holds_rows)
        if holds_rows is not None and (not isinstance(holds_rows, timedelta) or holds_rows <= timedelta(0)):
            right = "timedelta(days=7), or None"
            raise DeclarationError("Delivery.holds_rows", self.holds_rows, "is not a duration above 0", right)

    def choose(self, row: msgspec.Struct, origin: RowSource) -> msgspec.Struct | None:
        """The delivered value of a row; None if the row is not delivered. Raises the errors of the functions."""
        if self.where is not None and not self.where(row, origin):
            return None
        if self.select is None:
            return row
        return self.select(row, origin)

    def digest_code(self) -> str:
        """Eight hexadecimal digits of the source of the functions: messages of other code may have other values."""
        sources = [inspect.getsource(each) for each in (self.where, self.select) if each is not None]
        return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:8]


def _check_target(target: object) -> None:
    if not isinstance(target, KafkaTopic | PostgresTable | Webhook | Target):
        raise DeclarationError("Delivery.target", target, "is not a target", "for example KafkaTopic(topic='moves')")


def _check_function(name: str, function: object) -> None:
    if function is None:
        return
    if not inspect.isfunction(function) or "<" in function.__qualname__:  # <locals>, <lambda>
        raise DeclarationError(f"Delivery.{name}", function, "is not a function of a module", EXAMPLE)
    try:
        inspect.signature(function).bind("row", "origin")
    except TypeError as error:
        problem = f"does not take row and origin: {error}"
        raise DeclarationError(f"Delivery.{name}", function.__qualname__, problem, EXAMPLE) from None


def check_deliveries(deliveries: object, topics: Topics, row: type[msgspec.Struct]) -> None:
    """Refuse deliveries that meet each other, a source as a target, and rows that a target cannot hold.

    Raises:
        DeclarationError: Names the field, the value and a valid alternative.
    """
    right = "for example (Delivery(name='moves', target=KafkaTopic(topic='moves')),)"
    if isinstance(deliveries, str) or not isinstance(deliveries, Sequence):
        raise DeclarationError("Stream.deliveries", deliveries, "is not a sequence of deliveries", right)
    listed = cast("Sequence[object]", deliveries)
    for each in listed:
        if not isinstance(each, Delivery):
            raise DeclarationError("Stream.deliveries", each, "is not a Delivery", right)
        _refuse_source(each.target, topics)
        target = each.target
        if isinstance(target, PostgresTable) or (isinstance(target, KafkaTopic) and target.needs_value_type):
            target.check_rows(find_value_type(each.select, row))
    refuse_shared(cast("Sequence[Delivery]", listed))


def refuse_shared(deliveries: Sequence[Delivery]) -> None:
    """Refuse two deliveries of one name, or to one place.

    Raises:
        DeclarationError: Names them.
    """
    names = dict[str, Delivery]()
    places = dict[str, Delivery]()
    for each in deliveries:
        if names.setdefault(each.name, each) is not each:
            raise DeclarationError("Delivery.name", each.name, "is the name of two deliveries", "rename one of them")
        other = places.setdefault(each.target.address, each)
        if other is not each:
            problem = f"is the target of {other.name}, too: their positions would replace each other"
            raise DeclarationError("Delivery.target", each.target, problem, "a topic or table for each delivery")


def _refuse_source(target: KafkaTopic | PostgresTable | Webhook | Target, topics: Topics) -> None:
    if not isinstance(target, KafkaTopic):
        return
    for name in (target.topic, target.tokens):
        if topics.select([name]):
            problem = "is a topic that the stream itself reads: its rows would be read again without end"
            right = "another topic, or Topics(exclude=...)"
            raise DeclarationError("KafkaTopic.topic", name, problem, right)
