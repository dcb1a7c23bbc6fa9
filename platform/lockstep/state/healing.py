"""The hot copy behind one address: opened when first needed, rebuilt when found damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.state.address import StateAddress
from lockstep.state.hot import HotCopy
from lockstep.state.hotfile import HotDamaged
from lockstep.state.hotfolder import HotFolder
from lockstep.state.recover import Recovered, Stamp, apply_stamped, encode_stamp, recover
from lockstep.state.schema import S, StateSchema
from lockstep.state.section import Change, in_blocks

T = TypeVar("T")


class LocalStateUnusable(EnvironmentProblem):
    """The local disk holds neither the hot copy nor a rebuilt one; usually it is full.

    Attributes:
        topic_id: Kafka's id of the topic's life.
        partition: Partition number.
        next_offset: The state is that of all offsets before this one, which are committed.
        reason: What lmdb or the system says.
    """

    def __init__(self, address: StateAddress, reason: str) -> None:
        super().__init__(
            f"no local copy of the {address} can be made: {reason}",
            next_step="free space on the local disk or set another `local_root`; nothing committed is lost",
        )
        self.topic_id, self.partition, self.next_offset = address.topic_id, address.partition, address.next_offset
        self.reason = reason


class HealingCopy(Generic[S]):
    """Uses a hot copy and makes it anew, once, when a use finds it damaged.

    Attributes:
        recovered: How the copy last came to the address's state; None before its first use.
    """

    def __init__(self, address: StateAddress, durable: Path, hot: HotFolder, schema: StateSchema[S]) -> None:
        self.recovered: Recovered | None = None
        self._address = address
        self._durable = durable
        self._hot = hot
        self._schema = schema
        self._copy: HotCopy | None = None

    def use(self, action: Callable[[HotCopy], T]) -> T:
        """Do something with a copy that holds the address's state.

        Raises:
            StateError: It had to be rebuilt and the durable state does not allow it.
            LocalStateUnusable: A rebuilt copy was damaged, too.
        """
        try:
            return action(self._current())
        except HotDamaged:
            self._throw_away()
        try:
            return action(self._current())
        except HotDamaged as error:
            self._throw_away()
            raise LocalStateUnusable(self._address, str(error)) from error

    def advance(self, changes: Iterable[Change], stamp: Stamp) -> None:
        """Apply what the durable file holds already; a copy that cannot take it is thrown away."""
        try:
            copy = self._current()
            if not copy.is_private:
                apply_stamped(copy, in_blocks(changes), encode_stamp(stamp))
        except HotDamaged:
            self._throw_away()

    def close(self) -> None:
        """Let go of the copy. May be called again."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _current(self) -> HotCopy:
        # Another user may have moved on a copy that was closed for want of handles: recover again.
        if self._copy is None or not self._copy.is_open:
            self._copy = self._hot.open(self._address.topic_id, self._address.partition)
            try:
                self.recovered = recover(self._copy, self._address, self._durable, self._schema)
            except LockstepError:
                self.close()  # it does not hold the state, and must not be taken for it
                raise
        return self._copy

    def _throw_away(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None and copy.is_open:
            try:
                copy.reset()
            except HotDamaged:
                pass  # not even emptied: the next use finds no stamp, or the damage again
            finally:
                copy.close()
