"""Deliveries: rows of a stream to a Kafka topic, a Postgres table or a target of your own, exactly once."""

from lockstep.declare.delivery import Delivery, FirstRows, KafkaTopic, UndeliverableRows
from lockstep.declare.delivery_target import (
    DeadRow,
    DeliveredRow,
    DeliveryFenced,
    DeliveryToken,
    RowIdentity,
    RowSource,
    RowUndeliverable,
    Target,
    TargetConnection,
    TargetInterrupted,
    TargetRefused,
)
from lockstep.declare.postgres_table import NewColumns, PostgresTable

__all__ = [
    "DeadRow",
    "DeliveredRow",
    "Delivery",
    "DeliveryFenced",
    "DeliveryToken",
    "FirstRows",
    "KafkaTopic",
    "NewColumns",
    "PostgresTable",
    "RowIdentity",
    "RowSource",
    "RowUndeliverable",
    "Target",
    "TargetConnection",
    "TargetInterrupted",
    "TargetRefused",
    "UndeliverableRows",
]
