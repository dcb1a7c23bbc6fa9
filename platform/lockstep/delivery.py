"""Deliveries: rows of a stream to a Kafka topic, a Postgres table or a target of your own, exactly once."""

from lockstep.declare.delivery import Delivery, FirstRows, KafkaTopic
from lockstep.declare.delivery_target import (
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
]
