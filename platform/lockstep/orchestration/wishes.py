"""Keeps what a person wished of a stream, so that no sensor undoes it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lockstep.engine.liveness import Phase, pulse
from lockstep.errors import Fenced
from lockstep.table import demands
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired

if TYPE_CHECKING:
    from lockstep.table.layout import StreamFolders

LOG = logging.getLogger("lockstep")


def record_stop(folders: StreamFolders, reason: str) -> None:
    """Commit that the stream is to stay stopped; unless another run writes by now.

    Raises:
        TableError: The table is not as its head says.
    """
    output = OutputLog(folders.table)
    head = output.base().head
    last = pulse(folders.control, head.epoch)
    if head.desired is not Desired.RUNNING or last is None or last.phase is not Phase.ENDED:
        return
    writer = demands.Writer(epoch=head.epoch, generation=head.generation)
    try:
        output.commit(demands.desire(writer, Desired.STOPPED, reason))
    except Fenced:
        LOG.info("another run has taken over meanwhile: the stream goes on")
