"""Start, stop, close hour, reset.

With a live writer, closing an hour is harmless but not free: a batch in progress for the hour loses to the close and
is planned again for the next hour. On a stream that continues, rows are then committed under an hour that has not
started yet, until the clock has caught up.
"""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from lockstep.control.handover import StopRequest, forget_stop_request, request_stop
from lockstep.control.heartbeat import Phase, is_writer_alive, read_heartbeat, read_run_heartbeats
from lockstep.control.start_request import forget_start_request
from lockstep.engine.driver.startup import check_not_halted
from lockstep.errors import Fenced, LockstepError, TableError
from lockstep.integrity.resume_options import StreamHalted
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.commit_hour import parse_hour
from lockstep.operations.stream_table import open_table, try_read_head
from lockstep.settings import Settings
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog, commit_claim, commit_closed_hour
from lockstep.table.create import refuse_incoming
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders, require_root

POLL_SECONDS = 0.2
TAKEOVERS_MAX = 5
"""A stop follows a handover in progress to the next writer; beyond this number in a row it is not a handover."""


class Stopped(msgspec.Struct, frozen=True):
    """Result of a stop.

    Attributes:
        stream: Name of the stream.
        desired: Its desired state now; "halted" stays so.
        reason: Why.
        ended_by: "the writer" that committed its own stop; "a fence", when it did not end in time; "a claim", when
            there was no live writer; "none", when the desired state was already set, or a start was withdrawn.
        epoch: The epoch that holds the table now.
        batch: Number of the last committed batch.
    """

    stream: str
    desired: str
    reason: str
    ended_by: str
    epoch: int
    batch: int


class StartCheck(msgspec.Struct, frozen=True):
    """State found before a start.

    Attributes:
        desired: The desired state before; None when the stream has no table yet.
        lives: Whether there is a live writer.
        epoch: The epoch that holds the table.
        never_ending: Whether the live writer continues until it is stopped.
        desired_version: `Head.desired_version` at that time.
    """

    desired: str | None
    lives: bool
    epoch: int
    never_ending: bool = False
    desired_version: int = 0


class Started(msgspec.Struct, frozen=True):
    """Result of a start in a process that runs several streams.

    Attributes:
        stream: Name of the stream.
        by: The process, for example "host default".
        epoch: The epoch that writes.
        was_running: Whether it wrote before: nothing was started.
    """

    stream: str
    by: str
    epoch: int
    was_running: bool


def stop_stream(folders: StreamFolders, request: StopRequest, *, patience_seconds: float) -> Stopped:
    """Stop or hold a stream until an operator starts it again.

    1. Leave a stream that already has this desired state unchanged, unless a run is about to claim it.
    2. Ask a live writer; it commits the desired state and ends at its batch boundary.
    3. Without one, or if it does not end in time, commit the state by a claim; the claim fences a late writer, whose
       batch stays invisible, and a run that has read the table and not claimed yet. A halted stream stays
       halted, and is stopped or held once it is resumed.
    4. If a successor claimed at the same moment, stop it in its turn.
    5. Without a table, withdraw the request of a `start`.

    Args:
        folders: Folders of the stream.
        request: Reason, user, and whether to stop or to hold.
        patience_seconds: Time for a live writer to reach its batch boundary.

    Raises:
        NoTable: The stream has never run.
        Fenced: Runs replaced each other repeatedly.
    """
    # First, so that no supervisor starts the stream while it is stopped.
    is_withdrawn = forget_start_request(folders)
    if is_withdrawn and try_read_head(folders) is None:
        return _withdrawn(folders, request)  # 5
    output = open_table(folders)
    for _ in range(TAKEOVERS_MAX):
        with suppress(Fenced):  # 4
            return _stop(folders, output, request, patience_seconds)  # 1 to 3
    return _stop(folders, output, request, patience_seconds)


def _withdrawn(folders: StreamFolders, request: StopRequest) -> Stopped:
    """The end of a stream that has never run.

    Raises:
        LockstepError: Its first run is on its way, and does not know of this stop.
    """
    if read_run_heartbeats(folders.control):
        raise LockstepError(
            f"the first run of stream {folders.stream} is on its way; if it fails, nothing starts it again",
            next_step=f"terminate that run in Dagster, or wait until it writes: lockstep stop {folders.stream}",
        )
    return Stopped(folders.stream, request.desired.value, str(request), "none", 0, 0)


def _stop(folders: StreamFolders, output: OutputLog, request: StopRequest, patience_seconds: float) -> Stopped:
    head = output.base().head
    lives = is_writer_alive(folders.control, head.epoch)
    # A run on its way has a heartbeat and no epoch yet: a claim is needed to fence it.
    if read_desired_state(head) is request.desired and not lives and not read_run_heartbeats(folders.control):
        return _stopped(head, "none")  # 1
    if lives:
        request_stop(folders.control, head.epoch, request)  # 2
        try:
            ended = _ended(folders, output, head.epoch, request.desired, patience_seconds)
        finally:
            forget_stop_request(folders.control, head.epoch)
        if ended is not None:
            return _stopped(ended, "the writer")
    # Without an answer of the writer, a claim fences it.
    claimed = set_by_claim(output, head.epoch, request.desired, str(request))  # 3
    return _stopped(claimed, "a fence" if lives else "a claim")


def read_desired_state(head: Head) -> Desired:
    """The desired state; for a halted stream the one after its resume."""
    return head.resumes_as if head.desired is Desired.HALTED else head.desired


def check_startable(folders: StreamFolders) -> StartCheck:
    """Check whether a stream can be started. Takes one to three seconds after an earlier writer.

    Raises:
        StreamHalted: It waits for an operator.
        TableError: The table does not match its head.
    """
    head = try_read_head(folders)
    if head is None:
        return StartCheck(None, lives=False, epoch=0)
    if head.desired is Desired.HALTED:
        raise StreamHalted(head.stream, head.findings)
    lives = is_writer_alive(folders.control, head.epoch)
    last = read_heartbeat(folders.control, head.epoch)
    never_ending = lives and last is not None and last.never_ending
    return StartCheck(
        head.desired.value,
        lives=lives,
        epoch=head.epoch,
        never_ending=never_ending,
        desired_version=head.desired_version,
    )


def refuse_bounded_run(folders: StreamFolders) -> None:
    """Refuse a bounded run while a never-ending run writes: it would replace that run, and end.

    Raises:
        LockstepError: A never-ending run writes; it commits what a bounded run would.
        StreamHalted: The stream waits for an operator.
        TableError: The table does not match its head.
    """
    check = check_startable(folders)
    if check.never_ending:
        name = folders.stream
        raise LockstepError(
            f"a never-ending run writes {name} (epoch {check.epoch}): it reads what is available, and a bounded run "
            "would take over from it and end",
            next_step=f"lockstep status {name} shows its lag; or end it first: lockstep stop {name}",
        )


def set_running(folders: StreamFolders, found: StartCheck, why: str) -> int:
    """Set the desired state of a stream without a writer to running; returns the epoch that then holds the table.

    The caller or the supervisor launches the run itself.

    Raises:
        Fenced: Another run claimed at the same moment.
        StreamHalted: It has halted since.
    """
    if found.desired == Desired.RUNNING.value:
        return found.epoch
    output = open_table(folders)
    claim = commit_claim(found.epoch, output.table_id, check_not_halted, desired=Desired.RUNNING, reason=why)
    return output.commit(claim).head.epoch


def set_by_claim(output: OutputLog, epoch: int, desired: Desired, reason: str) -> Head:
    """Commit a desired state by a claim, which fences the current writer.

    Args:
        output: The table.
        epoch: The epoch that the claim replaces.
        desired: The desired state.
        reason: Reason and user.

    Raises:
        Fenced: Another run claimed at the same moment.
    """
    return output.commit(commit_claim(epoch, output.table_id, lambda _: None, desired=desired, reason=reason)).head


def _ended(
    folders: StreamFolders, output: OutputLog, epoch: int, desired: Desired, patience_seconds: float
) -> Head | None:
    """The head after the writer's end; None when it continues, or ended without committing the desired state."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        last = read_heartbeat(folders.control, epoch)
        if last is None or last.phase is Phase.ENDED:
            head = output.base().head
            # A successor has claimed the table: it is the writer to stop now.
            if head.epoch != epoch:
                raise Fenced(epoch, head.epoch)
            return head if read_desired_state(head) is desired else None
        time.sleep(POLL_SECONDS)
    return None


def _stopped(head: Head, ended_by: str) -> Stopped:
    return Stopped(head.stream, head.desired.value, head.reason, ended_by, head.epoch, head.batch)


def close_hour(folders: StreamFolders, hour: str | None = None) -> str:
    """Close an hour and all hours before it: no batch can be committed into them any more.

    Args:
        folders: Folders of the stream.
        hour: "YYYY-MM-DDTHH" in UTC; by default the hour of the newest batch.

    Returns:
        The closed hour. Closing a closed hour changes nothing and commits nothing.

    Raises:
        NoTable: The stream has never run.
        LockstepError: The stream has no batch yet, or the hour is malformed or has not started.
        TableError: The table does not match its head.
    """
    output = open_table(folders)
    head = output.base().head
    wanted = _checked(hour or head.hour, head)
    # Earlier hours are closed by later batches already.
    if wanted > head.closed_hour and wanted >= head.hour:
        output.commit(commit_closed_hour(wanted))
    return wanted


def _checked(hour: str, head: Head) -> str:
    if not head.hour:
        raise LockstepError(
            f"stream {head.stream} has no batch yet, no hour is open", next_step=f"lockstep run {head.stream}"
        )
    if not _is_hour(hour):
        raise LockstepError(
            f"{hour!r} is not an hour", next_step=f"write YYYY-MM-DDTHH in UTC, for example {head.hour}"
        )
    if hour > head.hour:
        raise TableError(
            f"hour {hour} has not started: the newest batch of {head.stream} is in hour {head.hour}",
            next_step=f"close {head.hour} at most: a later hour would only push rows further ahead of the clock",
        )
    return hour


def _is_hour(text: str) -> bool:
    try:
        parse_hour(text)
    except ValueError:
        return False
    return True


def reset_new(stream: str, settings: Settings) -> None:
    """Let the next start of a stream without a table read everything into a new table.

    Raises:
        LockstepError: There is a table, or the stream is being restored.
        TableRootMissing: The table root does not exist: its tables may only be out of reach.
        KafkaError: Kafka does not answer.
    """
    folders = StreamFolders(stream, settings.table_root)
    if delta_log.has_log(folders.table):
        raise LockstepError(
            f"{folders.table} exists: only a stream without a table can be reset",
            next_step=f"lockstep status {stream}; to start with an empty table, move {folders.table.parent} away first",
        )
    require_root(folders.root)
    refuse_incoming(folders)
    forget_start_request(folders)
    # Without published positions a start takes the stream for new; with them it misses the table.
    ConsumerGroup(settings.kafka, stream).forget()
