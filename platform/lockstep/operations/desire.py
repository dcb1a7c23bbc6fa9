"""Sets the desired state of a stream: running, stopped or held."""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from lockstep.engine.liveness import Phase, pulse, run_pulses, stop_request, writer_lives
from lockstep.engine.start import refuse_halted
from lockstep.engine.wishes import StopRequest, ask_to_stop
from lockstep.errors import Fenced, StreamHalted
from lockstep.operations.opened import head_or_none, opened
from lockstep.table import demands
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders

POLL_SECONDS = 0.2
TAKEOVERS_MAX = 5
"""A stop follows a handover under way to the next writer; so many in a row are no handover any more."""


class Stopped(msgspec.Struct, frozen=True):
    """The end of a stop.

    Attributes:
        stream: Name of the stream.
        desired: Its desired state now; "halted" stays so.
        reason: Why.
        ended_by: "the writer" that committed its own stop; "a fence", when it did not end in time; "a claim", when
            no writer lived; "nobody", when the desired state was this one already.
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
        desired: The desired state before; None when the stream has no table yet.
        lives: Whether a writer works already.
        epoch: The epoch that holds the table.
        never_ending: Whether the writer that lives goes on until it is stopped.
        wished_version: `Head.wished_version` of the look.
    """

    desired: str | None
    lives: bool
    epoch: int
    never_ending: bool = False
    wished_version: int = 0


def stop(folders: StreamFolders, request: StopRequest, *, patience_seconds: float) -> Stopped:
    """Stop or hold a stream until somebody starts it again.

    1. A stream whose desired state is this one already is left as it is, unless a run is on its way to it.
    2. A living writer is asked; it commits the desired state and ends at its batch boundary.
    3. Where none lives, or it does not end in time, a claim commits it; a late writer is fenced by it, having written
       nothing visible, and so is a run that has looked at the table and not claimed yet. A halted stream stays
       halted, and is stopped or held once it is resumed.
    4. Where a successor claimed in the same moment, it is stopped in its turn.

    Args:
        folders: Where the stream lies.
        request: Why, who asks, and whether to stop or to hold.
        patience_seconds: How long a living writer may take to its batch boundary.

    Raises:
        NoTable: The stream has never run.
        Fenced: Runs took over from each other again and again.
    """
    output = opened(folders)
    for _ in range(TAKEOVERS_MAX):
        with suppress(Fenced):  # 4
            return _stop(folders, output, request, patience_seconds)
    return _stop(folders, output, request, patience_seconds)


def _stop(folders: StreamFolders, output: OutputLog, request: StopRequest, patience_seconds: float) -> Stopped:
    head = output.base().head
    lives = writer_lives(folders.control, head.epoch)
    if desired_of(head) is request.desired and not lives and not run_pulses(folders.control):
        return _stopped(head, "nobody")  # 1
    if lives:
        ask_to_stop(folders.control, head.epoch, request)  # 2
        try:
            ended = _ended(folders, output, head.epoch, request.desired, patience_seconds)
        finally:
            stop_request(folders.control, head.epoch).unlink(missing_ok=True)
        if ended is not None:
            return _stopped(ended, "the writer")
    claimed = set_by_claim(output, head.epoch, request.desired, str(request))  # 3
    return _stopped(claimed, "a fence" if lives else "a claim")


def desired_of(head: Head) -> Desired:
    """The desired state, of a halted stream as of after the resumption."""
    return head.resumes_as if head.desired is Desired.HALTED else head.desired


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
    lives, last = writer_lives(folders.control, head.epoch), pulse(folders.control, head.epoch)
    never_ending = lives and last is not None and last.never_ending
    return Startable(
        head.desired.value,
        lives=lives,
        epoch=head.epoch,
        never_ending=never_ending,
        wished_version=head.wished_version,
    )


def want_running(folders: StreamFolders, found: Startable, why: str) -> int:
    """Commit that a stream without a writer is to be running; gives the epoch that holds the table then.

    The run itself is launched by whoever calls, or by the supervisor.

    Raises:
        Fenced: Another run took over in the same moment.
        StreamHalted: It halted meanwhile.
    """
    if found.desired == Desired.RUNNING.value:
        return found.epoch
    output = opened(folders)
    claim = demands.claim(found.epoch, output.table_id, refuse_halted, desired=Desired.RUNNING, reason=why)
    return output.commit(claim).head.epoch


def set_by_claim(output: OutputLog, epoch: int, desired: Desired, reason: str) -> Head:
    """Commit a desired state by a claim, which fences whoever holds the table.

    Args:
        output: The table.
        epoch: The epoch that the claim replaces.
        desired: The desired state.
        reason: Why, and who wants it.

    Raises:
        Fenced: Another run took over in the same moment.
    """
    return output.commit(demands.claim(epoch, output.table_id, lambda _: None, desired=desired, reason=reason)).head


def _ended(
    folders: StreamFolders, output: OutputLog, epoch: int, desired: Desired, patience_seconds: float
) -> Head | None:
    """The head after the writer's end; None when it goes on, or ended without having committed the desired state."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        last = pulse(folders.control, epoch)
        if last is None or last.phase is Phase.ENDED:
            head = output.base().head
            if head.epoch != epoch:
                raise Fenced(epoch, head.epoch)
            return head if desired_of(head) is desired else None
        time.sleep(POLL_SECONDS)
    return None


def _stopped(head: Head, ended_by: str) -> Stopped:
    return Stopped(head.stream, head.desired.value, head.reason, ended_by, head.epoch, head.batch)
