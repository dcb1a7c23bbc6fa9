"""A live run: the broker's topics, the stream, the pacer and the observer, each a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import msgspec

from benchmarks import live_bare
from benchmarks.feed import empty_topics, forget_positions, produce
from benchmarks.live_side import LOCAL, LiveTask
from benchmarks.measure import run_measured
from benchmarks.pacer import READY_SUFFIX, Paced
from benchmarks.reaper import descendants
from benchmarks.rounds import WrongRowsError
from benchmarks.seen import Commit, Delays, commits, created_ms, reached, read_batch_seconds, read_delays
from benchmarks.systems import REFERENCE, STREAM, Task, environment
from benchmarks.verify import digest_of
from benchmarks.workload import Size, interleaved
from lockstep.features.localdev.processes import start_child
from lockstep.features.rehearsal import observer
from lockstep.table.layout import StreamFolders

PATIENCE_SECONDS = 180.0
_POLL_SECONDS = 0.25
_LOG_LINES = 20


class LiveRunError(Exception):
    """A part of a live run failed, or did not reach its condition in time.

    Attributes:
        log: The end of the part's log.
    """

    def __init__(self, what: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        self.log = "\n".join(lines[-_LOG_LINES:])
        super().__init__(f"{what}\n{self.log}\n  next: run it again with --keep and read {log}")


@dataclass(frozen=True)
class LiveProgram:
    """A program that folds the messages as they come, and is observed.

    Attributes:
        name: Its name in the results.
        module: The module for `python -m`; it takes the arguments of `LiveTask`.
        table: Its Delta table below the output folder.
        count_reached: Messages read up to the newest commit, given the output folder.
    """

    name: str
    module: str
    table: str
    count_reached: Callable[[Path], int]


def count_reached(output: Path) -> int:
    """Count the messages up to the newest commit of lockstep."""
    return reached(StreamFolders(STREAM, output).ledger)


LOCKSTEP = LiveProgram("lockstep", "benchmarks.live_side", f"{STREAM}/table", count_reached)
READY = LiveProgram("ready fold", "benchmarks.live_ready_side", f"{STREAM}/table", count_reached)
BARE = LiveProgram("bare loop", "benchmarks.live_bare", live_bare.TABLE, live_bare.count_reached)
"""The reference: one Parquet file and one Delta commit every so many seconds, without any promise."""


@dataclass(frozen=True)
class Stage:
    """The environment of a live run.

    Attributes:
        bootstrap_servers: The broker.
        size: The messages; its topics are emptied at the start.
        folder: A folder of its own.
        trigger_seconds: A batch every so many seconds.
        program: What folds the messages.
    """

    bootstrap_servers: str
    size: Size
    folder: Path
    trigger_seconds: float
    program: LiveProgram = LOCKSTEP

    @property
    def table(self) -> Path:
        """The observed table."""
        return self.folder / self.program.table

    @property
    def folders(self) -> StreamFolders:
        """The stream's tables."""
        return StreamFolders(STREAM, self.folder)

    @property
    def local(self) -> Path:
        """The stream's local stores."""
        return self.folder / LOCAL

    @property
    def log(self) -> Path:
        """The log of all parts."""
        return self.folder / "live.log"

    def open(self) -> None:
        """Empty topics, with the snapshots of all sessions."""
        self.folder.mkdir(parents=True)
        empty_topics(self.bootstrap_servers, self.size)
        forget_positions(self.bootstrap_servers)
        produce(self.bootstrap_servers, interleaved(self.size, 0, self.size.sessions_per_topic))

    def commits(self) -> list[Commit]:
        """The versions of the table that the observer has seen."""
        return commits(self.table, self._seen)

    def delays(self) -> Delays:
        """From creation to visibility, for each row of the table."""
        return read_delays(self.table, self._seen, created_ms(self.bootstrap_servers, self.size))

    def batch_seconds(self, since_ns: int) -> list[float]:
        """Wall seconds of each of lockstep's batches that was seen since then."""
        return read_batch_seconds(self.folders.ledger, self.commits(), since_ns)

    @property
    def _seen(self) -> Path:
        return self.folder / "seen"

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Run the observer in this context."""
        program = [sys.executable, "-I", observer.__file__, str(self.table), str(self._seen)]
        process = start_child(program, folder=self.folder, log=self.log)
        try:
            yield
        finally:
            _end(process)

    def wait(self, what: str, condition: Callable[[], bool], running: subprocess.Popen[bytes]) -> None:
        """Wait for a condition while a process runs.

        Raises:
            LiveRunError: The process ended, or the condition did not hold in time.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if running.poll() is not None:
                raise LiveRunError(f"ended with {running.returncode} before {what}", self.log)
            if time.monotonic() > deadline:
                raise LiveRunError(f"not within {PATIENCE_SECONDS:g} s: {what}", self.log)
            time.sleep(_POLL_SECONDS)

    def wait_until_committed(self, messages: int, running: subprocess.Popen[bytes]) -> None:
        """Wait until that many messages are read, according to the program's commits."""
        count = self.program.count_reached
        self.wait(f"{messages:,} messages are committed", lambda: count(self.folder) >= messages, running)

    def prove(self) -> int:
        """Compare the table with the rows of the bare loop over the same topics; returns their number.

        Raises:
            WrongRowsError: They differ.
        """
        output = self.folder / "bare"
        task = Task(self.bootstrap_servers, self.size.pattern, output, 200_000)
        run_measured(REFERENCE.command(task), environment())
        right, found = digest_of(output), digest_of(self.table)
        if found != right:
            raise WrongRowsError(self.program.name, right, found)
        return found.rows


class LiveStream:
    """The program as a process."""

    def __init__(self, stage: Stage) -> None:
        task = LiveTask(stage.bootstrap_servers, stage.size.pattern, stage.folder, stage.trigger_seconds)
        command = task.command(stage.program.module)
        self._stage = stage
        self.started_ns = time.time_ns()
        self.process = start_child(command, folder=stage.folder, log=stage.log, environment=environment())

    @property
    def pid(self) -> int:
        """The driver's."""
        return self.process.pid

    def stop(self) -> None:
        """End it as an operator's Ctrl-C does.

        Raises:
            LiveRunError: It did not end normally.
        """
        self.process.terminate()
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Wait until it has ended by itself.

        Raises:
            LiveRunError: It did not, or not normally.
        """
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise LiveRunError(f"not ended within {PATIENCE_SECONDS:g} s", self._stage.log) from None
        if code:
            raise LiveRunError(f"the stream ended with {code}", self._stage.log)

    def kill(self) -> None:
        """Kill the driver (SIGKILL); its JVM and workers must detect that themselves, and do."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, whatever happened."""
        if self.process.poll() is None:
            below = descendants(self.pid)
            self.kill()
            for pid in below:
                _kill_if_there(pid)


class Pacer:
    """The pacer as a process: prepared, then started."""

    def __init__(self, stage: Stage, rate: float, first: int, until: int) -> None:
        self._stage, self._go, self._report = stage, stage.folder / "go", stage.folder / "paced.json"
        size = msgspec.json.encode(asdict(stage.size)).decode()
        span = (str(first), str(until), str(rate))
        program = [sys.executable, "-m", "benchmarks.pacer", stage.bootstrap_servers, size, *span]
        self.process = start_child(
            [*program, str(self._go), str(self._report)], folder=stage.folder, log=stage.log, environment=environment()
        )

    def go(self) -> None:
        """Begin to send, once all messages are made."""
        ready = Path(f"{self._go}{READY_SUFFIX}")
        self._stage.wait("the pacer is ready", ready.exists, self.process)
        self._go.touch()

    def finish(self, *, early: bool = False) -> Paced:
        """Wait for its last message, or end it now; returns what it has sent.

        Raises:
            LiveRunError: It failed.
        """
        if early:
            self.process.terminate()
        if self.process.wait():
            raise LiveRunError("the pacer failed", self._stage.log)
        return msgspec.json.decode(self._report.read_bytes(), type=Paced)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def _kill_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
