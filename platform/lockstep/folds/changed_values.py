"""When a value of a table has changed: if its state would be stored differently."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import get_args

import msgspec
from msgspec import inspect

from lockstep.declare.stream import read_transform_types
from lockstep.model.type_parts import list_type_parts

IsChanged = Callable[[object, object], bool]
_INEXACT = (inspect.FloatType, inspect.DecimalType)
_encode = msgspec.msgpack.Encoder().encode


def is_changed(new: object, previous: object) -> bool:
    """Whether two values are neither equal nor stored alike.

    NaN is stored alike, but equals itself only if it is one object, which a restart makes two. A value that cannot be
    stored has changed: it is refused when its state is encoded.
    """
    if new == previous:
        return False
    try:
        return _encode(new) != _encode(previous)
    except (TypeError, ValueError, OverflowError):
        return True


@cache
def find_change_test(fold: type) -> IsChanged:
    """The cheapest test of new and previous value of a fold whose state is a `dict[K, V]`.

    Without a float and a Decimal inside, no value has a NaN.
    """
    value = get_args(read_transform_types(fold).state)[1]
    has_nan = any(isinstance(part, _INEXACT) for part in list_type_parts(inspect.type_info(value)))
    return is_changed if has_nan else operator.ne  # without an encoding for each value
