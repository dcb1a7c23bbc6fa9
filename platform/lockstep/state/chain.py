"""Decisions over chains of sections: when to write a state base, what a hot copy must read. Pure."""

from __future__ import annotations

import zlib
from enum import Enum

import msgspec

from lockstep.state.address import SectionRef
from lockstep.state.section import SectionHeader

CHAIN_MAX = 64
"""Sections in a chain at most. A rebuild opens one file per section (some 50 us each) and a header
carries the whole chain (some 30 bytes each, compressed), so longer chains cost every batch; shorter
ones copy a large, slowly changing state too often."""


class Recovery(Enum):
    """How a hot copy came to the state that was asked for."""

    CURRENT = "current"
    """It held exactly this state."""
    ROLLED_FORWARD = "rolled forward"
    """It held an earlier state of the same chain."""
    REBUILT = "rebuilt"
    """It was made anew from the state base and its deltas, or is empty as the state is."""


class Reading(msgspec.Struct, frozen=True):
    """What has to be read to bring a hot copy to a state.

    Attributes:
        recovery: How the hot copy comes to the state.
        sections: The sections to apply, in order.
    """

    recovery: Recovery
    sections: tuple[SectionRef, ...]


def reading(held: SectionRef | None, head: SectionRef, chain: tuple[SectionRef, ...]) -> Reading:
    """What to read when a copy holds the state of one section and that of `head` is wanted.

    Args:
        held: The section whose state the copy holds; None when that is not known.
        head: The section whose state is wanted.
        chain: What comes before `head`, from its state base on.
    """
    whole = (*chain, head)
    if held not in whole:
        return Reading(Recovery.REBUILT, whole)
    missing = whole[whole.index(held) + 1 :]
    return Reading(Recovery.ROLLED_FORWARD if missing else Recovery.CURRENT, missing)


def base_is_due(header: SectionHeader, size: int) -> bool:
    """Whether the next section is a full copy: deltas would outgrow the base, or the chain its limit.

    Args:
        header: Header of the newest section.
        size: Bytes of the changes to be written, before compression.
    """
    if header.delta_bytes + size >= header.base_bytes:
        return True
    return len(header.chain) + 1 >= chain_limit(header.topic_id, header.partition)


def appended(header: SectionHeader, head: SectionHeader, head_ref: SectionRef) -> SectionHeader:
    """The header of a delta: `header` put behind the section `head` that lies at `head_ref`."""
    return msgspec.structs.replace(
        header,
        chain=(*head.chain, head_ref),
        base_bytes=head.base_bytes,
        delta_bytes=head.delta_bytes + header.base_bytes,
    )


def chain_limit(topic_id: str, partition: int) -> int:
    """Sections after which this partition writes a base: spread, so that not all do in one batch."""
    spread = CHAIN_MAX // 2
    return CHAIN_MAX - zlib.crc32(f"{topic_id}/{partition}".encode()) % spread
