"""When the table of a ready fold is stored row by row: unless code of the user sees the whole of it."""

from __future__ import annotations

from lockstep.model.state_types import find_table_type

SEES_STATE = (
    "on_snapshot",
    "on_update",
    "on_timer",
    "on_late",
    "on_end",
    "deadline",
    "pending",
    "list_rows",
)
"""The hooks of a transform that are given a state."""


def find_stored_type(fold: type, base: type, state: object) -> object:
    """The type that stores the states of a fold.

    Args:
        fold: The class of the user.
        base: The ready fold that it is one of.
        state: The `dict[K, V]` of its declaration.
    """
    for hook in SEES_STATE:
        if getattr(fold, hook) is not getattr(base, hook):
            return state
    return find_table_type(state)
