"""Deliveries: rows of a stream to a Kafka topic or a target of your own, exactly once."""

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

__all__ = [
    "DeliveredRow",
    "Delivery",
    "DeliveryFenced",
    "DeliveryToken",
    "FirstRows",
    "KafkaTopic",
    "RowIdentity",
    "RowSource",
    "RowUndeliverable",
    "Target",
    "TargetConnection",
    "TargetInterrupted",
    "TargetRefused",
]
