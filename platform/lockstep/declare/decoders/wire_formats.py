"""Formats of messages that are recognized by their first bytes, to name them in errors."""

from __future__ import annotations

from typing import Final
from uuid import UUID

FRAME_BYTES: Final = 5
"""A schema registry's frame: the magic byte, and the schema's id in four bytes."""
GUID_FRAME_BYTES: Final = 17
"""The same with a GUID, which has another magic byte."""
LONG_ID_BYTES: Final = 9
"""A frame of Apicurio's serializers: the magic byte, and an id in eight bytes."""
GLUE_BYTES: Final = 18
"""A frame of Glue's serializers: version, compression, and the UUID of a schema version."""
FINGERPRINT_BYTES: Final = 10
"""Avro's single-object encoding: two bytes, and the fingerprint of the schema."""


def find_format(value: bytes) -> str | None:
    """The format that a value's start resembles; None if no known format."""
    if value[:1] == b"\x00":
        return _find_frame(value)
    if value[:1] == b"\x01" and len(value) >= GUID_FRAME_BYTES:
        return f"a frame with the schema GUID {UUID(bytes=value[1:GUID_FRAME_BYTES])}, which belongs into a header"
    if value[:2] in {b"\x03\x00", b"\x03\x05"} and len(value) >= GLUE_BYTES:
        return f"a frame of AWS Glue with the schema version {UUID(bytes=value[2:GLUE_BYTES])}"
    if value[:2] == b"\xc3\x01" and len(value) >= FINGERPRINT_BYTES:
        return f"Avro's single-object encoding with the fingerprint {value[2:FINGERPRINT_BYTES][::-1].hex()}"
    if value[:4] == b"Obj\x01":
        return "an Avro file"
    return "JSON" if _is_json(value) else None


def describe_format(value: bytes) -> str:
    """A remark for an error: the format that a value's start resembles; empty if no known format."""
    name = find_format(value)
    return "" if name is None else f"; it resembles {name} (docs/decoders.md)"


def _find_frame(value: bytes) -> str | None:
    """A frame with an id of four bytes, or of eight: no registry assigns the id 0."""
    if value[1:FRAME_BYTES] == bytes(4) and len(value) >= LONG_ID_BYTES:
        return f"a frame with the id {int.from_bytes(value[1:LONG_ID_BYTES], 'big')} in eight bytes, as of Apicurio"
    if len(value) < FRAME_BYTES:
        return None
    return f"a schema registry's frame of schema id {int.from_bytes(value[1:FRAME_BYTES], 'big')}"


def _is_json(value: bytes) -> bool:
    text = value.strip()
    return (text[:1], text[-1:]) in {(b"{", b"}"), (b"[", b"]")}
