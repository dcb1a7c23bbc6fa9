"""Copies the state of partitions to another stream, segment by segment: the entries stay as they are, byte by byte.

The copy is one file of the other stream, named for the batch that will refer to it, so that clean-up recognizes it as
in flight. Its headers are new: chain, generation and file are those of the other stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from lockstep.model.position import Position, SegmentRef
from lockstep.progress import report_items
from lockstep.state.changelog import CompressedBlocks, StateFileWriter, make_state_version, read_header, read_segment


class RelocatedState(msgspec.Struct, frozen=True):
    """The positions with the addresses of their copied state.

    Attributes:
        positions: In the order in which they were given.
        digest: SHA-256 of the positions and of all entries, as `lockstep verify` computes it.
        needs: The file that was written, with its size; empty if no partition has state.
    """

    positions: tuple[Position, ...]
    digest: str
    needs: dict[Path, int]


def take_state(
    source: Path, positions: Iterable[tuple[int, Position]], target: Path, *, generation: int, label: str
) -> RelocatedState:
    """Copy the state of positions into one synced file of another stream. Nothing refers to it yet.

    Args:
        source: The state folder that holds it.
        positions: Each with the generation of the batches that read it.
        target: The state folder of the other stream.
        generation: The generation that will read the copy.
        label: Names the batch that will refer to the copy.

    Raises:
        StateDamaged: A file is missing or damaged.
    """
    moved = list[Position]()
    digest = hashlib.sha256()
    all_positions = list(positions)
    with StateFileWriter.open(target, label) as writer:
        for read_by, position in report_items(all_positions, "copying state of partitions", len(all_positions)):
            digest.update(digest_position(position))
            segment: SegmentRef | None = None
            if position.state is not None:
                segment = _copy(source, read_by, position, writer, generation, digest)
            moved.append(msgspec.structs.replace(position, state=segment))
    return make_relocated(moved, digest.hexdigest(), target / writer.name)


def make_relocated(positions: list[Position], digest: str, file: Path) -> RelocatedState:
    """The result for positions whose state is in one file, if any has state."""
    ends = [position.state.start + position.state.length for position in positions if position.state is not None]
    needs = {file: max(ends)} if ends else {}
    return RelocatedState(tuple(positions), digest, needs)


def digest_position(position: Position) -> bytes:
    """The parts of a position that decide which rows follow; the proof writes the same from the ledger."""
    skipped = [[skip.session, skip.before] for skip in position.suspended_sessions]
    parts = (position.topic_id, position.partition, position.next_offset, position.watermark_us, position.rows_emitted)
    return msgspec.json.encode([*parts, position.suspended_from, skipped, position.catching_up, position.joined_at])


def _copy(
    source: Path, read_by: int, position: Position, writer: StateFileWriter, generation: int, digest: hashlib._Hash
) -> SegmentRef | None:
    version = make_state_version(read_by, position)
    last = position.state
    chain = () if last is None else (*read_header(source, last).chain, last)
    refs = list[SegmentRef]()
    for ref in chain:
        segment = read_segment(source, ref, version)
        digest.update(segment.body)
        until = position.next_offset if ref == last else segment.header.next_offset
        # The copied segments have new names: the names of those that were merged mean nothing in the copy.
        header = msgspec.structs.replace(
            segment.header, chain=tuple(refs), generation=generation, next_offset=until, merged=()
        )
        refs.append(writer.add(header, CompressedBlocks((bytes(segment.body),), header.entries, 0)))
    return refs[-1] if refs else None
