"""Heartbeat, and requests to a writer: handover, stop, retirement of topics.

A writer increments a counter in a file named after its epoch. A run increments one in a file named after the run,
from its first step, long before it claims, to its end. Observers wait for changes with their own monotonic clock; no
wall clock of another machine decides anything. Nothing here guards the table: the epoch in its log does. This only
makes a change of writers quick and orderly.

A request file is named after the epoch it addresses, so that it can never stop a later run. It changes nothing by
itself: the desired state of a stream is in the head of its table.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.table.commit import OutputLog, Writer, set_desired_state
from lockstep.table.head import Desired, Head

COUNT_SECONDS = 0.4
POLL_SECONDS = 1.0
HANDOVER_POLL_SECONDS = 0.05
"""During a handover nothing is committed until the end of the writer is seen. A poll costs one open()."""
POLLS = 3
"""A counter unchanged over so many polls belongs to a dead writer."""
RUN_FILE = ".run.json"
"""Suffix of a run's heartbeat file, after its id. All other files here end in an epoch: <what>-<epoch>.json."""


class Phase(Enum):
    """Phase of a writer."""

    WRITING = "writing"
    DRAINING = "draining"
    ENDED = "ended"


class HeartbeatRecord(msgspec.Struct, frozen=True):
    """Content of a writer's heartbeat file.

    Attributes:
        counter: Changes while the writer lives.
        phase: Phase of the writer.
        never_ending: Whether the run goes on until it is stopped.
        run_id: Id of the writing run; Dagster's id where Dagster launched it.
    """

    counter: int
    phase: Phase
    never_ending: bool = False
    run_id: str = ""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identity of a process, with which an observer on the same machine can see whether it has ended.

    Attributes:
        pid: Its process id.
        started: Start time in clock ticks since boot; distinguishes it from a later process with the same pid.
        place: Boot id of the machine and pid namespace.
    """

    pid: int
    started: int
    place: str


class RunHeartbeat(msgspec.Struct, frozen=True):
    """Content of a run's heartbeat file; removed when the run ends.

    Attributes:
        counter: Changes while the run lives.
        process: The process of the run; None where the system does not provide it.
    """

    counter: int
    process: ProcessIdentity | None = None


class Takeover(Enum):
    """How a new writer found the previous one; recorded as the cause of the restart."""

    FIRST = "first start"
    ENDED = "the run before had ended"
    HANDOVER = "handover"
    DEAD = "the writer before was gone"
    SILENT = "the writer before did not answer"


class _Counting:
    """Calls a function with 1, 2, 3, ... at an interval on its own thread, until closed."""

    def __init__(self, name: str, control: Path, write: Callable[[int], None]) -> None:
        self._write, self._counter = write, 0
        self._seconds = _stretch(control, COUNT_SECONDS)
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._count, name=name, daemon=True)

    def start(self) -> None:
        """Begin to count."""
        self._thread.start()

    def once(self) -> None:
        """Count once, now."""
        with self._lock:
            self._counter += 1
            self._write(self._counter)

    def close(self) -> None:
        """Count no more."""
        self._closing.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._closing.wait(self._seconds):
            with suppress(OSError):  # a disk that is full for a moment: the next count shows that this process lives
                self.once()


class Heartbeat:
    """Heartbeat of one epoch on its own thread, until closed."""

    def __init__(self, control: Path, epoch: int, *, never_ending: bool = False, run_id: str = "") -> None:
        self._path, self._epoch, self._control = _liveness(control, epoch), epoch, control
        self._never_ending, self._run_id, self._phase = never_ending, run_id, Phase.WRITING
        self._counting = _Counting(f"liveness-{epoch}", control, self._write)

    def __enter__(self) -> Self:
        self._counting.once()
        self._counting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record the end of the writer; a successor need not wait for three polls."""
        self._counting.close()
        self._phase = Phase.ENDED
        with suppress(OSError):  # must not hide the outcome of the run
            self._counting.once()
        with suppress(OSError):  # requests to this epoch: no other one reads them
            find_storage(self._control).delete(_request(self._control, self._epoch))
            forget_stop_request(self._control, self._epoch)
            forget_retire_request(self._control, self._epoch)

    def asked_to_hand_over(self) -> bool:
        """Whether a successor asked this epoch to hand over. Acknowledges the first request."""
        if find_storage(self._control).get_status(_request(self._control, self._epoch)) is None:
            return False
        if self._phase is Phase.WRITING:
            self._phase = Phase.DRAINING
            with suppress(OSError):  # the next count acknowledges it
                self._counting.once()
        return True

    def _write(self, counter: int) -> None:
        record = HeartbeatRecord(counter, self._phase, self._never_ending, self._run_id)
        find_storage(self._path).replace(self._path, msgspec.json.encode(record))


@contextmanager
def run_heartbeat(control: Path, run_id: str) -> Iterator[None]:
    """Heartbeat of a run while the block lasts; a killed run leaves its file behind."""
    path, process = _run_liveness(control, run_id), read_this_process()
    counting = _Counting(
        f"run-{run_id[:8]}",
        control,
        lambda counter: find_storage(path).replace(path, msgspec.json.encode(RunHeartbeat(counter, process))),
    )
    with suppress(OSError):  # the run itself reports the disk error
        counting.once()
    counting.start()
    try:
        yield
    finally:
        counting.close()
        with suppress(OSError):
            find_storage(control).delete(path)


def read_run_heartbeats(control: Path) -> dict[str, RunHeartbeat]:
    """The newest heartbeats of all runs that have not ended, by run id; some may be dead."""
    found: dict[str, RunHeartbeat] = {}
    storage = find_storage(control)
    for path in storage.find_files(control, f"*{RUN_FILE}"):
        with suppress(FileNotFoundError, msgspec.DecodeError):
            found[path.name.removesuffix(RUN_FILE)] = decode_json(storage.read(path), RunHeartbeat)
    return found


def is_run_counting(control: Path, run_id: str) -> bool:
    """Poll until the counter of a run changes or counts as dead. Takes one to three seconds."""
    first = read_run_heartbeats(control).get(run_id)
    for _ in range(POLLS if first is not None else 0):
        time.sleep(_poll_seconds(control))
        last = read_run_heartbeats(control).get(run_id)
        if last != first:
            return last is not None
    return False


def find_epoch_written_by(control: Path, run_id: str) -> int | None:
    """The epoch that a run writes under now; None if it is not a writer."""
    for epoch in list_epochs(control):
        last = read_heartbeat(control, epoch)
        if last is not None and last.run_id == run_id and last.phase is Phase.WRITING:
            return epoch
    return None


def list_epochs(control: Path) -> list[int]:
    """The epochs with a heartbeat file."""
    found = find_storage(control).find_files(control, "liveness-*.json")
    return [int(path.stem.removeprefix("liveness-")) for path in found]


def forget_run(control: Path, run_id: str) -> None:
    """Remove the file of a dead run."""
    find_storage(control).delete(_run_liveness(control, run_id))


def reserve_start(control: Path, epoch: int, attempt: int) -> int | None:
    """Reserve a start; gives its number, or None where it is taken. Reservations of older epochs are removed.

    Whoever asks for a number below the last one has forgotten the starts since, as a sensor whose cursor was reset:
    it gets the next one.
    """
    storage, taken = find_storage(control), list[int]()
    storage.make_folder(control)
    for path in storage.find_files(control, "start*-*.json"):
        number, of_epoch = map(int, path.stem.removeprefix("start").split("-"))
        if of_epoch < epoch:
            storage.delete(path)
        else:
            taken.append(number)
    last = max(taken, default=-1)
    attempt = last + 1 if last > attempt else attempt
    try:
        storage.create(control / f"start{attempt}-{epoch}.json")
    except FileExistsError:
        return None
    return attempt


def read_this_process() -> ProcessIdentity | None:
    """This process; None where there is no /proc."""
    pid = os.getpid()
    started, place = _started(pid), _place()
    return ProcessIdentity(pid, started, place) if started is not None and place is not None else None


def is_process_alive(process: ProcessIdentity | None) -> bool:
    """Whether a process is known to live; False also where it cannot be seen from here."""
    return process is not None and process.place == _place() and process.started == _started(process.pid)


def is_writer_alive(control: Path, epoch: int) -> bool:
    """Poll until the counter of an epoch changes or counts as dead."""
    first = read_heartbeat(control, epoch)
    if first is None or first.phase is Phase.ENDED:
        return False
    for _ in range(POLLS):
        time.sleep(_poll_seconds(control))
        if read_heartbeat(control, epoch) != first:
            break
    last = read_heartbeat(control, epoch)
    return last is not None and last != first and last.phase is not Phase.ENDED


def request_handover(control: Path, epoch: int, timeout_seconds: float, cancelled: Callable[[], bool]) -> Takeover:
    """Ask a living writer to hand over, and wait for its end.

    The timeout runs only while there is no acknowledgement: a long last batch is waited for. Once cancelled, the
    request is taken back: a writer that has not seen it goes on.
    """
    find_storage(control).replace(_request(control, epoch), b"{}")
    before, asked = read_heartbeat(control, epoch), time.monotonic()
    counted = asked
    while not cancelled():
        now, clock = read_heartbeat(control, epoch), time.monotonic()
        if now is None or now.phase is Phase.ENDED:
            return Takeover.HANDOVER
        if now != before:
            before, counted = now, clock
        if now.phase is Phase.WRITING and clock - asked > timeout_seconds:
            return Takeover.SILENT
        if now.phase is Phase.DRAINING and clock - counted > POLLS * _poll_seconds(control):
            return Takeover.DEAD
        time.sleep(_stretch(control, HANDOVER_POLL_SECONDS))
    find_storage(control).delete(_request(control, epoch))
    return Takeover.SILENT


def read_heartbeat(control: Path, epoch: int) -> HeartbeatRecord | None:
    """The newest heartbeat of an epoch; None without one."""
    try:
        return decode_json(find_storage(control).read(_liveness(control, epoch)), HeartbeatRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def find_writer(control: Path, epoch: int) -> str:
    """State of an epoch's writer, after observing its counter for one to three seconds where it has not ended.

    "writing" or "draining" for a live one, "gone" for one that stopped counting, "ended", "none" without a heartbeat.
    """
    last = read_heartbeat(control, epoch)
    if last is None:
        return "none"
    if last.phase is Phase.ENDED:
        return Phase.ENDED.value
    if is_writer_alive(control, epoch):
        return str(last.phase.value)
    after = read_heartbeat(control, epoch)
    return Phase.ENDED.value if after is not None and after.phase is Phase.ENDED else "gone"


def find_heartbeat_time(control: Path, epoch: int) -> float | None:
    """Time of the newest heartbeat of an epoch, in seconds since 1970 (UTC), by the storage's clock; None without one.

    For alarms only: whether a writer is alive is decided by its counter.
    """
    found = find_storage(control).get_status(_liveness(control, epoch))
    return None if found is None else found.modified_at


def _started(pid: int) -> int | None:
    """Start time of a process; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _place() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _run_liveness(control: Path, run_id: str) -> Path:
    return control / f"{run_id}{RUN_FILE}"


def _poll_seconds(control: Path) -> float:
    """Seconds in which the counter of a living process changes."""
    return max(POLL_SECONDS, _stretch(control, COUNT_SECONDS))


def _stretch(control: Path, seconds: float) -> float:
    """An interval, where each look may cost a request."""
    return seconds * find_storage(control).poll_factor


def _liveness(control: Path, epoch: int) -> Path:
    return control / f"liveness-{epoch}.json"


def _request(control: Path, epoch: int) -> Path:
    return control / f"handover-{epoch}.json"


def stop_request_path(control: Path, epoch: int) -> Path:
    """The file that asks the writer of an epoch to stop permanently (engine/driver/handover.py)."""
    return control / f"stop-{epoch}.json"


def forget_stop_request(control: Path, epoch: int) -> None:
    """Remove the stop request to the writer of an epoch."""
    find_storage(control).delete(stop_request_path(control, epoch))


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


def request_stop(control: Path, epoch: int, request: StopRequest) -> None:
    """Ask the writer of an epoch to commit the desired state and end."""
    find_storage(control).replace(stop_request_path(control, epoch), msgspec.json.encode(request))


def read_stop_request(control: Path, epoch: int) -> StopRequest | None:
    """The request to the writer of an epoch, if any; costs one failing open() without one."""
    try:
        return decode_json(find_storage(control).read(stop_request_path(control, epoch)), StopRequest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        return StopRequest(f"a stop request that cannot be read: {error}", "unknown")


class RetireRequest(msgspec.Struct, frozen=True):
    """An operator's request to the active writer to retire topics.

    Attributes:
        topics: Names of the topics.
        who: User who asked.
        why: Reason.
    """

    topics: tuple[str, ...]
    who: str
    why: str


def request_retirement(control: Path, epoch: int, request: RetireRequest) -> None:
    """Ask the writer of an epoch to retire topics with its next batch."""
    find_storage(control).replace(_retire_request(control, epoch), msgspec.json.encode(request))


def take_retire_request(control: Path, epoch: int) -> RetireRequest | None:
    """Take the request to the writer of an epoch, if any; costs one failing open() without one."""
    path = _retire_request(control, epoch)
    try:
        request = decode_json(find_storage(control).read(path), RetireRequest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        request = None
    find_storage(control).delete(path)
    return request


def forget_retire_request(control: Path, epoch: int) -> bool:
    """Remove the retire request to the writer of an epoch; gives whether it was still there."""
    found = find_storage(control).get_status(_retire_request(control, epoch)) is not None
    find_storage(control).delete(_retire_request(control, epoch))
    return found


def _retire_request(control: Path, epoch: int) -> Path:
    return control / f"retire-{epoch}.json"


def write_stop(output: OutputLog, writer: Writer, request: StopRequest) -> Head:
    """Commit the requested desired state, as the writer.

    Raises:
        Fenced: A newer writer holds the table; the request was not addressed to it.
    """
    return output.commit(set_desired_state(writer, request.desired, str(request))).head
