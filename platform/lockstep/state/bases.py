"""Reads all entries of a state, and writes them as a base."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from lockstep.model.position import SegmentRef
from lockstep.state.changelog import (
    CompressedBlocks,
    SegmentHeader,
    StateFileWriter,
    StateVersion,
    read_segment,
)
from lockstep.state.entry_order import Change, is_removed, sort_changes, split_changes, to_prefix


def add_base(
    writer: StateFileWriter, version: StateVersion, header: SegmentHeader | None, entries: dict[bytes, bytes]
) -> tuple[SegmentRef, CompressedBlocks] | None:
    """Write entries as the base of a version, with the types of an earlier header; None without entries."""
    if header is None or not entries:
        return None
    packed = writer.pack(sort_changes(entries.items()))
    base = msgspec.structs.replace(
        header,
        generation=version.generation,
        topic_id=version.topic_id,
        partition=version.partition,
        next_offset=version.next_offset,
        chain=(),
        base_bytes=packed.size,
        delta_bytes=0,
        level=0,
        levels=(),
        merged=(),
        entries=packed.entries,
    )
    return writer.add(base, packed), packed


def read_entries(folder: Path, version: StateVersion) -> tuple[SegmentHeader | None, dict[bytes, bytes]]:
    """The newest header and all entries of a state. Raises StateDamaged."""
    if version.segment is None:
        return None, {}
    head = read_segment(folder, version.segment, version)
    refs = (*head.header.chain, version.segment)
    entries: dict[bytes, bytes] = {}
    for ref in refs:
        apply_blocks(entries, read_segment(folder, ref, version).blocks())
    return head.header, entries


def apply_blocks(entries: dict[bytes, bytes], blocks: Iterable[list[Change]]) -> None:
    """Apply the changes of a segment to entries in memory."""
    for block in blocks:
        removals, others = split_changes(block)
        if removals:
            removed = {to_prefix(removal) for removal in removals}
            for key in [key for key in entries if is_removed(key, removed)]:
                del entries[key]
        for key, value in others:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
