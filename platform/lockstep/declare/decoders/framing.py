"""The frame of schema registries: a zero byte, the schema's id in four bytes, then the message."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from lockstep.declare.decoders.causes import Cause, Undecodable
from lockstep.declare.decoders.contract import Decode, Decoder
from lockstep.declare.decoders.registry import RegisteredSchema, Registry
from lockstep.errors import RegistryUnreachable, SettingsError

HEADER_BYTES: Final = 5
"""The magic byte and the id."""
SECOND_LOOK_SECONDS: Final = 0.5
"""A follower of the registry may lag behind the one that gave the id, by milliseconds."""
SECOND_LOOKS_MAX: Final = 20
"""In a worker's life. More unknown ids are foreign data, and a pause for each would stop the stream."""
UNKNOWN_SECONDS: Final = 60.0
"""How long an unknown id is not asked for again; it may be registered later."""
UNKNOWN_IDS_MAX: Final = 10_000
"""Unknown ids remembered at most: random bytes are no way to fill a worker's memory."""


@dataclass(frozen=True)
class FramedDecoder(Decoder):
    """A decoder of framed messages.

    Attributes:
        registry: Where schemas are found; the installation's (`[registry]` of the settings) when left out.
    """

    registry: Registry | None = None

    def connected(self, registry: Registry | None) -> FramedDecoder:
        """See `Decoder.connected`; a registry of its own comes before the installation's."""
        return replace(self, registry=self.registry or registry)


class Framed:
    """Decodes framed values; what an id stands for is asked once in a worker's life."""

    def __init__(
        self, registry: Registry | None, reader_of: Callable[[RegisteredSchema], Decode], decoder: str
    ) -> None:
        """See the class.

        Args:
            registry: Whom to ask; without one only the declaration can be checked.
            reader_of: Makes, from a schema, the function that reads a whole frame with it.
                Raises Undecodable when no message of this schema can be read.
            decoder: Name of the decoder, for people.
        """
        self._registry, self._reader_of, self._decoder = registry, reader_of, decoder
        self._readers: dict[bytes, Decode] = {}
        self._unknown: dict[int, float] = {}
        self._second_looks = SECOND_LOOKS_MAX

    def decode(self, value: bytes) -> object:
        """The message in a frame.

        Raises:
            Undecodable: The value is no frame, or holds no message of the stream.
            RegistryUnreachable: The registry could not say what the id stands for.
        """
        # The header as it stands is the key: one look-up checks the magic byte and finds the schema.
        read = self._readers.get(value[:HEADER_BYTES])
        return read(value) if read is not None else self._met(value)(value)

    def _met(self, value: bytes) -> Decode:
        """The reader of an id that this worker has not seen."""
        schema_id = _schema_id(value)
        registered = self._known(schema_id)
        try:
            reader = self._reader_of(registered)
        except Undecodable as unfit:
            reader = _refusing(unfit.cause, f"schema {schema_id}: {unfit}")
        self._readers[value[:HEADER_BYTES]] = reader
        return reader

    def _known(self, schema_id: int) -> RegisteredSchema:
        now = time.monotonic()
        if now - self._unknown.get(schema_id, -UNKNOWN_SECONDS) >= UNKNOWN_SECONDS:
            registered = self._asked(schema_id)
            if registered is not None:
                return registered
            if len(self._unknown) >= UNKNOWN_IDS_MAX:
                self._unknown.clear()
            self._unknown[schema_id] = time.monotonic()
        raise Undecodable(Cause.UNKNOWN_SCHEMA_ID, f"the schema registry knows no schema id {schema_id}")

    def _asked(self, schema_id: int) -> RegisteredSchema | None:
        if self._registry is None:
            raise RegistryUnreachable("no schema registry is connected", next_step=_name_one(self._decoder))
        found = self._registry.schema(schema_id)
        if found is None and self._second_looks > 0:
            self._second_looks -= 1
            time.sleep(SECOND_LOOK_SECONDS)
            found = self._registry.schema(schema_id)
        return found


def refuse_without_registry(decoder: Decoder) -> None:
    """Refuse a connected decoder that has nobody to ask.

    Raises:
        SettingsError: It needs a schema registry, and neither it nor the installation names one.
    """
    if isinstance(decoder, FramedDecoder) and decoder.registry is None:
        name = type(decoder).__name__
        raise SettingsError(f"{name}() needs a schema registry and none is set", next_step=_name_one(name))


def _name_one(decoder: str) -> str:
    return (
        "set url in the [registry] part of the settings, or LOCKSTEP_REGISTRY__URL; "
        f"or give the decoder its own: {decoder}(registry=...)"
    )


def _schema_id(value: bytes) -> int:
    if value[:1] != b"\x00":
        found = f"0x{value[0]:02x}" if value else "nothing"
        raise Undecodable(
            Cause.UNKNOWN_MAGIC_BYTE if value else Cause.TRUNCATED, f"a frame begins with 0x00, this with {found}"
        )
    if len(value) < HEADER_BYTES:
        raise Undecodable(Cause.TRUNCATED, f"a frame begins with {HEADER_BYTES} bytes, this has {len(value)}")
    return int.from_bytes(value[1:HEADER_BYTES], "big")


def _refusing(cause: Cause, problem: str) -> Decode:
    def refuse(value: bytes) -> object:
        del value
        raise Undecodable(cause, problem)

    return refuse
