"""Where a message belongs: its session, its kind, and the producer's evidence of order."""

from __future__ import annotations

from enum import Enum

import msgspec


class Kind(Enum):
    """What a message does to its session."""

    SNAPSHOT = "snapshot"
    """Sets the whole state."""
    UPDATE = "update"
    """Changes part of the state."""
    END = "end"
    """Closes the session: its state is removed."""
    SKIP = "skip"
    """Known and not wanted: counted, no row, no evidence read."""
    PART = "part"
    """Part of a snapshot that goes on in the next messages; the one of kind SNAPSHOT completes it. Nothing of it
    is seen before: then the first goes to `Transform.open`, the others to `Transform.apply`, in order."""


class Link(msgspec.Struct, frozen=True, gc=False):
    """Ids by which messages of a session name each other (evidence `Linked`).

    Attributes:
        last: The newest id that this message covers.
        first: The oldest id that this message covers; lets the first update after a snapshot
            overlap it, as feeds do whose snapshot is taken beside the stream.
        previous: `last` of the message before this one.
    """

    last: int
    first: int | None = None
    previous: int | None = None


class Place(msgspec.Struct, frozen=True, gc=False):
    """What `Transform.place` says of one message.

    Attributes:
        session: The unit of order inside a partition; by default the message key.
        kind: What the message does to the session.
        sequence: The producer's number of the message in its session (evidence `Sequence`).
        link: The producer's ids of the message (evidence `Linked`).
        event_time_us: When it happened, in microseconds since 1970 (UTC).
        id: What makes the message unique in its session, whatever its order (class `Once`).
        count: Of an END: how many messages the session had, the snapshot and this one included. Compared by
            `Once`, `Checksum` and `LogOnly`; where messages are numbered, the numbers prove more.
        resets: The snapshot begins the numbering anew, and the producer says so: what it was before is void.
    """

    session: str
    kind: Kind = Kind.UPDATE
    sequence: int | None = None
    link: Link | None = None
    event_time_us: int | None = None
    id: str | int | None = None
    count: int | None = None
    resets: bool = False
