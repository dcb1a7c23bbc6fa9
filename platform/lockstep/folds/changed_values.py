"""When a value of a table has changed: if its state would be stored differently."""

from __future__ import annotations

import msgspec

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
