"""Decodes JSON, msgpack and plain values as structs, from any thread.

msgspec collects the fields of a struct when it first makes a decoder for it. Another thread that does the same
meanwhile finds a half of them, and the process ends with a segmentation fault (seen with 0.22: a status of three
streams). So one thread at a time makes decoders, each once.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

T = TypeVar("T")

_MAKES = threading.Lock()


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """A JSON document as a type. Raises as `msgspec.json.decode` does, and DecodeError for a text that is not UTF-8."""
    with _raise_decode_error():
        return _find_decoder(kind).decode(text)


def decode_json_lines(text: bytes | str, kind: type[T]) -> list[T]:
    """JSON documents, one a line, as a type. Raises as `decode_json` does."""
    with _raise_decode_error():
        return _find_decoder(kind).decode_lines(text)


def decode_msgpack(content: bytes, kind: type[T]) -> T:
    """A msgpack value as a type. Raises as `decode_json` does."""
    with _raise_decode_error():
        return cast("T", _make_msgpack_decoder(cast("Hashable", kind)).decode(content))


@contextmanager
def _raise_decode_error() -> Iterator[None]:
    """Damage inside a text raises a UnicodeDecodeError in msgspec, which is not one of its error classes."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


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


@cache
def _make_msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _MAKES:
        return msgspec.msgpack.Decoder(kind)
