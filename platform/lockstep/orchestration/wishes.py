"""Keeps what a person wants of a stream, so that no sensor undoes it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lockstep.engine.liveness import pulse, writer_lives
from lockstep.errors import Fenced
from lockstep.operations.desire import desired_of, set_by_claim
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired

if TYPE_CHECKING:
    from lockstep.table.layout import StreamFolders

LOG = logging.getLogger("lockstep")


def record_stop(folders: StreamFolders, run_id: str, reason: str) -> bool:
    """Commit that the stream is to stay stopped, because a person terminated a run of it; whether it was committed.

    The commit is a claim: it needs no writer that still answers, and fences the run's last batch where that was
    abandoned and may end late. It is not made when another run writes: a run that was terminated on its way to a
    handover, or after it, was not the one that keeps the stream running.

    Args:
        folders: Where the stream lies.
        run_id: The run that was terminated.
        reason: Who terminated it, and where.

    Raises:
        TableError: The table is not as its head says.
    """
    if not log.exists(folders.table):
        return False
    output = OutputLog(folders.table)
    head = output.base().head
    if desired_of(head) in {Desired.STOPPED, Desired.HELD}:
        return False
    last = pulse(folders.control, head.epoch)
    if last is not None and last.run_id != run_id and writer_lives(folders.control, head.epoch):
        return False
    return stop_epoch(output, head.epoch, reason)


def stop_epoch(output: OutputLog, epoch: int, reason: str) -> bool:
    """Commit that the stream is to stay stopped, unless another epoch holds the table by now; whether it was committed.

    Raises:
        TableError: The table is not as its head says.
    """
    try:
        set_by_claim(output, epoch, Desired.STOPPED, reason)
    except Fenced:
        LOG.info("another run has taken over meanwhile: the stream goes on")
        return False
    return True
