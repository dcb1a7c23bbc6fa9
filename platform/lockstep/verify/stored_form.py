"""The proof's own judgement on whether a state is loaded as it was stored: it stores and loads it, and compares."""

from __future__ import annotations

from datetime import datetime, time
from decimal import Decimal
from typing import Any, get_origin
from uuid import UUID

import msgspec

from lockstep.model.map_state import MapState

LOADED_OTHERWISE = (ValueError, TypeError, OverflowError, RecursionError)
"""Raised if a value cannot be stored, or its stored value cannot be loaded."""


def list_rows(value: object) -> object:
    """A table of a state as a list; an object of another class has no place in a state."""
    if isinstance(value, MapState):
        return list(value.items())
    raise TypeError(f"a {type(value).__name__}")


_STORED = msgspec.msgpack.Encoder(enc_hook=list_rows)


def is_storable(state: object, state_type: object) -> bool:
    """Whether a state is loaded as it was stored, in classes, values, order and zones."""
    decoder = msgspec.msgpack.Decoder(state_type, dec_hook=_make_table)
    try:
        return _form(state) == _form(decoder.decode(_STORED.encode(state)))
    except LOADED_OTHERWISE:
        return False


def _make_table(declared: Any, stored: object) -> object:
    """A table of its stored rows; other classes have no place in a state."""
    if (get_origin(declared) or declared) is not MapState:
        raise TypeError(f"{declared} in a state")
    key, value = declared.__args__
    return MapState(msgspec.convert(stored, list[tuple[key, value]]))  # type: ignore[valid-type]  # made at run time


def _form(value: object) -> object:
    """The form of a value as a fold sees it: only equal values have equal forms."""
    return type(value).__qualname__, _parts(value)


def _parts(value: Any) -> object:
    if isinstance(value, msgspec.Struct):
        return [(name, _form(getattr(value, name))) for name in value.__struct_fields__]
    if isinstance(value, (dict, MapState)):
        return [(_form(_require_equal(key)), _form(inner)) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [_form(inner) for inner in value]
    return _text(value)


def _text(value: Any) -> object:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (datetime, time)):
        return repr(value), value.fold, type(value.tzinfo).__qualname__, value.tzname()
    if isinstance(value, UUID):
        return (value.int, value.is_safe)
    return repr(value)


def _require_equal(key: object) -> object:
    """A key that is found again. Raises ValueError for one with a NaN in it."""
    if isinstance(key, msgspec.Struct):
        for name in key.__struct_fields__:
            _require_equal(getattr(key, name))
    if isinstance(key, tuple):
        for part in key:
            _require_equal(part)
    if isinstance(key, (float, Decimal)) and key != key:  # noqa: PLR0124  # NaN
        raise ValueError("a key that equals nothing")
    return key
