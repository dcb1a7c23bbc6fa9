"""One try of a task: the whole of it, or less after a limit of the machine or of a library.

A limit ends ranges earlier. The rest is planned again in the next batch, which is due immediately.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.limits import EngineLimit, LimitKind, describe_error, find_limit
from lockstep.engine.protocol import PlannedRange
from lockstep.model.position import TopicIdPartition
from lockstep.state.codec import StateNotOfItsType


class Attempt(msgspec.Struct, frozen=True):
    """One try of a task.

    Attributes:
        ranges: The ranges of the task that this attempt reads.
        compiled: The stream; without the extension after a panic.
        turn: Selects which ranges are left out first; differs in each batch.
        ends: Earlier ends of ranges, by partition.
        trouble: Why ranges end earlier.
        unstorable: Sessions whose states an earlier attempt could not store, by partition.
        judges_panics: The only message of this attempt makes a library panic.
    """

    ranges: tuple[PlannedRange, ...]
    compiled: CompiledStream
    turn: int = 0
    ends: Mapping[TopicIdPartition, int] = {}
    trouble: str | None = None
    unstorable: Mapping[TopicIdPartition, frozenset[str]] = {}
    judges_panics: bool = False

    def find_end(self, planned: PlannedRange) -> int:
        """The end of a range in this attempt."""
        return self.ends.get(planned.position.key, planned.until)

    def find_share(self, planned: PlannedRange) -> float:
        """The share of a range in the rows that the task may emit: that of its messages."""
        messages = sum(item.messages + item.beyond for item in self.ranges)
        return (planned.messages + planned.beyond) / messages if messages else 1.0

    def after_unstorable(self, error: StateNotOfItsType) -> Attempt:
        """The next attempt checks the sessions of an error after each of their messages.

        Raises:
            StateNotOfItsType: The messages are not to blame.
        """
        key = error.partition
        if key is None:
            raise error
        checked = self.unstorable.get(key, frozenset[str]())
        if error.sessions <= checked:  # checked after each message already: the fold left another type
            raise error
        return msgspec.structs.replace(self, unstorable={**self.unstorable, key: checked | error.sessions})

    def after_limit(self, error: BaseException) -> Attempt:
        """The next attempt reads less, without the extension if that panicked.

        1. The extension is not used after a panic.
        2. The range ends before the message during which the limit was reached first.
        3. All ranges are halved, down to one message each.
        4. Half of the ranges are left out, down to one.
        5. If a library panics on the only message, that is an error of the message.

        Raises:
            EngineLimit: The limit is reached with one message alone.
            BaseException: The error is not that of a limit.
        """
        limit = find_limit(error)
        if limit in {None, LimitKind.WORKER_MEMORY}:  # the memory of this worker stays: it ends
            raise error
        if limit is LimitKind.PANIC and self.compiled.uses_extension:
            return msgspec.structs.replace(self, compiled=self.compiled.without_extension())  # 1
        trouble = f"the range ended earlier for lack of {limit.resource}: {describe_error(error)}"
        narrower = msgspec.structs.replace(self, trouble=trouble)
        if (ends := self._end_before(error) or self._halve_messages()) is not None:  # 2, 3
            return msgspec.structs.replace(narrower, ends=ends)
        if len(self.ranges) > 1:
            # The other half in the next batch: the same ranges must not be left out of each batch.
            half = self.ranges[self.turn % 2 :: 2]
            return msgspec.structs.replace(narrower, ranges=half, turn=self.turn // 2)  # 4
        if limit is LimitKind.PANIC and not self.judges_panics:
            return msgspec.structs.replace(self, judges_panics=True)  # 5
        raise EngineLimit(limit, describe_error(error), alone=_describe_place(self.ranges[0])) from error

    def _end_before(self, error: BaseException) -> Mapping[TopicIdPartition, int] | None:
        """The ends, if a range was not ended earlier yet, and has messages before the one of an error."""
        if not isinstance(error, EngineLimit) or error.key is None or error.key in self.ends:
            return None
        starts = {item.position.key: item.position.next_offset for item in self.ranges}
        offset = error.offset or 0
        if offset <= starts[error.key]:
            return None
        return {**self.ends, error.key: offset}

    def _halve_messages(self) -> Mapping[TopicIdPartition, int] | None:
        """The ends with half of the messages of each range; None if none has more than one."""
        counts = {item.position.key: self.find_end(item) - item.position.next_offset for item in self.ranges}
        if max(counts.values(), default=0) <= 1:
            return None
        ends = dict[TopicIdPartition, int]()
        for item in self.ranges:
            key = item.position.key
            ends[key] = item.position.next_offset + (counts[key] + 1) // 2  # rounded up: progress of one message
        return ends


def _describe_place(planned: PlannedRange) -> str:
    position = planned.position
    return f"{position.topic}/{position.partition}@{position.next_offset}"
