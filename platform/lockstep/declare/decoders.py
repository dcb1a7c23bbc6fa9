"""How a record's value becomes a typed message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from lockstep.errors import DeclarationError


class Decoder(ABC):
    """Makes, from a message type, the function that decodes one value strictly."""

    @abstractmethod
    def build(self, message_type: object) -> Callable[[bytes], object]:
        """The decode function. It raises `msgspec.DecodeError` or `ValueError` on bad input."""


@dataclass(frozen=True)
class Json(Decoder):
    """Strict JSON: wrong types, missing fields, NaN, trailing text and bad UTF-8 are refused."""

    def build(self, message_type: object) -> Callable[[bytes], object]:
        """See `Decoder.build`."""
        return msgspec.json.Decoder(_supported(message_type)).decode


@dataclass(frozen=True)
class MessagePack(Decoder):
    """MessagePack, as strict as `Json`."""

    def build(self, message_type: object) -> Callable[[bytes], object]:
        """See `Decoder.build`."""
        return msgspec.msgpack.Decoder(_supported(message_type)).decode


@dataclass(frozen=True)
class Function(Decoder):
    """A function of the user's own.

    Attributes:
        decode: Takes the value's bytes; raises `ValueError` when they are not a message. It must
            be importable by name, because executors import it.
    """

    decode: Callable[[bytes], object]

    def build(self, message_type: object) -> Callable[[bytes], object]:
        """See `Decoder.build`; what the function returns is not checked against the type."""
        del message_type
        return self.decode


def _supported(message_type: object) -> object:
    """Refuse what msgspec cannot decode to, with its reason."""
    try:
        msgspec.json.Decoder(message_type)
    except (TypeError, NameError) as error:
        raise DeclarationError(
            "Stream.transform",
            message_type,
            f"messages cannot be decoded to this type: {error}",
            "use a msgspec.Struct, or a union of Structs told apart by tag_field and tag",
        ) from error
    return message_type
