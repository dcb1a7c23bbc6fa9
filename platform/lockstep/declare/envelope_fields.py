"""EnvelopeFields: the envelope of messages, declared by names of fields instead of a method.

Because it is data, the engine reads it without a call for each message (`lockstep.engine.executor.plain_updates`).
This module is the meaning of a declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

import msgspec
from msgspec import UnsetType, inspect

from lockstep.declare.decoders.base import list_members
from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_field_types, format_type
from lockstep.model.record import Envelope, Kind, Record


@dataclass(frozen=True, kw_only=True)
class EnvelopeFields(Declaration):
    """The fields of the messages of a `Transform` that make their envelopes, by name.

    Example: `EnvelopeFields(snapshot=Snapshot, sequence="seq")`

    Attributes:
        snapshot: The message type that sets the whole state; messages of the other types are updates.
        end: The message type that ends a session.
        session: Field of a message with its session; None for the record's key.
        sequence: Field of a message with the producer's number.
        event_time_us: Field of a message with its event time in microseconds since 1970 (UTC).
        id: Field of a message with its id (class `Once`).
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
        """Refuse message types without the declared fields, and fields whose values an envelope cannot have.

        Raises:
            DeclarationError: Names the field, and the message type.
        """
        declared = f"{transform}.envelope_fields"
        members = list_members(message_type)
        for member in members:
            struct: Any = member
            if not isinstance(struct, type) or not issubclass(struct, msgspec.Struct):
                problem = "has messages that are not Structs and so have no fields"
                raise DeclarationError(declared, member, problem, f"{transform}.envelope, a method")
            types = {each.name: each.type for each in msgspec.structs.fields(struct)}
            for part, kinds in _KINDS.items():
                name = getattr(self, part)
                if name is not None:
                    _check_field(f"{declared}.{part}", struct.__name__, name, types, kinds)
        for part in ("snapshot", "end"):
            kind = getattr(self, part)
            if kind is not None and kind not in members:
                problem = f"is not a message type of {transform}"
                raise DeclarationError(f"{declared}.{part}", kind.__name__, problem, "a type of its messages")


_KINDS: Mapping[str, frozenset[type]] = {
    "session": frozenset({str}),
    "sequence": frozenset({int, NoneType}),
    "event_time_us": frozenset({int, NoneType}),
    "id": frozenset({str, int, NoneType}),
}
"""The classes of values by part of an envelope."""


def _check_field(part: str, message: str, name: str, types: Mapping[str, object], kinds: frozenset[type]) -> None:
    """Refuse a field that is not there, or of another type than a part of an envelope. Raises DeclarationError."""
    if name not in types:
        raise DeclarationError(part, name, f"is not a field of {message}", f"one of {', '.join(types)}")
    may_be_unset = UnsetType in list_members(types[name])  # no member of the type, for msgspec
    if may_be_unset or not _find_kinds(inspect.type_info(types[name])) <= kinds:
        problem = f"is of type {format_type(types[name])} in {message}"
        shown = " | ".join(sorted("None" if kind is NoneType else kind.__name__ for kind in kinds))
        raise DeclarationError(part, name, problem, f"a field of type {shown}, or a method envelope that converts it")


def _find_kinds(info: inspect.Type) -> set[type]:
    """The classes of the values of a type; `object` for any other than texts, whole numbers and None."""
    if isinstance(info, inspect.Metadata):
        return _find_kinds(info.type)
    if isinstance(info, inspect.UnionType):
        return set[type]().union(*map(_find_kinds, info.types))
    if isinstance(info, inspect.LiteralType):
        return set(map(type, info.values))
    return {_PLAIN.get(type(info), object)}


_PLAIN: Mapping[type, type] = {inspect.StrType: str, inspect.IntType: int, inspect.NoneType: NoneType}
