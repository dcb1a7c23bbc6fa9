"""What decoders ask of a schema registry, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec


class SchemaReference(msgspec.Struct, frozen=True):
    """A schema that another one builds on.

    Attributes:
        name: The name by which the other refers to it: a full type name in Avro, a file in Protobuf.
        text: Its text.
    """

    name: str
    text: str


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as it was registered. What an id stands for never changes.

    Attributes:
        kind: "AVRO", "PROTOBUF" or "JSON".
        text: Its text: JSON of an Avro schema, the source of a .proto file.
        references: All schemas it builds on, also indirectly, each after those that it builds on itself.
    """

    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()


class Registry(ABC):
    """Where schemas are found by the id in front of each message.

    A registry is a value: it goes to executors pickled and opens connections only there. Answers
    are kept by the decoder, in each worker.
    """

    @abstractmethod
    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of an id; None only when the registry says that it has none.

        Raises:
            RegistryUnreachable: It does not answer, refuses, or answers nonsense.
        """
