"""The plain updates of a fold by hand, by `lockstep-native`: Python decodes and applies them, and does no more.

An update is plain if its envelope is declared by fields, its session is known, and its number follows. Every other
message is left to `RangeFold`, in order: one meaning, and all verdicts from one place.

Why: docs/decisions/0048-an-optional-extension-in-rust.md
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lockstep import native
from lockstep.declare.stream import AnyStream
from lockstep.declare.transform import is_overridden
from lockstep.engine.executor.row_buffer import CHUNK_ROWS
from lockstep.integrity.gate_states import KnownSession
from lockstep.integrity.verdict import ACCEPT, Verdict
from lockstep.model.readable_times import EARLIEST_US, LATEST_US
from lockstep.model.record import Envelope, Kind


class PlainUpdates(msgspec.Struct, frozen=True):
    """The updates of a stream, as the extension reads them.

    Attributes:
        decode: Decodes a value.
        on_update: Applies an update to a state; returns rows.
        updates: The message types that are updates.
        session: Field of the session; None: it is the record's key.
        sequence: Field of the number; None without one.
        time: Field of the event time; None without one.
        id: Field of the id; None without one.
        message_bytes_max: Larger messages are undecodable.
        rows_max: Rows encoded at once.
        earliest_us: The earliest event time that readers can return.
        latest_us: The latest.
        unnumbered: The state of the gate of a session without numbers.
        envelope: Makes the envelope of an update, for a gate in Python.
        update: Its kind.
        accept: The verdict of such a gate on a plain update.
    """

    decode: Callable[[bytes], object]
    on_update: Callable[..., object]
    updates: tuple[type[msgspec.Struct], ...]
    session: str | None
    sequence: str | None
    time: str | None
    id: str | None
    message_bytes_max: int
    rows_max: int = CHUNK_ROWS
    earliest_us: int = EARLIEST_US
    latest_us: int = LATEST_US
    unnumbered: type = KnownSession
    envelope: type[Envelope] = Envelope
    update: Kind = Kind.UPDATE
    accept: Verdict = ACCEPT


def find_plain_updates(
    stream: AnyStream, decode: Callable[..., object], on_update: Callable[..., object]
) -> PlainUpdates | None:
    """The plain updates of a stream; None if it has none, or the extension is not there.

    Args:
        stream: The declaration.
        decode: Its decoder.
        on_update: Its hook, as the fold calls it.
    """
    kind = type(stream.transform)
    if native.extension is None or is_overridden(kind, "envelope") or stream.decoder.reads_headers:
        return None
    declared = kind.envelope_fields
    if declared is None:
        return None
    return PlainUpdates(
        decode=decode,
        on_update=on_update,
        updates=declared.find_updates(stream.types.message),
        session=declared.session,
        sequence=declared.sequence,
        time=declared.event_time_us,
        id=declared.id,
        message_bytes_max=stream.limits.message_bytes,
    )
