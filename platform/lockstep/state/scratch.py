"""Changes of a range that do not fit into memory: in a file of their own on the local disk, gone with the process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lockstep.state.hot import HotCopy
from lockstep.state.section import Change, change_bytes

_PUT, _REMOVED = b"+", b"-"


class Untouched:
    """Stands for an entry that the scratch file says nothing of."""


UNTOUCHED: Final = Untouched()


class Scratch:
    """Changed entries, the newest of each key, in the order of keys. Nobody else sees them; they survive nothing.

    Attributes:
        size: Bytes of all changes before compression.
    """

    def __init__(self, copy: HotCopy) -> None:
        """Use a private copy that is empty."""
        self._copy = copy
        self.size = 0

    def put(self, changes: Sequence[Change]) -> None:
        """Note changes, instead of earlier ones of the same keys."""
        for key, _ in changes:
            before = self.get(key)
            if not isinstance(before, Untouched):
                self.size -= change_bytes((key, before))
        self.size += sum(map(change_bytes, changes))
        self._copy.apply([(key, _REMOVED if value is None else _PUT + value) for key, value in changes], None)

    def get(self, key: bytes) -> bytes | Untouched | None:
        """The newest value of a key; None when it was removed."""
        held = self._copy.get(key)
        return UNTOUCHED if held is None else _value(held)

    def scan(self, prefix: bytes) -> Iterator[Change]:
        """The changes of all keys that begin so."""
        return ((key, _value(held)) for key, held in self._copy.scan_all(prefix))

    def __contains__(self, key: bytes) -> bool:
        """Whether an entry was changed."""
        return self._copy.get(key) is not None

    def __iter__(self) -> Iterator[Change]:
        """All changes."""
        return ((key, _value(held)) for key, held in self._copy.items())

    def close(self) -> None:
        """Give the file back. May be called again."""
        self._copy.close()


def _value(held: bytes) -> bytes | None:
    return held[1:] if held[:1] == _PUT else None
