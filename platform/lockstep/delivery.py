"""Deliveries: rows of a stream to a Kafka topic, a Postgres table, a webhook or a target of your own."""

from lockstep.declare.delivery import Delivery, FirstRows, KafkaTopic, RowFormat, UndeliverableRows
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
    UndoneStep,
)
from lockstep.declare.postgres_table import NewColumns, PostgresTable
from lockstep.declare.webhook import Webhook

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
    "RowFormat",
    "RowIdentity",
    "RowSource",
    "RowUndeliverable",
    "Target",
    "TargetConnection",
    "TargetInterrupted",
    "TargetRefused",
    "UndeliverableRows",
    "UndoneStep",
    "Webhook",
]
