"""Rows that may hold objects of a state, copied when they are emitted.

Rows wait until a chunk of them is encoded. Without a copy a later message would change them, and the rows would depend
on where batches end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import msgspec

from lockstep.declare.transform import InitialState
from lockstep.engine.executor.difference import Replacement
from lockstep.model.aliases import copy_value

RowsHook = Callable[..., Iterable[msgspec.Struct]]


def copy_rows(hook: RowsHook, *, copies: bool) -> RowsHook:
    """A hook whose rows are copies; the hook itself if they share no objects with a state."""
    if not copies:
        return hook
    return lambda *arguments: list(map(copy_value, hook(*arguments)))


def copy_first_rows(on_snapshot: Callable[..., object], *, copies: bool) -> Callable[..., object]:
    """The same for `on_snapshot`, which returns rows with a state."""

    def copied(*arguments: object) -> object:
        opened = on_snapshot(*arguments)
        if not isinstance(opened, InitialState):
            return opened
        first = cast("InitialState[object, msgspec.Struct]", opened)
        return InitialState(first.state, list(map(copy_value, first.rows)))

    return copied if copies else on_snapshot


def copy_replacement_rows(replacement: Replacement | None, *, copies: bool) -> Replacement | None:
    """The same for the rows of a replaced table."""
    if replacement is None or not copies:
        return replacement
    return msgspec.structs.replace(replacement, difference=copy_rows(replacement.difference, copies=copies))
