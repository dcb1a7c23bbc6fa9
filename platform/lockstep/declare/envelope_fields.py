"""EnvelopeFields: the envelope of messages, declared by names of fields instead of a method.

Because it is data, the engine reads it without a call for each message (`lockstep.engine.executor.plain_updates`).
This module is the meaning of a declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from lockstep.declare.decoders.base import list_members
from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_field_types
from lockstep.model.record import Envelope, Kind, Record


@dataclass(frozen=True, kw_only=True)
class EnvelopeFields(Declaration):
    """The fields of the messages of a `Transform` that make their envelopes, by name.

    Example: `EnvelopeFields(snapshot=Snapshot, sequence="seq")`

    Attributes:
        snapshot: The message type that sets the whole state; None without one. Messages of the other types are updates.
        end: The message type that ends a session; None without one.
        session: Field of a message with its session; None for the record's key.
        sequence: Field of a message with the producer's number; None without one.
        event_time_us: Field of a message with its event time in microseconds since 1970 (UTC); None without one.
        id: Field of a message with its id (class `Once`); None without one.
    """

    snapshot: type[msgspec.Struct] | None = None
    end: type[msgspec.Struct] | None = None
    session: str | None = None
    sequence: str | None = None
    event_time_us: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        """Refuse values of other types."""
        check_field_types(self)

    def read(self, message: object, record: Record) -> Envelope:
        """The envelope of a message."""
        kind = type(message)
        return Envelope(
            record.key_text if self.session is None else getattr(message, self.session),
            Kind.SNAPSHOT if kind is self.snapshot else Kind.END if kind is self.end else Kind.UPDATE,
            None if self.sequence is None else getattr(message, self.sequence),
            None,
            None if self.event_time_us is None else getattr(message, self.event_time_us),
            None if self.id is None else getattr(message, self.id),
        )

    def find_updates(self, message_type: object) -> tuple[type[msgspec.Struct], ...]:
        """The message types that are updates."""
        members: tuple[Any, ...] = list_members(message_type)
        return tuple(each for each in members if each not in {self.snapshot, self.end})

    def check(self, transform: str, message_type: object) -> None:
        """Refuse message types without the declared fields.

        Raises:
            DeclarationError: Names the field, and the message type that lacks it.
        """
        declared = f"{transform}.envelope_fields"
        members = list_members(message_type)
        for member in members:
            struct: Any = member
            if not isinstance(struct, type) or not issubclass(struct, msgspec.Struct):
                problem = "has messages that are no Struct, which have no fields"
                raise DeclarationError(declared, member, problem, f"{transform}.envelope, a method")
            for part in ("session", "sequence", "event_time_us", "id"):
                name = getattr(self, part)
                if name is not None and name not in struct.__struct_fields__:
                    right = f"one of {', '.join(struct.__struct_fields__)}"
                    raise DeclarationError(f"{declared}.{part}", name, f"is no field of {struct.__name__}", right)
        for part in ("snapshot", "end"):
            kind = getattr(self, part)
            if kind is not None and kind not in members:
                problem = f"is no message type of {transform}"
                raise DeclarationError(f"{declared}.{part}", kind.__name__, problem, "a type of its messages")
