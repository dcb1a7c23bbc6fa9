"""What is stored of a partition, as a range sees it: the hot copy, and over it what the range has spilled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from lockstep.state.address import StateAddress
from lockstep.state.healing import HealingCopy, LocalStateUnusable
from lockstep.state.hot import HotCopy
from lockstep.state.hotfile import HotDamaged
from lockstep.state.hotfolder import HotFolder
from lockstep.state.schema import S
from lockstep.state.scratch import UNTOUCHED, Scratch, Untouched
from lockstep.state.section import Change

T = TypeVar("T")


class Stored(Generic[S]):
    """The entries behind one address, with the spilled changes of one range.

    Attributes:
        scratch: The spilled changes; None as long as there are none.
    """

    def __init__(self, address: StateAddress, copy: HealingCopy[S], hot: HotFolder) -> None:
        self._address, self._copy, self._hot = address, copy, hot
        self.scratch: Scratch | None = None

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one.

        Raises:
            StateError: The durable state is missing, damaged or of another type.
            LocalStateUnusable: The local disk cannot hold the state.
        """
        spilled = UNTOUCHED if self.scratch is None else self._local(lambda scratch: scratch.get(key))
        if not isinstance(spilled, Untouched):
            return spilled
        return None if self._address.section is None else self._copy.use(lambda copy: copy.get(key))

    def scan(self, prefix: bytes) -> Iterable[tuple[bytes, bytes]]:
        """All entries whose keys begin so. Raises as `get` does."""
        found = {} if self._address.section is None else dict(self._copy.use(lambda copy: copy.scan_all(prefix)))
        for key, value in self._local(lambda scratch: list(scratch.scan(prefix))) if self.scratch is not None else ():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found.items()

    def reserved(self, prefix: bytes, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Reserved entries in order, of which nothing is spilled before the range ends. Raises as `get` does."""
        return [] if self._address.section is None else self._copy.use(lambda copy: copy.scan(prefix, after, most))

    def spill(self, changes: Sequence[Change]) -> None:
        """Put changes over what is stored. Raises LocalStateUnusable."""
        self._local(lambda scratch: scratch.put(changes))

    def unchanged(self, copy: HotCopy, changes: Sequence[Change] | Scratch) -> Iterator[Change]:
        """The entries of the hot copy that are not changed."""
        if isinstance(changes, Scratch):
            return ((key, value) for key, value in copy.items() if key not in changes)
        return iter(copy.items(without=[key for key, _ in changes]))

    def forget(self) -> None:
        """Forget what was spilled. May be called again."""
        if self.scratch is not None:
            self.scratch.close()
            self.scratch = None

    def _local(self, action: Callable[[Scratch], T]) -> T:
        try:
            if self.scratch is None:
                self.scratch = Scratch(self._hot.private())
            return action(self.scratch)
        except HotDamaged as error:
            raise LocalStateUnusable(self._address, str(error)) from error
