"""The built-in targets, and those of users, behind one function."""

from __future__ import annotations

import msgspec

from lockstep.declare.delivery import Delivery, KafkaTopic
from lockstep.declare.delivery_target import TargetConnection, TargetRefused
from lockstep.declare.postgres_table import PostgresTable
from lockstep.declare.row_key import find_value_type
from lockstep.declare.stream import AnyStream
from lockstep.declare.webhook import Webhook
from lockstep.engine.driver.run import make_registry
from lockstep.features.delivery.kafka_target import KafkaConnection
from lockstep.features.delivery.registered_schema import ValueSchema
from lockstep.features.delivery.webhook_target import WebhookConnection
from lockstep.settings import Settings


class DeclaredDelivery(msgspec.Struct, frozen=True):
    """A delivery and its stream."""

    delivery: Delivery
    stream: AnyStream


def open_target(declared: DeclaredDelivery, settings: Settings, *, rebuilds: bool = False) -> TargetConnection:
    """Claim the target of a delivery. Raises as `Target.connect`.

    Args:
        declared: The delivery and its stream.
        settings: Kafka, the schema registry, and the table root.
        rebuilds: All rows of the target are to be replaced.
    """
    delivery = declared.delivery
    target = delivery.target
    if isinstance(target, KafkaTopic):
        registry = make_registry(settings.registry)
        schema = ValueSchema(delivery, target, declared.stream.types.row, registry)
        return KafkaConnection(delivery.name, target, settings.kafka, schema, rebuilds=rebuilds)
    if isinstance(target, PostgresTable):
        require_driver(delivery.name)
        from lockstep.features.delivery.postgres_target import PostgresConnection

        value = find_value_type(delivery.select, declared.stream.types.row)
        return PostgresConnection(delivery.name, target, value, rebuilds=rebuilds)
    if isinstance(target, Webhook):
        return WebhookConnection(delivery.name, declared.stream.name, target, settings.table_root)
    return target.connect(delivery.name)


def require_driver(delivery: str) -> None:
    """Refuse a table if the driver of Postgres, an extra, is not installed. Raises TargetRefused."""
    try:
        import psycopg  # noqa: F401  # only whether it is there
    except ImportError as error:
        step = "install it: pip install 'lockstep[postgres]'"
        raise TargetRefused(delivery, f"the driver of Postgres cannot be loaded: {error}", next_step=step) from error
