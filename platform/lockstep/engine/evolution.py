"""What a change of the declared types means for what a stream has stored: found out by the driver, before it claims.

Refusing before the claim leaves the run of the older release at work. A task checks again whatever it opens.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.declare.transform import migration_of
from lockstep.engine.bookkeeping import position_of
from lockstep.engine.hands import AnyStream
from lockstep.state.durable import read_header
from lockstep.state.schema import StateSchema
from lockstep.state.section import StateDamaged
from lockstep.state.shape import Shape
from lockstep.state.versions import versions_of
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow


def refuse_changed_state(stream: AnyStream, folders: StreamFolders, rows: Iterable[LedgerRow]) -> tuple[str, ...]:
    """Compare the declared state type with the types of all that is stored.

    Args:
        stream: The declaration.
        folders: Where its tables lie.
        rows: The newest ledger row of every partition.

    Returns:
        The differences that `migrate` is asked for, each once; empty where the declared type reads all.

    Raises:
        StateTypeChanged: Something is stored that today's type cannot read, and there is no `migrate`.
    """
    schema: StateSchema[object] = StateSchema(stream.types.state, migration_of(stream.transform))
    migrated: dict[str, None] = {}
    for shapes, where in _stored(folders, rows):
        schema.accept(shapes, where)
        for name, shape in shapes.items():
            migrated |= dict.fromkeys(map(str, schema.differing(name, shape)))
    return tuple(migrated)


def _stored(folders: StreamFolders, rows: Iterable[LedgerRow]) -> Iterable[tuple[dict[str, Shape], str]]:
    """The shapes of each partition's state. What cannot be read is left to the task that needs it, to say so."""
    for row in rows:
        section = position_of(row).state
        if section is None:
            continue
        try:
            header = read_header(folders.state, section)
        except StateDamaged:
            continue
        yield versions_of(header).shapes, f"the state of {row.topic}/{row.partition} (batch {row.batch})"
