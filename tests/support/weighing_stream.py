"""A stream that reads a table of weights, which changes while the stream runs; and the expected rows.

The fold adds a value times the weight of its name, so rows and state depend on the version of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lockstep import Lookup, Strict, Topics
from lockstep import Sequence as BySequence
from lockstep.declare.stream import Stream
from lockstep.model.record import Record
from tests.support.adding_stream import Adding, Panel, Reading, Snapshot, Update


class Weight(msgspec.Struct, frozen=True):
    """The weight of a name's values."""

    name: str
    factor: int


WEIGHTS = Lookup("weights", "weights", key="name", row=Weight)


class Weighing(Adding):
    """Adds weighted values by name; a name without a weight counts as zero."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Emit a row for each value."""
        for name, added in message.values.items():
            weight = WEIGHTS.get(name)
            state.values[name] = state.values.get(name, 0) + added * (0 if weight is None else weight.factor)
            yield Reading(name, state.values[name], sum(state.values.values()))


def weighing(pattern: str) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return the stream over the topics of one test."""
    return Stream(
        name="weighing",
        topics=Topics(pattern=pattern),
        transform=Weighing(),
        integrity=Strict(evidence=BySequence()),
        lookups=(WEIGHTS,),
    )


def write_weights(table: Path, weights: Mapping[str, int]) -> int:
    """Write a new version of the table and return its number."""
    rows = pa.table({"name": [*weights], "factor": [*weights.values()], "note": ["not read" for _ in weights]})
    write_deltalake(table, rows, mode="overwrite")
    return DeltaTable(table).version()


def vacuum(table: Path) -> None:
    """Delete the files that are not in the newest version."""
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def weighed(messages: Sequence[tuple[bytes, Mapping[str, int]]]) -> list[tuple[object, ...]]:
    """Fold the messages of one session, each with its weights, to rows as `COLUMNS`, in plain Python."""
    rows: list[tuple[object, ...]] = []
    state: dict[str, int] = {}
    for offset, (value, weights) in enumerate(messages):
        message = json.loads(value)
        if message["type"] == "snapshot":
            state = dict(message["values"])
            continue
        for row, (name, added) in enumerate(message["values"].items()):
            state[name] = state.get(name, 0) + added * weights.get(name, 0)
            rows.append((offset, row, "s", message["seq"], name, state[name], sum(state.values())))
    return rows
