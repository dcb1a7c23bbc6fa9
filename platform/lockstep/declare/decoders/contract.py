"""What every decoder is."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Union, get_args, get_origin

from lockstep.errors import DeclarationError

if TYPE_CHECKING:
    from lockstep.declare.decoders.registry import Registry

Decode = Callable[[bytes], object]
"""From a record's value to a message."""


class Decoder(ABC):
    """Makes, from a message type, the function that decodes one value strictly.

    A decoder is a value: it goes to executors pickled, and opens files or connections only there.
    """

    @abstractmethod
    def build(self, message_type: object) -> Decode:
        """The decode function.

        Called when the stream is declared, to check that the decoder can make this type, and once
        in each worker. It must reach nothing outside of the process; what it gives may. That raises
        `ValueError` or `msgspec.DecodeError` on bad input: a verdict on the message. What it cannot
        decide, because a service does not answer, is a `RegistryUnreachable`: no verdict, the batch
        is tried again.

        Raises:
            DeclarationError: This decoder cannot make messages of this type.
        """

    def connected(self, registry: Registry | None) -> Decoder:
        """This decoder as it works in an installation; by default there is nothing to connect.

        Args:
            registry: The installation's schema registry, where it has one.
        """
        del registry
        return self


def members(message_type: object) -> tuple[object, ...]:
    """The members of a union; a type that is none is its only member."""
    is_union = get_origin(message_type) in {Union, types.UnionType}
    return get_args(message_type) if is_union else (message_type,)


def missing_extra(decoder: str, extra: str, error: ImportError) -> DeclarationError:
    """The refusal of a decoder whose library is not installed."""
    return DeclarationError(
        "Stream.decoder", decoder, f"its library is not installed: {error}", f"pip install 'lockstep[{extra}]'"
    )
