"""The schema of a delivery's values in the schema registry, under the subject `<topic>-value`."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lockstep.declare.delivery import Delivery, KafkaTopic, RowFormat
from lockstep.declare.delivery_target import TargetInterrupted, TargetRefused
from lockstep.declare.row_key import find_value_type
from lockstep.declare.row_schema import make_avro_schema
from lockstep.errors import DeclarationError, RegistryUnreachable
from lockstep.features.delivery.row_values import AvroValues, JsonValues, ValueEncoder
from lockstep.model.columns import make_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.declare.decoders.schema_registry import HttpRegistry

Answer = TypeVar("Answer", int, int | None)


class RowSchema(msgspec.Struct, frozen=True):
    """The Avro schema of a delivery's values.

    Attributes:
        subject: Its subject in the registry.
        schema: The schema, as Avro's JSON.
    """

    subject: str
    schema: str


class ValueSchema:
    """The format of a delivery's values, and for Avro their schema."""

    def __init__(
        self, delivery: Delivery, target: KafkaTopic, row: type[msgspec.Struct], registry: HttpRegistry | None
    ) -> None:
        """Read nothing yet.

        Args:
            delivery: The delivery.
            target: Its topic.
            row: The row type of the stream.
            registry: The registry of the settings; None without one.
        """
        self._delivery = delivery.name
        self._subject = f"{target.topic}-value"
        self._registry = registry
        self._value: type[msgspec.Struct] | None = None
        self._schema = ""
        self._type = _list_columns(delivery, row)
        if target.format is RowFormat.AVRO:
            self._value = find_value_type(delivery.select, row)
            self._schema = msgspec.json.encode(make_avro_schema(self._value)).decode()
            self._type = [self._schema]

    @property
    def subject(self) -> str:
        """The subject of the schema; empty for JSON."""
        return self._subject if self._schema else ""

    @property
    def schema(self) -> RowSchema | None:
        """The schema; None for JSON."""
        return RowSchema(self._subject, self._schema) if self._schema else None

    def digest_code(self, code: str) -> str:
        """The digest of the functions and of the type of the values: messages of another type have other values.

        Args:
            code: The digest of the functions.
        """
        if not self._type:
            return code
        return hashlib.sha256("\0".join([code, *self._type]).encode()).hexdigest()[:8]

    def is_registered(self) -> bool:
        """Whether the registry has the schema. Raises TargetRefused or TargetInterrupted."""
        return not self._schema or self._find_id() is not None

    def make_comparable(self) -> ValueEncoder:
        """An encoder whose messages are equal but for the id of their schema. Raises TargetRefused."""
        return self._make_values(0)

    def register(self) -> ValueEncoder:
        """The encoder; a schema that is not registered is registered. Raises TargetRefused or TargetInterrupted."""
        if self._value is None:
            return JsonValues()
        schema_id = None
        with suppress(TargetRefused):  # this account may not read the subject; it may be allowed to register
            schema_id = self._find_id()
        if schema_id is None:
            schema_id = self._ask(lambda registry: registry.register(self._subject, self._schema))
        return self._make_values(schema_id)

    def _find_id(self) -> int | None:
        return self._ask(lambda registry: registry.find_id(self._subject, self._schema))

    def _make_values(self, schema_id: int) -> ValueEncoder:
        if self._value is None:
            return JsonValues()
        self._require("fastavro")
        return AvroValues(self._value, schema_id)

    def _ask(self, ask: Callable[[HttpRegistry], Answer]) -> Answer:
        """Ask the registry. Raises TargetRefused if there is none or it refuses, and TargetInterrupted."""
        if self._registry is None:
            step = "set url in the [registry] part of the settings, or LOCKSTEP_REGISTRY__URL"
            raise TargetRefused(self._delivery, "RowFormat.AVRO needs a schema registry", next_step=step)
        self._require("requests")
        from lockstep.declare.decoders.schema_registry import SchemaRefused

        try:
            return ask(self._registry)
        except RegistryUnreachable as error:
            raise TargetInterrupted(self._delivery, f"{error.problem}; {error.next_step}") from error
        except SchemaRefused as error:
            problem = f"the registry does not take the schema of its rows as {self._subject}: {error}"
            step = (
                f"register what `lockstep delivery schema {self._delivery}` prints, allow this account to, or set the "
                f"compatibility of {self._subject}; or deliver by another name to another topic"
            )
            raise TargetRefused(self._delivery, problem, next_step=step) from error

    def _require(self, package: str) -> None:
        """Refuse a missing package of Avro. Raises TargetRefused."""
        try:
            import_module(package)
        except ImportError as error:
            problem = f"a package of Avro cannot be loaded: {error}"
            step = "install it: pip install 'lockstep[registry]'"
            raise TargetRefused(self._delivery, problem, next_step=step) from error


def _list_columns(delivery: Delivery, row: type[msgspec.Struct]) -> list[str]:
    """Names and types of the fields of the values; empty for a type that is not declared or that no table can have."""
    try:
        columns = make_columns(find_value_type(delivery.select, row))
    except DeclarationError:
        return []
    return [f"{column.name}: {column.type.arrow}" for column in columns]
