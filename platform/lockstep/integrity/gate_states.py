"""The states of gates: the memory of one session, stored with the user's state. Pure.

A stored state is an array, `[tag, field, ...]`. Two states need no tag: an integer is the newest number of a numbered
session, and nil an unknown session. Tags are part of the format on disk: a new type gets a new tag. They are negative,
unlike counts and offsets, so that arrays of earlier formats are refused.

A wrapping gate adds its fields around the state of the inner gate. So its type has a parameter, which is
the type of the inner state. `GateState` lists the nestings that `IntegrityClass.gate_for` makes.
"""

from __future__ import annotations

from typing import Generic, TypeVar, final

import msgspec

M = TypeVar("M")
"""State of a gate."""
M_co = TypeVar("M_co", covariant=True)
"""State of an inner gate."""


class _Tagged(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A part of a stored state."""


@final
class KnownSession(_Tagged, frozen=True, tag=-1):
    """A session without numbers: of a producer that sends none, or of another class."""


KNOWN = KnownSession()


@final
class MessageCount(_Tagged, frozen=True, tag=-2):
    """Number of the messages of a session."""

    messages: int


@final
class LastLink(_Tagged, frozen=True, tag=-3):
    """The newest id of a session.

    Attributes:
        last: The id.
        is_fresh: No update has followed the snapshot yet.
    """

    last: int
    is_fresh: bool


@final
class LastOffset(_Tagged, frozen=True, tag=-4):
    """Offset of the newest message, of a session without numbers."""

    offset: int


@final
class SeenIds(_Tagged, frozen=True, tag=-5):
    """Messages of a session.

    Attributes:
        messages: Their number.
        contents: Digest of the content by digest of the id, of the newest messages, oldest first.
    """

    messages: int
    contents: dict[bytes, bytes]


@final
class RecentMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A message within the bound of a window.

    Attributes:
        content: Digest of its content.
        happened_us: Its event time.
    """

    content: bytes
    happened_us: int


RecentMessages = dict[int, RecentMessage]
"""Messages by number, oldest first."""


@final
class RecentWindow(_Tagged, frozen=True, tag=-6):
    """Numbered messages of a session within the bound."""

    recent: RecentMessages


@final
class WaitingMessage(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A message that is buffered for its order.

    Attributes:
        rank: Its number, or its event time.
        offset: Its offset.
        release_us: The watermark at which it is released despite a gap before it.
    """

    rank: int
    offset: int
    release_us: int


@final
class NumberOrder(_Tagged, frozen=True, tag=-7):
    """A session in the order of its numbers.

    Attributes:
        waiting: Buffered messages, in order.
        recent: Messages within the bound.
        last_number: Number of the newest released message.
    """

    waiting: list[WaitingMessage]
    recent: RecentMessages
    last_number: int


@final
class TimeOrder(_Tagged, frozen=True, tag=-8):
    """A session in the order of its event times.

    Attributes:
        waiting: Buffered messages, in order.
        last_us: Event time of the newest released message; None before the first release.
    """

    waiting: list[WaitingMessage]
    last_us: int | None


@final
class EarlyUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """An update that is buffered until the snapshot of its session.

    Attributes:
        offset: Its offset.
        number: Its number, or its last id.
        first: Its first id.
        previous: The id of its predecessor.
    """

    offset: int
    number: int
    first: int | None
    previous: int | None


@final
class SnapshotAwaited(_Tagged, frozen=True, tag=-9):
    """A session before its snapshot, with its buffered updates in order."""

    updates: list[EarlyUpdate]


@final
class SnapshotApplied(_Tagged, Generic[M_co], frozen=True, tag=-10):
    """A session after its snapshot, up to the first update that the snapshot does not cover.

    Attributes:
        number: Number of the snapshot.
        evidence: State of the evidence.
    """

    number: int
    evidence: M_co | None


@final
class Deduplicated(_Tagged, Generic[M_co], frozen=True, tag=-11):
    """A session whose repeats are dropped.

    Attributes:
        contents: Digest of the content by number, of the newest messages, oldest first.
        evidence: State of the evidence.
    """

    contents: dict[int, bytes]
    evidence: M_co | None


@final
class Renumbered(_Tagged, frozen=True, tag=-12):
    """A session that another class has left: its numbering restarts with its next message."""


@final
class OpenSnapshot(_Tagged, Generic[M_co], frozen=True, tag=-13):
    """A session in the middle of a snapshot of several messages.

    Attributes:
        offsets: Offsets of the buffered messages.
        inner: State of the inner gate.
    """

    offsets: list[int]
    inner: M_co | None


@final
class ActiveSession(_Tagged, Generic[M_co], frozen=True, tag=-14):
    """A session that may be suspended, and is not marked as such.

    Attributes:
        began_at: Offset of its first snapshot; 0 if the policy at that time did not record it.
        inner: State of the inner gate.
    """

    began_at: int
    inner: M_co | None


@final
class SuspensionMark(_Tagged, frozen=True, tag=-15):
    """A session that is suspended until its next snapshot.

    Attributes:
        began_at: Offset of its first snapshot.
        since: Its first lost offset.
        is_broken: A snapshot of several messages was open: its remaining parts do not end the suspension.
        is_lost: The user's state of the session is discarded, and counted as lost.
    """

    began_at: int
    since: int
    is_broken: bool = False
    is_lost: bool = False


EvidenceState = int | KnownSession | MessageCount | LastLink
BufferedState = EvidenceState | SnapshotAwaited | SnapshotApplied[EvidenceState]
StrictState = BufferedState | Deduplicated[BufferedState]
ClassState = StrictState | LastOffset | SeenIds | RecentWindow | NumberOrder | TimeOrder
OpenedState = ClassState | Renumbered
InnerState = OpenedState | OpenSnapshot[OpenedState]
GateState = InnerState | ActiveSession[InnerState] | SuspensionMark | None
"""Each state that can be stored. None: the session is unknown."""
