"""Sets what is wanted of a stream: to stay stopped, or to run."""

from __future__ import annotations

import time

import msgspec

from lockstep.engine.liveness import Phase, pulse, stop_request, writer_lives
from lockstep.engine.wishes import StopRequest, ask_to_stop
from lockstep.errors import Fenced, StreamHalted
from lockstep.operations.opened import head_or_none, opened
from lockstep.table import demands
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders

POLL_SECONDS = 0.2


class Stopped(msgspec.Struct, frozen=True):
    """The end of a stop.

    Attributes:
        stream: Name of the stream.
        desired: What is wanted of it now; "halted" stays so.
        reason: Why.
        ended_by: "the writer" that committed its own stop; "a fence", when it did not end in time; "a claim", when
            no writer lived; "nobody", when the stream was stopped or halted already.
        epoch: The epoch that holds the table now.
        batch: Number of the last committed batch.
    """

    stream: str
    desired: str
    reason: str
    ended_by: str
    epoch: int
    batch: int


class Startable(msgspec.Struct, frozen=True):
    """What a start finds.

    Attributes:
        desired: What was wanted of the stream before; None when it has no table yet.
        lives: Whether a writer works already.
        epoch: The epoch that holds the table.
    """

    desired: str | None
    lives: bool
    epoch: int


def stop(folders: StreamFolders, request: StopRequest, *, patience_seconds: float) -> Stopped:
    """Stop a stream until somebody starts it again.

    1. A stream that is stopped or halted already is left as it is.
    2. A living writer is asked; it commits the stop and ends at its batch boundary.
    3. Where none lives, or it does not end in time, a claim commits the stop; a late writer is fenced by it, having
       written nothing visible.

    Args:
        folders: Where the stream lies.
        request: Why, and who asks.
        patience_seconds: How long a living writer may take to its batch boundary.

    Raises:
        NoTable: The stream has never run.
        Fenced: Another run took over in the same moment.
    """
    output = opened(folders)
    head = output.base().head
    lives = writer_lives(folders.control, head.epoch)
    if head.desired in {Desired.HALTED, Desired.STOPPED} and not lives:
        return _stopped(head, "nobody")  # 1
    if lives:
        ask_to_stop(folders.control, head.epoch, request)  # 2
        try:
            ended = _ended(folders, output, head.epoch, patience_seconds)
        finally:
            stop_request(folders.control, head.epoch).unlink(missing_ok=True)
        if ended is not None:
            return _stopped(ended, "the writer")
    claimed = _claim(output, head.epoch, Desired.STOPPED, str(request))  # 3
    return _stopped(claimed, "a fence" if lives else "a claim")


def startable(folders: StreamFolders) -> Startable:
    """Look whether a stream can be started. Takes a second or three when a writer was there.

    Raises:
        StreamHalted: It waits for an operator.
        TableError: The table is not as its head says.
    """
    head = head_or_none(folders)
    if head is None:
        return Startable(None, lives=False, epoch=0)
    if head.desired is Desired.HALTED:
        raise StreamHalted(head.stream, head.findings)
    return Startable(head.desired.value, writer_lives(folders.control, head.epoch), head.epoch)


def want_running(folders: StreamFolders, found: Startable, why: str) -> None:
    """Commit that a stopped stream is to run; the run itself is somebody else's to start.

    Raises:
        Fenced: Another run took over in the same moment.
        StreamHalted: It halted meanwhile.
    """
    if found.desired not in {None, Desired.RUNNING.value}:
        _claim(opened(folders), found.epoch, Desired.RUNNING, why)


def _ended(folders: StreamFolders, output: OutputLog, epoch: int, patience_seconds: float) -> Head | None:
    """The head after the writer's end; None when it goes on, or ended without having committed the stop."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        last = pulse(folders.control, epoch)
        if last is None or last.phase is Phase.ENDED:
            head = output.base().head
            if head.epoch != epoch:
                raise Fenced(epoch, head.epoch)
            return head if head.desired in {Desired.STOPPED, Desired.HALTED} else None
        time.sleep(POLL_SECONDS)
    return None


def _claim(output: OutputLog, epoch: int, desired: Desired, reason: str) -> Head:
    def refuse_halted(head: Head) -> None:
        if head.desired is Desired.HALTED:
            raise StreamHalted(head.stream, head.findings)

    return output.commit(demands.claim(epoch, output.table_id, refuse_halted, desired=desired, reason=reason)).head


def _stopped(head: Head, ended_by: str) -> Stopped:
    return Stopped(head.stream, head.desired.value, head.reason, ended_by, head.epoch, head.batch)
