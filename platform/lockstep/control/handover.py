"""Requests to a writer (handover, stop, commit, retirement and resumption of topics), and the reservation of a start.

They make a change of writers quick and orderly, and guard nothing: the epoch in the log of the table does.

A request file is named after the epoch it addresses, so that it can never stop a later run. It changes nothing by
itself: the desired state of a stream is in the head of its table.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from lockstep.control.heartbeat import POLLS, Heartbeat, Phase, compute_poll_seconds, read_heartbeat
from lockstep.control.ticker import Ticker
from lockstep.integrity.resume_options import EncodedOption
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.table.commit import OutputLog, Writer, set_desired_state
from lockstep.table.head import Desired, Head

HANDOVER_POLL_SECONDS = 0.05
"""During a handover nothing is committed until the end of the writer is seen. A poll costs one open()."""


POLL_SECONDS = 0.1
"""Interval at which a writer that waits polls its requests to stop or to hand over; a poll costs two stat()."""
STREAMS_MAX = 1_000
"""Streams whose requests one thread polls."""
_POLLS = Ticker("requests", POLL_SECONDS, STREAMS_MAX)
"""Of all streams of the process on a file system. State of the module, because threads belong to the process."""


class Takeover(Enum):
    """How a new writer found the previous writer; recorded as the cause of the restart."""

    FIRST = "first start"
    ENDED = "the run before had ended"
    HANDOVER = "handover"
    DEAD = "the writer before was gone"
    SILENT = "the writer before did not answer"


class StopRequest(msgspec.Struct, frozen=True):
    """An operator's request to the active writer.

    Attributes:
        reason: Short reason.
        who: User who asked.
        desired: The new desired state: stopped or held.
    """

    reason: str
    who: str
    desired: Desired = Desired.STOPPED

    def __str__(self) -> str:
        return f"{self.reason} ({self.who})"


class RetireRequest(msgspec.Struct, frozen=True):
    """An operator's request to the active writer to retire topics.

    Attributes:
        topics: Names of the topics.
        who: User who asked.
        why: Reason.
        request_id: Tells it from an equal one.
    """

    topics: tuple[str, ...]
    who: str
    why: str
    request_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)


class ResumeRequest(msgspec.Struct, frozen=True):
    """An operator's request to the active writer to resume halted topics.

    Attributes:
        topic_ids: Ids of the topics.
        options: The accepted options, as from `encode_options`.
        who: User who asked.
        why: The cause of the halt.
        request_id: Tells it from an equal one.
    """

    topic_ids: tuple[str, ...]
    options: tuple[EncodedOption, ...]
    who: str
    why: str
    request_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)


class CommitRequest(msgspec.Struct, frozen=True):
    """An operator's request to the active writer to commit waiting messages although they do not fill a file.

    Attributes:
        who: User who asked.
        request_id: Tells it from an equal one.
    """

    who: str
    request_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)


class RequestWatch:
    """Waits for requests to a writer to stop or to hand over.

    Attributes:
        heartbeat: Heartbeat of the writer.
    """

    def __init__(self, heartbeat: Heartbeat, stop: threading.Event) -> None:
        """Polls nothing yet.

        Args:
            heartbeat: Heartbeat of the writer.
            stop: Ends each wait.
        """
        self.heartbeat = heartbeat
        control = heartbeat.control
        epoch = heartbeat.epoch
        self._storage = find_storage(control)
        self._paths = (_stop_request(control, epoch), _handover_request(control, epoch))
        self._stop = stop
        self._woken = threading.Event()
        self._seconds = POLL_SECONDS * self._storage.poll_factor
        self._is_local = self._storage.poll_factor == 1
        self._end: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        if self._is_local:
            self._end = _POLLS.add(self._poll)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def wait(self, seconds: float) -> None:
        """Wait until a request or the stop may be there, at most some seconds.

        In an object store a poll takes long, so no thread polls for other streams: the caller polls after an interval.
        """
        if not self._is_local:
            self._stop.wait(min(seconds, self._seconds))
            return
        self._woken.clear()  # a request that was withdrawn has woken it before
        self._woken.wait(seconds)

    def _poll(self) -> None:
        try:
            is_asked = self._stop.is_set() or any(map(self._storage.exists, self._paths))
        except OSError:  # the writer polls as well, and reports the error once
            is_asked = True
        if is_asked:
            self._woken.set()


R = TypeVar("R", RetireRequest, ResumeRequest, CommitRequest)


@contextmanager
def accept_requests(control: Path, epoch: int) -> Iterator[None]:
    """Requests to the writer of an epoch are for the block; those that are left are removed after it."""
    try:
        yield
    finally:
        with suppress(OSError):  # no other epoch reads them
            find_storage(control).delete(_handover_request(control, epoch))
            forget_stop_request(control, epoch)
            forget_retire_request(control, epoch)
            forget_resume_request(control, epoch)
            forget_commit_request(control, epoch)


def is_asked_to_hand_over(heartbeat: Heartbeat) -> bool:
    """Whether a successor asked the writer with this heartbeat to hand over. Acknowledges the first request."""
    request = _handover_request(heartbeat.control, heartbeat.epoch)
    if find_storage(heartbeat.control).get_status(request) is None:
        return False
    heartbeat.drain()
    return True


def request_handover(control: Path, epoch: int, timeout_seconds: float, cancelled: Callable[[], bool]) -> Takeover:
    """Ask a living writer to hand over, and wait for its end.

    The timeout runs only without an acknowledgement: a long last batch is waited for. A cancelled request is
    withdrawn: a writer that has not seen it continues.
    """
    find_storage(control).replace(_handover_request(control, epoch), b"{}")
    last = read_heartbeat(control, epoch)
    asked = time.monotonic()
    counted = asked
    while not cancelled():
        newest = read_heartbeat(control, epoch)
        clock = time.monotonic()
        if newest is None or newest.phase is Phase.ENDED:
            return Takeover.HANDOVER
        if newest != last:
            last = newest
            counted = clock
        if newest.phase is Phase.WRITING and clock - asked > timeout_seconds:
            return Takeover.SILENT
        # It has acknowledged: a last batch may take long, but its counter must change.
        if newest.phase is Phase.DRAINING and clock - counted > POLLS * compute_poll_seconds(control):
            return Takeover.DEAD
        time.sleep(HANDOVER_POLL_SECONDS * find_storage(control).poll_factor)
    find_storage(control).delete(_handover_request(control, epoch))
    return Takeover.SILENT


def request_stop(control: Path, epoch: int, request: StopRequest) -> None:
    """Ask the writer of an epoch to commit the desired state and end."""
    find_storage(control).replace(_stop_request(control, epoch), msgspec.json.encode(request))


def read_stop_request(control: Path, epoch: int) -> StopRequest | None:
    """The request to the writer of an epoch, if any; costs one failing open() without one."""
    try:
        return decode_json(find_storage(control).read(_stop_request(control, epoch)), StopRequest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        return StopRequest(f"a stop request that cannot be read: {error}", "unknown")


def forget_stop_request(control: Path, epoch: int) -> None:
    """Remove the stop request to the writer of an epoch."""
    find_storage(control).delete(_stop_request(control, epoch))


def write_stop(output: OutputLog, writer: Writer, request: StopRequest) -> Head:
    """Commit the requested desired state, as the writer.

    Raises:
        Fenced: A newer writer holds the table; the request was not addressed to it.
    """
    return output.commit(set_desired_state(writer, request.desired, str(request))).head


def request_retirement(control: Path, epoch: int, request: RetireRequest) -> bool:
    """Ask the writer of an epoch to retire topics with its next batch; False while another request waits for it."""
    return _send(_retire_request(control, epoch), request)


def take_retire_request(control: Path, epoch: int) -> RetireRequest | None:
    """Take the request to the writer of an epoch, if any; costs one failing open() without one."""
    return _take(_retire_request(control, epoch), RetireRequest)


def forget_retire_request(control: Path, epoch: int, request: RetireRequest | None = None) -> bool:
    """Remove a retire request to the writer of an epoch; returns whether it was still there.

    Args:
        control: The stream's folder of heartbeats and requests.
        epoch: The epoch.
        request: The request; by default any.
    """
    return _forget(_retire_request(control, epoch), request)


def request_resumption(control: Path, epoch: int, request: ResumeRequest) -> bool:
    """Ask the writer of an epoch to resume halted topics before its next batch; False while another request waits."""
    return _send(_resume_request(control, epoch), request)


def take_resume_request(control: Path, epoch: int) -> ResumeRequest | None:
    """Take the request to the writer of an epoch, if any; costs one failing open() without one."""
    return _take(_resume_request(control, epoch), ResumeRequest)


def forget_resume_request(control: Path, epoch: int, request: ResumeRequest | None = None) -> bool:
    """Remove a resume request to the writer of an epoch; as `forget_retire_request`."""
    return _forget(_resume_request(control, epoch), request)


def request_commit(control: Path, epoch: int, request: CommitRequest) -> bool:
    """Ask the writer of an epoch to commit waiting messages now; False while another request waits for it."""
    return _send(_commit_request(control, epoch), request)


def take_commit_request(control: Path, epoch: int) -> CommitRequest | None:
    """Take the request to the writer of an epoch, if any; costs one failing open() without one."""
    return _take(_commit_request(control, epoch), CommitRequest)


def forget_commit_request(control: Path, epoch: int, request: CommitRequest | None = None) -> bool:
    """Remove a commit request to the writer of an epoch; as `forget_retire_request`."""
    return _forget(_commit_request(control, epoch), request)


def _send(path: Path, request: msgspec.Struct) -> bool:
    try:
        find_storage(path).create_whole(path, msgspec.json.encode(request))
    except FileExistsError:
        return False
    return True


def _take(path: Path, kind: type[R]) -> R | None:
    try:
        request = decode_json(find_storage(path).read(path), kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        request = None
    find_storage(path).delete(path)
    return request


def _forget(path: Path, request: msgspec.Struct | None) -> bool:
    try:
        content = find_storage(path).read(path)
    except FileNotFoundError:
        return False
    if request is not None and content != msgspec.json.encode(request):
        return False
    find_storage(path).delete(path)
    return True


def reserve_start(control: Path, epoch: int, attempt: int) -> int | None:
    """Reserve a start; returns its number, or None if it is taken. Reservations of older epochs are removed.

    A caller that asks for a number below the last has forgotten the starts since, as a sensor with a reset cursor:
    it gets the next one.
    """
    storage = find_storage(control)
    taken = list[int]()
    storage.make_folder(control)
    for path in storage.find_files(control, "start*-*.json"):
        number, of_epoch = map(int, path.stem.removeprefix("start").split("-"))
        if of_epoch < epoch:
            storage.delete(path)
        elif of_epoch == epoch:
            taken.append(number)
    last = max(taken, default=-1)
    attempt = last + 1 if last > attempt else attempt
    try:
        storage.create(control / f"start{attempt}-{epoch}.json")
    except FileExistsError:
        return None
    return attempt


def _handover_request(control: Path, epoch: int) -> Path:
    return control / f"handover-{epoch}.json"


def _stop_request(control: Path, epoch: int) -> Path:
    return control / f"stop-{epoch}.json"


def _retire_request(control: Path, epoch: int) -> Path:
    return control / f"retire-{epoch}.json"


def _resume_request(control: Path, epoch: int) -> Path:
    return control / f"resume-{epoch}.json"


def _commit_request(control: Path, epoch: int) -> Path:
    return control / f"commit-{epoch}.json"
