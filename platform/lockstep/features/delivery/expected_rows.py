"""The delivered rows of a table, read again for a proof."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from lockstep.declare.delivery import Delivery
from lockstep.declare.delivery_target import DeadRow, DeliveredRow, DeliveryToken, RowIdentity
from lockstep.declare.stream import AnyStream
from lockstep.features.delivery.compare import ComparedBatches
from lockstep.features.delivery.decode import RowDecoder
from lockstep.features.delivery.steps import PlacedRows, TableSnapshot, plan_step, plan_steps, read_ends
from lockstep.table.commit import Base
from lockstep.table.layout import StreamFolders


class TableReading(NamedTuple):
    """A table at one version."""

    folders: StreamFolders
    base: Base


class NewestRow(NamedTuple):
    """The last row of a key.

    Attributes:
        place: Its place in the order of delivery: batch and identity.
        content: Its content; None if it removes the key.
        row: Names it.
    """

    place: tuple[int, RowIdentity]
    content: bytes | None
    row: str


class EncodedRow(NamedTuple):
    """Key and content of a row; no content if it removes the key."""

    key: bytes
    content: bytes | None


class ExpectedRows:
    """Reads the rows that a delivery has delivered, as its functions make them now."""

    def __init__(
        self, delivery: Delivery, stream: AnyStream, table: TableReading, dead: Iterable[DeadRow] = ()
    ) -> None:
        """Read nothing yet.

        Args:
            delivery: The delivery.
            stream: Its stream.
            table: The table.
            dead: Rows that were left out.
        """
        self._dead = frozenset((each.generation, each.row) for each in dead)
        self._delivery = delivery
        self._decoder = RowDecoder(stream.types.row)
        self._folders = table.folders
        self._head = table.base.head
        self._snapshot = TableSnapshot(table.folders, table.base)

    def read_batches(self, batches: ComparedBatches) -> Iterator[DeliveredRow]:
        """Read the rows of whole batches, in the order of identity inside of several batches."""
        ends = read_ends(self._folders, self._head, batches.since)
        for step in plan_steps(self._folders, self._head, batches.since, batches.until, ends):
            for placed in self._snapshot.read_rows(step):
                yield from self._choose(placed)

    def read_started(self, token: DeliveryToken) -> Iterator[DeliveredRow]:
        """Read the rows that are done of a step in progress."""
        if token.last is None:
            return
        ends = read_ends(self._folders, self._head, token.batch)
        step = plan_step(self._folders, self._head, token.batch, token.step_batch, ends)
        for placed in self._snapshot.read_rows(step):
            for row in self._choose(placed):
                if row.origin.identity > token.last:
                    return
                yield row

    def find_newest(
        self, batches: ComparedBatches, token: DeliveryToken, encode: Callable[[DeliveredRow], EncodedRow]
    ) -> dict[bytes, NewestRow]:
        """Find the last row of each key that is delivered, also of a step in progress."""
        newest = dict[bytes, NewestRow]()
        for row in chain(self.read_batches(batches), self.read_started(token)):
            key, content = encode(row)
            place = (row.origin.batch, row.origin.identity)
            if key not in newest or place > newest[key].place:
                newest[key] = NewestRow(place, content, f"key {row.origin.identity} of batch {row.origin.batch}")
        return newest

    def _choose(self, placed: PlacedRows) -> Iterator[DeliveredRow]:
        for row, origin in zip(*self._decoder.decode(placed), strict=True):
            if self._dead and (origin.generation, origin.identity) in self._dead:
                continue
            value = self._delivery.choose(row, origin)
            if value is not None:
                yield DeliveredRow(value, origin)
