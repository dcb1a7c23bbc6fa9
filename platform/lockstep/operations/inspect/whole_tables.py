"""Tables of states that are saved whole: a large one costs more in each batch than the rows that change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, get_origin

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.folds.columns import ColumnFold
from lockstep.folds.stored_table import SEES_STATE
from lockstep.folds.table import TableFold
from lockstep.operations.stream_table import try_read_head
from lockstep.state.bases import read_entries
from lockstep.state.changelog import StateVersion
from lockstep.state.values import is_session
from lockstep.table import ledger
from lockstep.table.layout import StreamFolders

SESSION_BYTES = 50_000
"""Encoded; about a thousand rows. Below that a dict is as fast as a `MapState`."""
BYTES_A_MESSAGE = 2_000
"""Of state that a batch writes: an update of some rows is far less."""


class LargeState(msgspec.Struct, frozen=True):
    """The largest session of some states.

    Attributes:
        session: The session.
        bytes: Its encoded state, without tables that are stored row by row.
    """

    session: str
    bytes: int


def find_reason(stream: AnyStream) -> str | None:
    """Why states have a table that is saved whole, with the remedy; None if they have none."""
    stored = stream.types.stored
    kind = type(stream.transform)
    base = next((each for each in (TableFold, ColumnFold) if issubclass(kind, each)), None)
    if base is not None:
        hooks = [hook for hook in SEES_STATE if getattr(kind, hook) is not getattr(base, hook)]
        if not _is_dict(stored):
            return None
        cause = f"its keys are those of {stored}"
        if hooks:
            cause = f"{kind.__name__}.{hooks[0]} is given all of it"
        return f"the table is saved whole, as {cause}: without that it is stored by rows"
    names = list(_find_dicts(stored))
    if not names:
        return None
    remedy = "as MapState[K, V] it is stored by rows, and a batch saves those that it changed"
    return f"{' and '.join(names)} is saved whole: {remedy}"


def _find_dicts(state: Any) -> Iterator[str]:
    """The dicts of a state by their names."""
    if _is_dict(state):
        yield "the state"
    struct = get_origin(state) or state
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct):
        yield from (f"{struct.__name__}.{each.name}" for each in msgspec.structs.fields(state) if _is_dict(each.type))


def _is_dict(declared: object) -> bool:
    return (get_origin(declared) or declared) is dict


def find_large_state(folder: Path, versions: Iterable[StateVersion]) -> LargeState | None:
    """The largest session of states, if it is large. Raises StateDamaged."""
    largest = LargeState("", 0)
    for version in versions:
        for key, value in read_entries(folder, version)[1].items():
            if is_session(key) and len(value) > largest.bytes:
                largest = LargeState(key.decode("utf-8", "replace"), len(value))
    return largest if largest.bytes >= SESSION_BYTES else None


def list_costly_streams(streams: Mapping[str, AnyStream], root: Path) -> Iterator[tuple[str, str]]:
    """Streams whose batches write much state for their messages, by name with the reason."""
    for name, stream in sorted(streams.items()):
        reason = find_reason(stream)
        folders = StreamFolders(name, root)
        if reason is None:
            continue
        head = try_read_head(folders)
        if head is None:
            continue
        rows = [row for row in ledger.read_positions(folders, head).values() if row.messages and row.state_bytes]
        costs = [row.state_bytes / row.messages for row in rows]
        if costs and median(costs) > BYTES_A_MESSAGE:
            yield name, f"its newest batches wrote {median(costs):,.0f} B of state a message; {reason}"
