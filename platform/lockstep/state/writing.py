"""Writes what a range changed as the next section of its partition: a delta, or a state base when one is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain as chain_iterables
from typing import Generic

import msgspec

from lockstep.state.address import StateAddress
from lockstep.state.chain import appended, base_is_due
from lockstep.state.durable import StateFileWriter
from lockstep.state.healing import HealingCopy
from lockstep.state.recover import Stamp
from lockstep.state.schema import S, StateSchema
from lockstep.state.scratch import Scratch
from lockstep.state.section import Change, Packed, SectionHeader, change_bytes
from lockstep.state.stored import Stored
from lockstep.state.translation import Translation
from lockstep.state.versions import Rebased

Changes = Sequence[Change] | Scratch
"""What a range changed: in memory, or spilled."""


class Written(msgspec.Struct, frozen=True):
    """What went into the durable file and waits to go into the hot copy.

    Attributes:
        writer: The file.
        changes: What changed.
        stamp: What the hot copy is then.
        is_rebased: The section has other bytes for values that the hot copy holds, too: it is to be made from it.
    """

    writer: StateFileWriter
    changes: Changes
    stamp: Stamp
    is_rebased: bool


class SectionWriting(Generic[S]):
    """Writes the section that follows the one of an address."""

    def __init__(self, address: StateAddress, schema: StateSchema[S], copy: HealingCopy[S], stored: Stored[S]) -> None:
        self._address, self._schema, self._copy, self._stored = address, schema, copy, stored

    def write(self, changes: Changes, writer: StateFileWriter, next_offset: int, head: SectionHeader | None) -> Written:
        """Add the next section to the file of a task and batch.

        Args:
            changes: What the range changed.
            writer: The file.
            next_offset: Where the range ended.
            head: Header of the section of the address.
        """
        typed = Translation(self._schema, head)
        rebased = typed.rebased()
        size = changes.size if isinstance(changes, Scratch) else sum(map(change_bytes, changes))
        if head is None or self._address.section is None or base_is_due(head, size):
            packed = self._whole(changes, writer, rebased)
            header = msgspec.structs.replace(self._header(packed, next_offset), older=rebased.older)
        else:
            packed = writer.pack(changes)
            mixed = msgspec.structs.replace(self._header(packed, next_offset), plain=typed.plain, older=typed.older)
            header = appended(mixed, head, self._address.section)
        return Written(writer, changes, Stamp(writer.add(header, packed), header), rebased.is_other)

    def _header(self, packed: Packed, next_offset: int) -> SectionHeader:
        address = self._address
        return SectionHeader(
            generation=address.generation,
            topic_id=address.topic_id,
            partition=address.partition,
            next_offset=next_offset,
            chain=(),
            shape_hash=self._schema.hash,
            shape=self._schema.shape,
            base_bytes=packed.size,
            delta_bytes=0,
            entries=packed.entries,
        )

    def _whole(self, changes: Changes, writer: StateFileWriter, rebased: Rebased) -> Packed:
        """The full new state: what is stored and was not changed, then what was."""

        def kept() -> Iterator[Change]:
            return (change for change in changes if change[1] is not None)

        if self._address.section is None:
            return writer.pack(rebased.carry(kept()))
        return self._copy.use(
            lambda copy: writer.pack(rebased.carry(chain_iterables(self._stored.unchanged(copy, changes), kept())))
        )
