"""A declared stream made ready to run in a worker: bound functions, looked up once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import cast

import msgspec

from lockstep.declare.decoders.registry import Registry
from lockstep.declare.place import Place
from lockstep.declare.record import Record
from lockstep.declare.stream import Stream
from lockstep.declare.transform import migration_of
from lockstep.integrity.contract import IntegrityClass
from lockstep.integrity.suspending import SuspendedSession
from lockstep.integrity.verdict import Verdict
from lockstep.state.schema import StateSchema
from lockstep.table.rows import RowsBuilder

Check = Callable[[object, Place, Record], tuple[object, Verdict]]
"""What a gate does: see `Gate.check`."""


class Program(msgspec.Struct, frozen=True):
    """What the fold calls.

    Attributes:
        decode: A record's value to a typed message.
        place: The message's place.
        open: A new state from a snapshot.
        apply: A state and an update to rows.
        gate_from: The gate of a partition whose sessions are suspended where they began before an offset, and of
            the sessions that an operator skips.
        integrity: The class, for its verdicts on what the gate never sees.
        state: How states are encoded.
        rows: How rows become Arrow.
        row_type: What the transform must emit.
        message_bytes_max: Larger messages are undecodable.
        holes_max: A range with more holes ends early.
    """

    decode: Callable[[bytes], object]
    place: Callable[[object, Record], Place]
    open: Callable[[object, Record], object]
    apply: Callable[[object, object, Record], Iterable[msgspec.Struct]]
    gate_from: Callable[[int, Collection[SuspendedSession]], Check]
    integrity: IntegrityClass
    state: StateSchema[object]
    rows: RowsBuilder
    row_type: type[msgspec.Struct]
    message_bytes_max: int
    holes_max: int


@lru_cache(maxsize=8)
def shipped_program(stream: bytes, registry: Registry | None = None) -> Program:
    """The program of a pickled declaration; kept in the worker, because building costs milliseconds."""
    declared = cast("Stream[object, object, msgspec.Struct]", pickle.loads(stream))  # noqa: S301  # our own driver's
    return program(declared, registry)


def program(stream: Stream[object, object, msgspec.Struct], registry: Registry | None = None) -> Program:
    """The program of a declaration, in an installation with this schema registry."""
    transform, types = stream.transform, stream.types
    return Program(
        decode=stream.decoder.connected(registry).build(types.message),
        place=transform.place,
        open=transform.open,
        apply=transform.apply,
        gate_from=lambda before, skipped: cast("Check", stream.integrity.check_from(before, skipped).check),
        integrity=stream.integrity,
        state=StateSchema(types.state, migration_of(transform)),
        rows=RowsBuilder(types.row),
        row_type=types.row,
        message_bytes_max=stream.limits.message_bytes,
        holes_max=stream.limits.holes,
    )
