"""What the name of a file says of the batch that wrote it, so that clean-up needs no clock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from lockstep.table.delta_log import Head


_LABEL = re.compile(r"(?:^|-)g(\d+)-e(\d+)-b(\d+)-[0-9a-f]{32}\.")


class WrittenBy(msgspec.Struct, frozen=True, order=True):
    """The batch for which a task wrote a file. In order: what is smaller can only be committed before.

    Attributes:
        generation: The lineage of batches.
        epoch: The writer.
        batch: The batch, also where it never was committed.
    """

    generation: int
    epoch: int
    batch: int

    @property
    def label(self) -> str:
        """What stands in the names of its files, before their uuid."""
        return f"g{self.generation}-e{self.epoch}-b{self.batch}"

    def is_over(self, head: Head) -> bool:
        """Whether no commit after a head can name a file of this batch any more.

        A batch is committed by the epoch that holds the table, as the one after the last. So what an older epoch wrote
        is fenced, and so is what this epoch wrote for a batch that is committed: another attempt of it was.
        """
        return self <= WrittenBy(head.generation, head.epoch, head.batch)


def read_written_by(name: str) -> WrittenBy | None:
    """What a file's name says; None for files that no batch wrote, and for those of builds that did not say."""
    found = _LABEL.search(name)
    return WrittenBy(*map(int, found.groups())) if found is not None else None
