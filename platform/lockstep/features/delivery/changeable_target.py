"""Targets whose rows lockstep can delete: sessions that were erased, batches that were undone, or all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from lockstep.declare.delivery_target import DeliveryToken, TargetConnection
from lockstep.features.delivery.erasures import ErasedSession


class ChangeableTarget(TargetConnection):
    """A claimed target in which rows can be deleted. Raises as `TargetConnection.write`."""

    @abstractmethod
    def erase(self, sessions: Sequence[ErasedSession], token: DeliveryToken) -> int | None:
        """Delete the rows of erased sessions, together with the token.

        Returns:
            Number of deleted rows; None if the target cannot delete them: nothing was written.
        """

    @abstractmethod
    def retract(self, valid: Mapping[int, int], token: DeliveryToken) -> int | None:
        """Delete the rows of undone batches, together with the token.

        Args:
            valid: The last batch that counts of each generation.
            token: The position after the last batch that target and table have in common.

        Returns:
            Number of deleted rows; None if the target cannot delete them alone: nothing was written.
        """

    @abstractmethod
    def rebuild(self, token: DeliveryToken) -> AbstractContextManager[TargetConnection]:
        """Replace all rows by those that are written to the connection of the block.

        Args:
            token: The position before the first row.

        Returns:
            A block that ends with the new rows and the token of the last write in the target. A rebuild that is killed
            has changed nothing, or the next run ends it.
        """
