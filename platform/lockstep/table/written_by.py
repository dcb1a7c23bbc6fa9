"""The batch that wrote a file, from the file's name, so that clean-up needs no clock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from lockstep.table.head import Head


_LABEL = re.compile(r"(?:^|-)g(\d+)-e(\d+)-b(\d+)-[0-9a-f]{32}\.")


class WrittenBy(msgspec.Struct, frozen=True):
    """The batch for which a task, or an operation that is a batch, wrote a file.

    Attributes:
        generation: The lineage of batches; of a promotion the lineage that starts with it.
        epoch: The writer; of an operation the epoch that it claims.
        batch: The batch, even if it was never committed.
    """

    generation: int
    epoch: int
    batch: int

    @property
    def label(self) -> str:
        """The label in the names of its files, before their uuid."""
        return f"g{self.generation}-e{self.epoch}-b{self.batch}"

    def is_over(self, head: Head) -> bool:
        """Whether no commit after a head can name a file of this batch any more.

        A batch is committed by the current epoch, as the one after the last. So files of an older epoch
        are fenced, and so are files of this epoch for a committed batch: they belong to another attempt. Epochs rise
        through all generations: if this generation started otherwise, the promotion that wrote the file did not start
        it.
        """
        if self.epoch != head.epoch:
            return self.epoch < head.epoch
        # The promotion that wrote it did not start this generation, or another attempt committed its batch.
        return self.generation != head.generation or self.batch <= head.batch


def read_written_by(name: str) -> WrittenBy | None:
    """Parse a file's name; None for files that no batch wrote, and for those of builds without it."""
    match = _LABEL.search(name)
    if match is not None:
        return WrittenBy(*map(int, match.groups()))
    return None
