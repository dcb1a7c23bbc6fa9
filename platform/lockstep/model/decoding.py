"""Decodes JSON and plain values as structs, from any thread.

msgspec looks up the fields of a struct when it first makes a decoder for it. Another thread that does the same
meanwhile finds a half of them, and the process ends with a segmentation fault (seen with 0.22: a status of three
streams). So one thread at a time makes decoders, each once.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")

_MAKES = threading.Lock()


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """A JSON document as a type. Raises as `msgspec.json.decode` does."""
    return _find_decoder(kind).decode(text)


def decode_json_lines(text: bytes | str, kind: type[T]) -> list[T]:
    """JSON documents, one a line, as a type. Raises as `msgspec.json.decode` does."""
    return _find_decoder(kind).decode_lines(text)


def decode_value(value: object, kind: type[T]) -> T:
    """A plain value as a type that JSON can hold. Raises as `msgspec.convert` does."""
    _find_decoder(kind)
    return msgspec.convert(value, kind)


def _find_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return _make_decoder(cast("Hashable", kind))


@cache
def _make_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _MAKES:
        return msgspec.json.Decoder(kind)
