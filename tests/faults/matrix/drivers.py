"""Drivers in separate processes, which their tests start, kill, stop, wake and await."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Self

import lockstep
from lockstep import Every, Limits, Topics
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import Fenced
from lockstep.features.host.host import Host
from lockstep.features.host.keeper import HostReports
from lockstep.features.localdev.processes import start_child
from lockstep.operations.foreground import format_report, run_in_foreground
from lockstep.settings import load_settings
from lockstep.table.layout import StreamFolders
from tests.faults.crash.run_of_kills import marked
from tests.faults.matrix.streams import faulty
from tests.support.descendants import list_descendants
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import heads

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from lockstep.declare.stream import AnyStream
    from lockstep.engine.driver.metrics import BatchReport


REPOSITORY = Path(__file__).parents[3]
WAIT_SECONDS_MAX = 240.0
POLL_SECONDS = 0.02
GONE_SECONDS_MAX = 30.0


def wait_until(met: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not met():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS_MAX} s: {what}"
        time.sleep(POLL_SECONDS)


@dataclass
class Driver:
    """A driver process and its output."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    @property
    def batches(self) -> int:
        """Number of batches that it has committed."""
        return self.said.count("\nbatch ") + self.said.startswith("batch ")

    @property
    def run_thread(self) -> int:
        """Linux's id of the thread that plans and commits."""
        return int(next(line for line in self.said.splitlines() if line.startswith("thread: ")).split()[1])

    def wait_for_batches(self, count: int) -> None:
        """Wait until it has committed this number of batches."""
        wait_until(lambda: self.batches >= count or not self.lives, f"batch {count}")
        assert self.lives, self.said[-3000:]

    @property
    def lives(self) -> bool:
        """Whether it is still running."""
        return self.process.poll() is None

    def workers(self) -> list[int]:
        """List its Python workers and their daemon."""
        return [pid for pid in list_descendants(self.process.pid) if _runs(pid, "lockstep.spark.worker_daemon")]

    def stop(self) -> None:
        """Send SIGSTOP, as if its machine hangs."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Send SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL and wait for its end."""
        self.process.kill()
        self.process.wait()

    def ended(self) -> int:
        """Wait for its end and return its exit code."""
        wait_until(lambda: not self.lives, f"the end of a driver, which says: {self.said[-2000:]}")
        return int(self.process.returncode)


@dataclass(frozen=True)
class WallClock:
    """The offset of a process's clock, in a file: a test changes it while the process runs."""

    file: Path

    def set(self, hours: float) -> Self:
        """Set the offset from the machine's clock in hours; negative is behind."""
        new = self.file.with_suffix(".new")
        new.write_text(str(hours))
        new.replace(self.file)
        return self

    def read(self) -> float:
        """Return the offset in seconds."""
        return float(self.file.read_text()) * 3600

    def follow(self, patch: Callable[[object, str, object], None] = setattr) -> None:
        """Apply the offset to the Python code of this process: `time`, and `datetime` in lockstep's modules.

        Files, Kafka and the Delta library keep the clock of the machine.
        """
        read = time.time
        read_ns = time.time_ns
        patch(time, "time", lambda: read() + self.read())
        patch(time, "time_ns", lambda: read_ns() + int(self.read() * 1e9))
        for module in [module for name, module in sys.modules.items() if name.startswith("lockstep.")]:
            if module.__file__ is not None and "datetime.now(" in Path(module.__file__).read_text():
                patch(module, "datetime", _MovedDatetime)


class _MovedDatetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # as plain as expected
        return datetime.fromtimestamp(time.time(), tz)


@dataclass
class Drivers:
    """All drivers of one stream into one table root; drivers that still run end with the block."""

    pattern: str
    bootstrap_servers: str
    root: Path
    mark: str = field(default_factory=lambda: f"fault-{uuid.uuid4().hex}")
    started: list[Driver] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self.started:
            if driver.lives:
                driver.wake()
                driver.kill()

    @property
    def folders(self) -> StreamFolders:
        """Folders of the stream's tables."""
        return StreamFolders("faulty", self.root / "tables")

    @property
    def version(self) -> int:
        """The newest version of the output table."""
        return len(heads(self.folders.table)) - 1

    def start(self, *arguments: str, before: tuple[str, ...] = (), batch_messages: int = 20) -> Driver:
        """Start a driver with additional arguments; `before` is a command that executes it."""
        self.root.mkdir(exist_ok=True)
        log = self.root / f"driver-{len(self.started)}.log"
        (self.root / "empty.toml").touch()  # the settings of the user who runs the tests do not apply
        command = [sys.executable, "-m", "tests.faults.matrix.drivers", self.pattern, str(batch_messages), *arguments]
        process = start_child([*before, *command], folder=REPOSITORY, log=log, environment=self._environment())
        self.started.append(Driver(process, log))
        return self.started[-1]

    def finish(self) -> None:
        """Restart by hand, and read all messages in large batches."""
        driver = self.start(batch_messages=10_000)
        assert driver.ended() == 0, driver.said[-3000:]

    def wait_until_gone(self) -> None:
        """Wait until no process of a driver is left (I10)."""
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while left := marked(self.mark):
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(POLL_SECONDS)

    def _environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": f"{Path(lockstep.__file__).parents[1]}:{REPOSITORY}",
            "LOCKSTEP_SETTINGS": str(self.root / "empty.toml"),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(self.root / "tables"),
            "LOCKSTEP_LOCAL_ROOT": str(self.root / "local"),
            "LOCKSTEP_SPARK__MASTER": "local[2,3]",
            "SPARK_LOCAL_DIRS": str(self.root / "spark"),  # a killed driver does not clean up
            "TEST_MARK": self.mark,
        }


def _runs(pid: int, what: str) -> bool:
    try:
        return what.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def alive(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SOON_SECONDS = 0.1


def main() -> None:
    """Run, and print each batch and the outcome."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern")
    parser.add_argument("batch_messages", type=int)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--never-ending", action="store_true")
    parser.add_argument("--host", action="store_true", help="in a host with another stream, without end")
    parser.add_argument("--patience", type=float, default=30.0, help="of a handover, in seconds")
    parser.add_argument("--clock", type=Path, help="file of a `WallClock`")
    given = parser.parse_args()
    if given.clock is not None:
        WallClock(given.clock).follow()
    limits = Limits(batch_messages=given.batch_messages, handover_timeout_seconds=given.patience)
    stream = faulty(given.pattern, limits, Every(seconds=SOON_SECONDS))
    if given.host:
        say(f"outcome: {_run_host(stream)}")
        return
    run = _on_spark if given.spark else _in_this_process
    say(f"outcome: {run(stream, available_now=not given.never_ending).value}")


def _on_spark(stream: AnyStream, *, available_now: bool) -> RunOutcome:
    return run_in_foreground(stream, load_settings(), available_now=available_now, report=Told().append)


def _run_host(stream: AnyStream) -> str:
    """Run a host of the stream and a stream without topics, which share Spark."""
    other = dataclasses.replace(stream, name="other", topics=Topics(pattern="no_such_topics"))
    settings = load_settings()
    settings.table_root.mkdir(exist_ok=True)
    return Host("faults", [stream, other], settings, reports=ToldByHost()).run().reason


class ToldByHost(HostReports):
    """Prints the reports of a host's streams, each after its batch."""

    def note_batch(self, stream: str, report: BatchReport) -> None:
        """Print the report."""
        del stream  # the other stream has no messages
        if report.offsets:
            tell(format_report(report))


def _in_this_process(stream: AnyStream, *, available_now: bool) -> RunOutcome:
    settings = load_settings()
    runs = LocalRuns(stream, settings.kafka.bootstrap_servers, settings.table_root.parent, reports=Told())
    try:
        return runs.run(trigger=None if available_now else stream.trigger)
    except Fenced:
        return RunOutcome.FENCED  # as `run_stream` does: another run claimed in the same moment


class Told(list["BatchReport"]):
    """A list that prints each appended report."""

    def append(self, report: BatchReport) -> None:
        """Print the report."""
        tell(format_report(report))


def tell(line: str) -> None:
    """Print a line and the thread of its batch."""
    say(f"thread: {threading.get_native_id()}")
    say(line)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
