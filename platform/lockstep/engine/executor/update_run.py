"""The plain updates of a range, folded by `lockstep-native`. See `plain_updates`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from lockstep import native
from lockstep.engine.executor.plain_updates import PlainUpdates
from lockstep.engine.executor.rejects import Message
from lockstep.engine.executor.row_buffer import RowBuffer
from lockstep.engine.executor.sessions import Sessions
from lockstep.integrity.best_effort import CountingGate
from lockstep.integrity.once import OnceGate
from lockstep.integrity.strict import Sequence as Numbers
from lockstep.model.position import Position
from lockstep.model.record import Record
from lockstep.state.store import PartitionState

if TYPE_CHECKING:
    from lockstep_native import UpdateLoop

PAUSE_MAX: Final = 64
"""Messages in Python after a message that was not plain: 1, then twice as many each time, at most 64."""


class UpdateRange(msgspec.Struct, frozen=True):
    """A range, as the extension reads it.

    Attributes:
        record: Makes the record of a message.
        topic: Name of the topic.
        topic_id: Kafka's topic id.
        partition: Partition number.
        load: See `Sessions.load`.
        flush_part: See `RowBuffer.flush_part`.
        rows: See `RowBuffer`.
        proofs: See `RowBuffer`.
    """

    record: Callable[..., Record]
    topic: str
    topic_id: str
    partition: int
    load: Callable[[str], object]
    flush_part: Callable[..., int]
    rows: list[msgspec.Struct]
    proofs: list[Any]


class Messages(msgspec.Struct, frozen=True):
    """Messages, as the extension reads them.

    Attributes:
        offsets: Their offsets.
        values: Their values.
        keys: Their keys, if these are the sessions.
        sources: The messages of the client library.
    """

    offsets: list[int | None]
    values: list[bytes | None]
    keys: list[bytes | None] | None
    sources: list[Message]


class UpdateRun:
    """The plain updates of a range.

    Attributes:
        pause: Messages to fold in Python after `fold`: that message, and others that are not tried.
    """

    def __init__(
        self,
        updates: PlainUpdates,
        position: Position,
        state: PartitionState[object],
        sessions: Sessions,
        emission: RowBuffer,
    ) -> None:
        self._updates = updates
        self._state = state
        self._sessions = sessions
        of_range = UpdateRange(
            record=Record,
            topic=position.topic,
            topic_id=position.topic_id,
            partition=position.partition,
            load=sessions.load,
            flush_part=emission.flush_part,
            rows=emission.rows,
            proofs=emission.proofs,
        )
        self._loop: UpdateLoop = cast("Any", native.extension).UpdateLoop(updates, of_range)
        self.pause = 0

    def is_usable(self) -> bool:
        """Whether the gate of the range, which any other message may change, has plain updates."""
        gate = self._sessions.gate
        if type(gate) is OnceGate:
            return True
        return (type(gate) is Numbers or type(gate) is CountingGate) and gate.wraps_at is None

    def read(self, messages: Sequence[Message]) -> Messages:
        """Read messages of a client library."""
        of = cast("Any", type(messages[0]))
        keys: list[bytes | None] | None = None
        if self._updates.session is None:
            keys = list(map(of.key, messages))
        return Messages(list(map(of.offset, messages)), list(map(of.value, messages)), keys, list(messages))

    def fold(self, messages: Messages, start: int) -> int:
        """Fold messages from a place on.

        Returns:
            The place after the last folded message: the next is not plain, or the rows are full. Raises as
            `on_update` does.
        """
        gate = self._sessions.gate
        check = gate.check if type(gate) is OnceGate else None  # refuses an update before it changes its state
        place = self._loop.fold(messages, start, self._state.entries, check)
        self.pause = 1 if place > start else max(1, min(2 * self.pause, PAUSE_MAX))
        return place

    @property
    def record(self) -> Record | None:
        """The record at which `fold` has ended."""
        return cast("Record | None", self._loop.last_record())

    def decode(self, value: bytes) -> object:
        """Decode a message after `fold`, which has decoded the first already."""
        body = self._loop.take_body()
        if body is None:
            return self._updates.decode(value)
        return body
