"""Heartbeats of writers and of runs, and the identity of a process.

A writer increments a counter in a file named after its epoch. A run increments one in a file named after the run,
from its first step, long before it claims, to its end. Observers wait for changes with their own monotonic clock; no
wall clock of another machine decides anything. Nothing here guards the table: the epoch in its log does.
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
from typing import Self, TypeVar

import msgspec

from lockstep.boot import read_boot_id
from lockstep.control.ticker import Ticker
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage

COUNT_SECONDS = 0.4
POLL_SECONDS = 1.0
POLLS = 3
"""A counter unchanged over so many polls belongs to a dead writer."""
RUN_FILE = ".run.json"
"""Suffix of a run's heartbeat file, after its id. All other files here end in an epoch: <what>-<epoch>.json."""


class Phase(Enum):
    """Phase of a writer."""

    WRITING = "writing"
    DRAINING = "draining"
    ENDED = "ended"


class WriterState(Enum):
    """The state of an epoch's writer, as an observer sees it."""

    NONE = "none"
    """The epoch has no heartbeat: a stop or a hold may have claimed it."""
    WRITING = "writing"
    DRAINING = "draining"
    ENDED = "ended"
    GONE = "gone"
    """It stopped counting without recording its end."""

    @property
    def is_alive(self) -> bool:
        """Whether it counts."""
        return self in {WriterState.WRITING, WriterState.DRAINING}


class HeartbeatRecord(msgspec.Struct, frozen=True):
    """Content of a writer's heartbeat file.

    Attributes:
        counter: Changes while the writer lives.
        phase: Phase of the writer.
        never_ending: Whether the run continues until it is stopped.
        run_id: Id of the writing run; Dagster's id if Dagster launched it.
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
        process: The process of the run; None if the system does not provide it.
    """

    counter: int
    process: ProcessIdentity | None = None


R = TypeVar("R", HeartbeatRecord, RunHeartbeat)


COUNTERS_MAX = 16
"""Counters of a thread: while another thread computes, each write may wait some milliseconds for Python's lock."""
_COUNTERS = Ticker("heartbeats", COUNT_SECONDS, COUNTERS_MAX)
"""Those of all streams of the process on a file system. State of the module, because threads belong to the process."""


_STOPPED = set[str]()
"""Ids of runs of this process that count no more, although their threads have not ended."""


def stop_heartbeats(run_id: str) -> None:
    """Stop the heartbeats of a run of this process whose thread hangs: the next run need not wait for it."""
    _STOPPED.add(run_id)


RECORD_BYTES = 512
"""Length of a heartbeat file, filled up with spaces: a file of this length can be written over."""


READS_MAX = 5
"""Attempts to read a heartbeat that is written over at the same moment."""
READ_SECONDS = 0.01


def _read_record(path: Path, kind: type[R]) -> R | None:
    """The heartbeat in a file; None without one, and for a damaged file.

    A mix of two contents with counters of different lengths cannot be decoded: it is read again.
    """
    for _ in range(READS_MAX):
        try:
            return decode_json(find_storage(path).read(path), kind)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            time.sleep(READ_SECONDS)
    return None


def _write_record(path: Path, record: HeartbeatRecord | RunHeartbeat, *, is_first: bool) -> None:
    """Write a heartbeat.

    A new file costs thirty times as much as to write over the file, which readers may see half-written. So only counts
    are written over: a mix of two counters is another counter.

    Args:
        path: The file.
        record: The heartbeat.
        is_first: Whether it differs from the last record by more than the counter.
    """
    storage = find_storage(path)
    content = msgspec.json.encode(record).ljust(RECORD_BYTES)
    if not is_first and len(content) == RECORD_BYTES:
        with suppress(FileNotFoundError):  # an observer took the process for dead, and removed its file
            storage.overwrite(path, content)
            return
    storage.replace(path, content)


class _Counting:
    """Calls a function with 1, 2, 3, ... at an interval, until closed."""

    def __init__(self, control: Path, run_id: str, write: Callable[[int], None]) -> None:
        self._run_id = run_id
        self._write = write
        self._counter = 0
        seconds = _stretch(control, COUNT_SECONDS)
        self._ticker = _COUNTERS if seconds == COUNT_SECONDS else Ticker("heartbeat", seconds, 1)
        self._lock = threading.Lock()
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start to count."""
        self._end = self._ticker.add(self._count)

    def once(self) -> None:
        """Count once, now."""
        with self._lock:
            self._counter += 1
            self._write(self._counter)

    def close(self) -> None:
        """Count no more."""
        self._end()

    def _count(self) -> None:
        if self._run_id in _STOPPED:
            return
        with suppress(OSError):  # a disk that is full for a moment: the next count shows that this process lives
            self.once()


class Heartbeat:
    """Heartbeat of one epoch on its own thread, until closed.

    Attributes:
        control: The stream's folder of heartbeats and requests.
        epoch: The epoch.
    """

    def __init__(self, control: Path, epoch: int, *, never_ending: bool = False, run_id: str = "") -> None:
        self.control = control
        self.epoch = epoch
        self._path = _liveness(control, epoch)
        self._never_ending = never_ending
        self._run_id = run_id
        self._phase = Phase.WRITING
        self._written: Phase | None = None
        self._counting = _Counting(control, run_id, self._write)

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

    def drain(self) -> None:
        """Record that the writer commits its last batch; counts at once, the first time."""
        if self._phase is Phase.WRITING:
            self._phase = Phase.DRAINING
            with suppress(OSError):  # the next count records it
                self._counting.once()

    def _write(self, counter: int) -> None:
        record = HeartbeatRecord(counter, self._phase, self._never_ending, self._run_id)
        _write_record(self._path, record, is_first=self._phase is not self._written)
        self._written = self._phase


@contextmanager
def run_heartbeat(control: Path, run_id: str) -> Iterator[None]:
    """Heartbeat of a run while the block lasts; a killed run leaves its file behind."""
    path = _run_liveness(control, run_id)
    process = read_this_process()
    counting = _Counting(
        control,
        run_id,
        lambda counter: _write_record(path, RunHeartbeat(counter, process), is_first=counter == 1),
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
    heartbeats: dict[str, RunHeartbeat] = {}
    storage = find_storage(control)
    for path in storage.find_files(control, f"*{RUN_FILE}"):
        record = _read_record(path, RunHeartbeat)
        if record is not None:
            heartbeats[path.name.removesuffix(RUN_FILE)] = record
    return heartbeats


def is_run_counting(control: Path, run_id: str) -> bool:
    """Poll until the counter of a run changes or counts as dead. Takes one to three seconds."""
    first = read_run_heartbeats(control).get(run_id)
    if first is None:
        return False
    for _ in range(POLLS):
        time.sleep(compute_poll_seconds(control))
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
    paths = find_storage(control).find_files(control, "liveness-*.json")
    return [int(path.stem.removeprefix("liveness-")) for path in paths]


def forget_run(control: Path, run_id: str) -> None:
    """Remove the file of a dead run."""
    find_storage(control).delete(_run_liveness(control, run_id))


def read_this_process() -> ProcessIdentity | None:
    """This process; None without /proc."""
    pid = os.getpid()
    started = _started(pid)
    place = _place()
    if started is None or place is None:
        return None
    return ProcessIdentity(pid, started, place)


def is_process_alive(process: ProcessIdentity | None) -> bool:
    """Whether a process is known to live; False also if it cannot be seen from here."""
    return process is not None and process.place == _place() and process.started == _started(process.pid)


def is_process_gone(process: ProcessIdentity | None) -> bool:
    """Whether a process of this machine is known to have ended; False if it cannot be seen from here."""
    return process is not None and process.place == _place() and process.started != _started(process.pid)


def is_writer_alive(control: Path, epoch: int) -> bool:
    """Poll until the counter of an epoch changes or counts as dead."""
    first = read_heartbeat(control, epoch)
    if first is None or first.phase is Phase.ENDED:
        return False
    for _ in range(POLLS):
        time.sleep(compute_poll_seconds(control))
        if read_heartbeat(control, epoch) != first:
            break
    last = read_heartbeat(control, epoch)
    return last is not None and last != first and last.phase is not Phase.ENDED


def read_heartbeat(control: Path, epoch: int) -> HeartbeatRecord | None:
    """The newest heartbeat of an epoch; None without one."""
    return _read_record(_liveness(control, epoch), HeartbeatRecord)


def find_writer(control: Path, epoch: int) -> WriterState:
    """State of an epoch's writer, after observing its counter for one to three seconds if it has not ended."""
    last = read_heartbeat(control, epoch)
    if last is None:
        return WriterState.NONE
    if last.phase is Phase.ENDED:
        return WriterState.ENDED
    if is_writer_alive(control, epoch):
        return WriterState(last.phase.value)
    newest = read_heartbeat(control, epoch)
    if newest is not None and newest.phase is Phase.ENDED:  # it ended while its counter was observed
        return WriterState.ENDED
    return WriterState.GONE


def find_heartbeat_time(control: Path, epoch: int) -> float | None:
    """Time of the newest heartbeat of an epoch, in seconds since 1970 (UTC), by the storage's clock; None without one.

    For alarms only: whether a writer is alive is decided by its counter.
    """
    status = find_storage(control).get_status(_liveness(control, epoch))
    return None if status is None else status.modified_at


def compute_poll_seconds(control: Path) -> float:
    """Seconds in which the counter of a living process changes."""
    return max(POLL_SECONDS, _stretch(control, COUNT_SECONDS))


def _started(pid: int) -> int | None:
    """Start time of a process; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":  # a zombie, or dead
        return None
    return int(fields[19])


def _place() -> str | None:
    boot = read_boot_id()
    if boot is None:
        return None
    try:
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _run_liveness(control: Path, run_id: str) -> Path:
    return control / f"{run_id}{RUN_FILE}"


def _stretch(control: Path, seconds: float) -> float:
    """An interval; each poll may cost a request."""
    return seconds * find_storage(control).poll_factor


def _liveness(control: Path, epoch: int) -> Path:
    return control / f"liveness-{epoch}.json"
