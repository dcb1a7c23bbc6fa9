"""Exact comparison of results: 6 is not 6.0, NaN is NaN, and a dict has an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from typing import Any, cast

import msgspec


def describe_exactly(value: Any) -> object:
    """All that a reader can see of a value, so that equal descriptions are of equal values only."""
    return type(value).__qualname__, _describe_parts(value)


def _describe_parts(value: Any) -> object:
    if isinstance(value, msgspec.Struct):
        return [describe_exactly(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return [(describe_exactly(key), describe_exactly(inner)) for key, inner in items]
    if isinstance(value, (list, tuple)):
        return [describe_exactly(inner) for inner in cast("Sequence[object]", value)]
    if isinstance(value, (datetime, time)):
        return repr(value), value.fold
    return repr(value)
