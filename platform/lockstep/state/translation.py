"""Writes the state of partitions again for their copies in another cluster, whose topic ids and offsets are others.

Offsets in a state are compared, never used as addresses: the start of a session, and its clock's last offset. Any
mapping works that keeps their order, and stays below the new position. If the new position is not lower than
the old one, the offsets stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from lockstep.errors import StateError
from lockstep.integrity.gate_states import ActiveSession, GateState, SuspensionMark
from lockstep.model.position import Position, SuspendedSession
from lockstep.state.bases import add_base, read_entries
from lockstep.state.changelog import StateFileWriter, make_empty_state, make_state_version
from lockstep.state.relocation import RelocatedState, digest_position, make_relocated
from lockstep.state.timers import CLOCK, HELD
from lockstep.state.values import MARK, MARK_BYTES, is_session

_VALUES = msgspec.msgpack.Decoder(tuple[GateState, msgspec.Raw])
_CLOCKS = msgspec.msgpack.Decoder(list[int])
_ENCODER = msgspec.msgpack.Encoder()


class NotTranslatable(StateError):
    """The state of a partition cannot continue in a mirrored cluster.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
    """

    def __init__(self, position: Position, problem: str) -> None:
        super().__init__(
            f"{position.topic}/{position.partition}: {problem}",
            next_step="let the stream read on in its own cluster, and export another savepoint",
        )
        self.topic = position.topic
        self.partition = position.partition


class OffsetMap:
    """Maps the offsets before a position to offsets before its place in the mirrored cluster; in order. Pure."""

    def __init__(self, source: Position, next_offset: int) -> None:
        """Map the offsets of one partition.

        Args:
            source: The position in its own cluster.
            next_offset: Its place in the mirrored cluster.

        Raises:
            NotTranslatable: An operator gave up offsets after the position, or too few offsets are left.
        """
        self._lower_by = max(0, source.next_offset - next_offset)
        limits = {source.suspended_from, *(skip.before for skip in source.suspended_sessions)}
        self._limits: list[tuple[int, int]] = []
        lowest = 1
        for limit in sorted(limits):
            if limit <= 0:
                continue
            if limit > source.next_offset:
                problem = f"an operator gave up offsets up to {limit}, which are not read yet"
                raise NotTranslatable(source, problem)
            new_limit = max(lowest, limit - self._lower_by)
            self._limits.append((limit, new_limit))
            lowest = new_limit + 1  # different limits stay different
        room = next_offset
        if self._limits and self._limits[-1][0] < source.next_offset:
            room -= 1
        if self._limits and self._limits[-1][1] > room:
            raise NotTranslatable(source, f"its suspensions do not fit before offset {next_offset}")

    @property
    def is_lowering(self) -> bool:
        """Whether offsets change."""
        return self._lower_by > 0

    def translate(self, offset: int) -> int:
        """The place of an offset."""
        if offset < 0 or not self._lower_by:
            return offset
        least = max((new for old, new in self._limits if old <= offset), default=0)
        return max(offset - self._lower_by, least)


class Translation(msgspec.Struct, frozen=True):
    """A partition that continues in a mirrored cluster.

    Attributes:
        source: Its position, with its state.
        topic: Name of its topic there.
        topic_id: Kafka's id of that topic.
        next_offset: Its position there.
    """

    source: Position
    topic: str
    topic_id: str
    next_offset: int

    @property
    def offsets(self) -> OffsetMap:
        """The places of its offsets. Raises NotTranslatable."""
        return OffsetMap(self.source, self.next_offset)

    def make_position(self) -> Position:
        """The position there, without state.

        Raises:
            NotTranslatable: Records of a truncated log are being skipped, or as `OffsetMap` does.
        """
        source = self.source
        offsets = self.offsets
        if source.catching_up:
            raise NotTranslatable(source, "its log was truncated, and records up to the position are still skipped")
        skipped = list[SuspendedSession]()
        for skip in source.suspended_sessions:
            skipped.append(SuspendedSession(skip.session, offsets.translate(skip.before)))
        joined_at = 0
        if source.joined_at:  # 0 would be a log that was read from its start
            joined_at = max(1, offsets.translate(source.joined_at))
        return msgspec.structs.replace(
            source,
            topic=self.topic,
            topic_id=self.topic_id,
            next_offset=self.next_offset,
            leader_epoch=None,
            state=None,
            suspended_from=offsets.translate(source.suspended_from),
            suspended_sessions=tuple(skipped),
            lost_before=offsets.translate(source.lost_before),
            joined_at=joined_at,
        )


def translate_state(
    source: Path, moves: Sequence[Translation], target: Path, *, generation: int, label: str
) -> RelocatedState:
    """Write the state of partitions as bases for their copies in another cluster; nothing refers to them yet.

    Args:
        source: The state folder that has it; all segments of one generation, `generation`.
        moves: The partitions, in the order of the topic ids there.
        target: The state folder of the other table.
        generation: The generation that will read the copy.
        label: Names the batch that will refer to the copy.

    Raises:
        StateDamaged: A file is missing or damaged.
        NotTranslatable: Messages are buffered, or as `Translation` does.
    """
    moved = list[Position]()
    digest = hashlib.sha256()
    with StateFileWriter.open(target, label) as writer:
        for move in moves:
            position = move.make_position()
            header, entries = read_entries(source, make_state_version(generation, move.source))
            target_version = make_empty_state(generation, position.topic_id, position.partition, position.next_offset)
            base = add_base(writer, target_version, header, dict(_translate(move, entries.items())))
            digest.update(digest_position(position))
            segment = None
            if base is not None:
                segment, packed = base
                for block in packed.blocks:
                    digest.update(block)
            moved.append(msgspec.structs.replace(position, state=segment))
    return make_relocated(moved, digest.hexdigest(), target / writer.name)


def check_translatable(source: Path, moves: Iterable[Translation], *, generation: int) -> None:
    """Check that state can continue in another cluster, without writing. Raises as `translate_state`."""
    for move in moves:
        move.make_position()
        _, entries = read_entries(source, make_state_version(generation, move.source))
        for _ in _translate(move, entries.items()):
            pass


def _translate(move: Translation, entries: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    offsets = move.offsets
    for key, value in sorted(entries):
        if key[:1] == HELD:
            problem = "messages are buffered, which the mirrored cluster has at other offsets"
            raise NotTranslatable(move.source, problem)
        if not offsets.is_lowering:
            yield key, value
        elif key[:1] == CLOCK:
            armed_us, seen_us, offset = _CLOCKS.decode(value)
            yield key, _ENCODER.encode([armed_us, seen_us, offsets.translate(offset)])
        elif is_session(key):
            yield key, _translate_session(offsets, value)
        else:
            yield key, value


def _translate_session(offsets: OffsetMap, stored: bytes) -> bytes:
    """Translate the offsets of a suspension; the user's state stays as it is, byte by byte."""
    tag = stored[:MARK_BYTES] if stored[0] == MARK else b""
    gate, state = _VALUES.decode(stored[len(tag) :])
    if not isinstance(gate, ActiveSession | SuspensionMark):
        return stored
    moved = replace(gate, began_at=offsets.translate(gate.began_at))
    if isinstance(moved, SuspensionMark):
        moved = replace(moved, since=offsets.translate(moved.since))
    return tag + _ENCODER.encode((moved, state))
