"""The schema of a delivery's values in the schema registry, under the subject `<topic>-value`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from lockstep.declare.delivery import Delivery, KafkaTopic, RowFormat
from lockstep.declare.delivery_target import TargetInterrupted, TargetRefused
from lockstep.declare.row_key import find_value_type
from lockstep.declare.row_schema import make_avro_schema
from lockstep.errors import DeclarationError, RegistryUnreachable
from lockstep.features.delivery.row_values import AvroValues, JsonValues, ValueEncoder
from lockstep.model.columns import make_columns

if TYPE_CHECKING:
    from lockstep.declare.decoders.schema_registry import HttpRegistry


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
        self._value = find_value_type(delivery.select, row) if target.format is RowFormat.AVRO else None
        self._columns = _list_columns(delivery, row)

    @property
    def subject(self) -> str:
        """The subject of the schema; empty for JSON."""
        return "" if self._value is None else self._subject

    @property
    def schema(self) -> RowSchema | None:
        """The schema; None for JSON."""
        return None if self._value is None else RowSchema(self._subject, self._encode(self._value))

    def digest_code(self, code: str) -> str:
        """The digest of the functions and of the type of the values: messages of another type have other values.

        Args:
            code: The digest of the functions.
        """
        if not self._columns:
            return code
        return hashlib.sha256("\0".join([code, *self._columns]).encode()).hexdigest()[:8]

    def find(self) -> ValueEncoder | None:
        """The encoder; None if the schema is not registered. Raises TargetRefused or TargetInterrupted."""
        if self._value is None:
            return JsonValues()
        registry = self._require_registry()
        try:
            schema_id = registry.find_id(self._subject, self._encode(self._value))
        except RegistryUnreachable as error:
            raise TargetInterrupted(self._delivery, error.problem) from error
        return None if schema_id is None else AvroValues(self._value, schema_id)

    def register(self) -> ValueEncoder:
        """The encoder; a schema that is not registered is registered. Raises TargetRefused or TargetInterrupted."""
        found = self.find()
        if found is not None or self._value is None:
            return found or JsonValues()
        from lockstep.declare.decoders.schema_registry import SchemaRefused

        try:
            return AvroValues(self._value, self._require_registry().register(self._subject, self._encode(self._value)))
        except RegistryUnreachable as error:
            raise TargetInterrupted(self._delivery, error.problem) from error
        except SchemaRefused as error:
            problem = f"the registry does not take the schema of its rows as {self._subject}: {error}"
            step = (
                f"register what `lockstep delivery schema {self._delivery}` prints, allow this account to, or set the "
                f"compatibility of {self._subject}; or deliver by another name to another topic"
            )
            raise TargetRefused(self._delivery, problem, next_step=step) from error

    def _encode(self, value: type[msgspec.Struct]) -> str:
        return msgspec.json.encode(make_avro_schema(value)).decode()

    def _require_registry(self) -> HttpRegistry:
        """The registry. Raises TargetRefused if the settings name none, or a package is missing."""
        if self._registry is None:
            step = "set url in the [registry] part of the settings, or LOCKSTEP_REGISTRY__URL"
            raise TargetRefused(self._delivery, "RowFormat.AVRO needs a schema registry", next_step=step)
        try:
            import fastavro  # noqa: F401  # only whether they are there
            import requests  # noqa: F401
        except ImportError as error:
            step = "install it: pip install 'lockstep[registry]'"
            raise TargetRefused(
                self._delivery, f"a package of Avro cannot be loaded: {error}", next_step=step
            ) from error
        return self._registry


def _list_columns(delivery: Delivery, row: type[msgspec.Struct]) -> list[str]:
    """Names and types of the fields of the values; empty for a type that is not declared or that no table can have."""
    try:
        columns = make_columns(find_value_type(delivery.select, row))
    except DeclarationError:
        return []
    return [f"{column.name}: {column.type.arrow}" for column in columns]
