"""Which shape each stored value of a partition has, when a state type changed under a stream that lives.

A value without a mark is of the section header's `plain` shape: the one that began the chain, with all
that old state survives (state/difference.py). After a change that it does not survive, values of the
new type lie over old ones in the same chain, so they carry a mark: a byte that begins no msgpack value,
and the hash of their shape. The next state base gives today's values without a mark and marks the others,
so that values nobody touched are carried on as they are, and are migrated when they are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from lockstep.state.section import Change, SectionHeader
from lockstep.state.shape import Shape, shape_hash

MARK = 0xC1
"""The only byte that msgpack never uses."""
MARK_BYTES = 17
RESERVED_FROM, ROWS = 0xF8, 0xF9
"""No session begins with a byte from 0xf8 on (UTF-8 has none); rows of tables lie under 0xf9. What lies under
the others is lockstep's own and is of no state type."""


class Versions(msgspec.Struct, frozen=True):
    """The shapes of the values of one partition.

    Attributes:
        plain: Hash of the shape of values without a mark.
        shapes: All shapes that values may have, by hash.
    """

    plain: str
    shapes: dict[str, Shape]

    @property
    def is_mixed(self) -> bool:
        """Whether values of more than one type may lie there."""
        return len(self.shapes) > 1


def versions_of(header: SectionHeader) -> Versions:
    """What a header says of the values in its chain."""
    named = {header.shape_hash: header.shape} | {shape_hash(shape): shape for shape in header.older}
    if header.plain is None:
        return Versions(header.shape_hash, named)
    plain = shape_hash(header.plain)
    return Versions(plain, named | {plain: header.plain})


def is_session(key: bytes) -> bool:
    """Whether an entry is a session's own."""
    return key[:1] < bytes([RESERVED_FROM])


def is_typed(key: bytes) -> bool:
    """Whether an entry is of the state type, or of a part of it."""
    return is_session(key) or key[0] == ROWS


def mark_of(hashed: str) -> bytes:
    """What stands before a marked value."""
    return bytes([MARK]) + bytes.fromhex(hashed)


def parted(value: bytes) -> tuple[str | None, bytes]:
    """The hash of a value's mark, if it has one, and the value."""
    if value[0] != MARK:
        return None, value
    return value[1:MARK_BYTES].hex(), value[MARK_BYTES:]


class Rebased:
    """Carries values into a state base: those of today's type without a mark, all others with theirs.

    Attributes:
        is_other: Whether a value got other bytes than it had, once all entries have been taken.
    """

    def __init__(self, stored: Versions, plain: str, today: str) -> None:
        """Begin.

        Args:
            stored: The shapes of what is stored.
            plain: The hash that a value without a mark is taken for: today's where today's type reads it.
            today: Hash of today's shape.
        """
        self._stored, self._plain, self._today = stored, plain, today
        self._carried: set[str] = set()
        self.is_other = False

    @property
    def older(self) -> tuple[Shape, ...]:
        """Shapes other than today's that were carried."""
        return tuple(self._stored.shapes[hashed] for hashed in sorted(self._carried))

    def carry(self, entries: Iterable[Change]) -> Iterator[Change]:
        """The entries as the base has them."""
        for key, value in entries:
            if value is None or not is_typed(key):
                yield key, value
                continue
            carried = self._value(value)
            self.is_other |= len(carried) != len(value)
            yield key, carried

    def _value(self, stored: bytes) -> bytes:
        marked, value = parted(stored)
        hashed = marked or self._plain
        if hashed == self._today:
            return value
        self._carried.add(hashed)
        return mark_of(hashed) + value
