"""Brings a hot copy to the state of an address: as it is, rolled forward, or rebuilt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from lockstep.state.address import SectionRef, StateAddress
from lockstep.state.chain import Reading, Recovery, reading
from lockstep.state.durable import read_section
from lockstep.state.hot import HotCopy
from lockstep.state.schema import S, StateSchema
from lockstep.state.section import Change, Section, SectionHeader, StateDamaged, check_header
from lockstep.state.versions import versions_of


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """What a hot copy says of itself: the section whose state it holds, with its header.

    The header is kept so that the next delta can be written without reading a file.
    """

    section: SectionRef
    header: SectionHeader


class Recovered(msgspec.Struct, frozen=True):
    """How a hot copy came to its state.

    Attributes:
        header: Header of the address's section; None for an empty state.
        recovery: Whether it was current, rolled forward or rebuilt.
        sections: Sections read from durable files.
    """

    header: SectionHeader | None
    recovery: Recovery
    sections: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_STAMPS = msgspec.msgpack.Decoder(Stamp)


def encode_stamp(stamp: Stamp) -> bytes:
    """The bytes of a stamp."""
    return _ENCODER.encode(stamp)


def recover(copy: HotCopy, address: StateAddress, folder: Path, schema: StateSchema[S]) -> Recovered:
    """Make `copy` hold the state of `address`.

    Args:
        copy: The copy, under its lock.
        address: The state that is wanted.
        folder: The stream's folder of durable files.
        schema: The state type of today.

    Raises:
        StateDamaged: A durable file that is needed is missing or wrong.
        StateTypeChanged: The state was written by a type that today's cannot read.
        HotDamaged: The copy is of no use.
    """
    stamp = _stamp(copy)
    if address.section is None:
        return _emptied(copy)
    if stamp is not None and stamp.section == address.section:
        check_header(stamp.header, str(stamp.section), address)
        schema.accept(versions_of(stamp.header).shapes, str(stamp.section))
        return Recovered(stamp.header, Recovery.CURRENT)
    head = read_section(folder, address.section, address)
    schema.accept(versions_of(head.header).shapes, head.place)  # the rules of difference.py cover what lies before it
    plan = reading(stamp.section if stamp else None, address.section, head.header.chain)
    if plan.recovery is Recovery.REBUILT:
        copy.reset()
    for ref in plan.sections:
        section = head if ref == address.section else read_section(folder, ref, address)
        _check_place_in_chain(section, ref, (*head.header.chain, address.section))
        apply_stamped(copy, section.blocks(), encode_stamp(Stamp(ref, section.header)))
    return Recovered(head.header, plan.recovery, _sections_read(plan))


def _stamp(copy: HotCopy) -> Stamp | None:
    """The copy's stamp; None when it has none that can be read."""
    stamped = copy.stamp()
    try:
        return None if stamped is None else _STAMPS.decode(stamped)
    except msgspec.MsgspecError:
        return None


def _emptied(copy: HotCopy) -> Recovered:
    if copy.is_empty():
        return Recovered(None, Recovery.CURRENT)
    copy.reset()
    return Recovered(None, Recovery.REBUILT)


def _check_place_in_chain(section: Section, ref: SectionRef, whole: tuple[SectionRef, ...]) -> None:
    expected = whole[: whole.index(ref)]
    if section.header.chain != expected:
        raise StateDamaged(section.place, f"the chain {expected} before it", section.header.chain)


def apply_stamped(copy: HotCopy, blocks: Iterable[list[Change]], stamp: bytes) -> None:
    """Apply changes block by block, stamped in the last transaction: a copy cut short has no stamp."""
    waiting = None
    for block in blocks:
        if waiting is not None:
            copy.apply(waiting, None)
        waiting = block
    copy.apply(waiting or [], stamp)


def _sections_read(plan: Reading) -> int:
    return max(1, len(plan.sections))
