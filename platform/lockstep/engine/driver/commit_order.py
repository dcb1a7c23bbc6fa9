"""An operator's order to commit waiting messages now, although they do not fill a file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from lockstep.control.handover import take_commit_request
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Position, TopicIdPartition

LOG = logging.getLogger("lockstep")


def narrow_to_ends(
    wanted: Mapping[TopicIdPartition, int], ends: Mapping[TopicIdPartition, PartitionOffsets]
) -> dict[TopicIdPartition, int]:
    """Wanted offsets, none beyond the end of its log: a truncated log no longer has the messages before. Pure."""
    narrowed = dict(wanted)
    for key, until in wanted.items():
        if key in ends:
            narrowed[key] = min(until, ends[key].stable_end)
    return narrowed


class CommitOrder:
    """The order of a run, which ends once the messages of its moment are committed. No later run repeats it."""

    def __init__(self, control: Path, epoch: int) -> None:
        """No order yet.

        Args:
            control: The stream's folder of heartbeats and requests.
            epoch: Epoch of the writer.
        """
        self._control = control
        self._epoch = epoch
        self._is_new = False
        self._wanted: dict[TopicIdPartition, int] = {}

    def poll(self) -> None:
        """Take an operator's request: for the messages up to the ends that are read after it."""
        request = take_commit_request(self._control, self._epoch)
        if request is not None:
            self._is_new = True
            LOG.info("waiting messages are committed now, as %s asked", request.who)

    def is_due(
        self, positions: Mapping[TopicIdPartition, Position], ends: Mapping[TopicIdPartition, PartitionOffsets]
    ) -> bool:
        """Whether messages of the order wait in a partition that can be read, as far as a truncated log has them.

        Args:
            positions: Positions of the partitions that are read.
            ends: Offsets of the partitions that have a leader.
        """
        if self._is_new:
            self._is_new = False
            self._wanted = {key: end.stable_end for key, end in ends.items()}
        unread = dict[TopicIdPartition, int]()
        for key, until in narrow_to_ends(self._wanted, ends).items():
            if key in positions and positions[key].next_offset < until:
                unread[key] = until
        self._wanted = unread
        return not self._wanted.keys().isdisjoint(ends)
