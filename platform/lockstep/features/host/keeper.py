"""Keeps one stream running, on a thread of the host."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from lockstep.control.heartbeat import forget_run, is_run_counting, read_run_heartbeats, stop_heartbeats
from lockstep.declare.options import find_longest_wait
from lockstep.engine.driver.context import RunReports
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.features.host.start_policy import LASTING_SECONDS, compute_pause_seconds, decide_start
from lockstep.features.host.turns import StartTurns
from lockstep.foreign_errors import describe_error
from lockstep.integrity.resume_options import StreamHalted
from lockstep.operations.stream_table import try_read_head
from lockstep.storage import find_storage
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from pyspark import SparkContext

    from lockstep.declare.stream import AnyStream
    from lockstep.engine.driver.main_thread import StopSignal
    from lockstep.engine.driver.metrics import BatchReport
    from lockstep.engine.driver.startup import Launch
    from lockstep.model.tuning import Tuning
    from lockstep.settings import Settings

LOG = logging.getLogger("lockstep")
POLL_SECONDS = 2.0
"""Interval at which the head of a stream that waits is read."""
HANG_BATCHES = 2
HANG_SECONDS_MIN = 600.0
"""The longest pause between two starts is half of it."""
HUNG_MAX = 3
"""Threads of a stream that hang at the same time; a disk that answers no more would add one every ten minutes."""


class RunEnd(msgspec.Struct, frozen=True):
    """The end of a stream's run in a host.

    Attributes:
        stream: Name of the stream.
        outcome: Its outcome, such as "handed over", "halted" or "failed".
        reason: The error that ended it; it names no session of a halt.
    """

    stream: str
    outcome: str
    reason: str = ""


class HostReports:
    """Receives the events of a host; this class ignores them."""

    def note_batch(self, stream: str, report: BatchReport) -> None:
        """Take a committed batch; called on the thread of the stream."""

    def note_end(self, end: RunEnd) -> None:
        """Take the end of a run; called on the thread of the stream."""

    def tick(self, stopping: StopSignal) -> None:
        """Report, or request a stop; called about twice a second on the main thread."""


class HostContext(msgspec.Struct, frozen=True, kw_only=True):
    """Shared parts of the streams of a host.

    Attributes:
        cause: Cause of the runs that it starts.
        settings: Addresses of Kafka and the tables.
        spark: Starts the Spark of this process once, and returns it.
        turns: Of the streams that start.
        stopping: Whether the host stops.
        reports: Receives the batches and the ends of runs.
        tuning: Intervals, attempts and sizes of all runs.
        fail: Ends the host with an error that all streams share.
        is_spark_alive: Whether the Spark of this process can run jobs, or has not been started.
        has_job: Whether a job of a run has not ended.
        end_jobs: Cancels the jobs of a run.
    """

    cause: str
    settings: Settings
    spark: Callable[[], SparkContext]
    turns: StartTurns
    stopping: StopSignal
    reports: HostReports
    tuning: Tuning
    fail: Callable[[Exception], None]
    is_spark_alive: Callable[[], bool]
    has_job: Callable[[str], bool]
    end_jobs: Callable[[str], None]


class RunStop(threading.Event):
    """Whether the thread of a stream is to end: with the host, or because it hangs.

    Attributes:
        asked_at: When the thread asked last, by the monotonic clock.
    """

    def __init__(self, host: threading.Event) -> None:
        """Nothing is asked yet.

        Args:
            host: Whether the host stops.
        """
        super().__init__()
        self.asked_at = time.monotonic()
        self._host = host
        self._thread: int | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether the thread hangs, and another thread has replaced it."""
        return super().is_set()

    def note_thread(self) -> None:
        """Watch this thread: other threads poll the event, too."""
        self._thread = threading.get_ident()

    def is_set(self) -> bool:
        """Whether to end."""
        if threading.get_ident() == self._thread:
            self.asked_at = time.monotonic()
        return self._host.is_set() or super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the stop of the host; a thread that hangs waits for nothing."""
        self._host.wait(timeout)
        return self.is_set()


def compute_hang_seconds(stream: AnyStream) -> float:
    """Time without a sign of a stream's thread after which it hangs: twice that of a batch, and the wait for it."""
    batch_seconds = max(HANG_SECONDS_MIN, HANG_BATCHES * stream.limits.batch_seconds)
    return find_longest_wait(stream.trigger).total_seconds() + batch_seconds


class StreamKeeper:
    """Runs a stream again and again, as its desired state demands.

    A halt, a stop or a failure of the stream ends its run, and no other run. A thread that hangs, for example in a call
    of a storage that never returns, is replaced: its jobs are cancelled, its run counts as dead, and a new thread runs
    the stream with the next epoch. If the old thread returns, that epoch refuses its commit, and it ends.

    Attributes:
        stream: The declaration.
        launch: Of the newest run; None before the first.
        is_running: Whether that run has not ended.
    """

    def __init__(self, stream: AnyStream, context: HostContext, replaced: tuple[StreamKeeper, ...] = ()) -> None:
        """Nothing runs yet.

        Args:
            stream: The declaration.
            context: Shared parts of the streams of the host.
            replaced: Keepers of the stream whose threads hang, the newest last.
        """
        self.stream = stream
        self.launch: Launch | None = None
        self.is_running = False
        self._context = context
        self._folders = StreamFolders(stream.name, context.settings.table_root)
        self._failures = len(replaced)
        self._told = ""
        self._replaced = replaced
        self._stop = RunStop(context.stopping.wanted)
        self._thread = threading.Thread(target=self._keep, name=f"stream {stream.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def has_ended(self, timeout_seconds: float) -> bool:
        """Whether the thread ends within a time, after a stop of the host."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def replace_hung(self) -> StreamKeeper:
        """Return this keeper, or its started successor if its thread hangs. Called on the main thread.

        Threads that never return stay until the process ends: of a few for a stream, no more are replaced.
        """
        now = time.monotonic()
        if self.launch is not None and self._context.has_job(self.launch.run_id):
            self._stop.asked_at = now  # the deadline of the batch decides
        seconds = compute_hang_seconds(self.stream)
        alive = tuple(each for each in self._replaced if each.is_thread_alive())
        if now - self._stop.asked_at < seconds or self._context.stopping.wanted.is_set() or len(alive) >= HUNG_MAX:
            return self
        self._stop.set()
        if self.launch is not None:
            stop_heartbeats(self.launch.run_id)
            self._context.end_jobs(self.launch.run_id)
        reason = f"its thread hangs: no sign of it for {seconds:g} s; a new thread runs the stream"
        LOG.error("stream %s: %s", self.stream.name, reason)
        self._context.reports.note_end(RunEnd(self.stream.name, "failed", reason))
        successor = StreamKeeper(self.stream, self._context, (*alive, self))
        successor.start()
        return successor

    def is_thread_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def _keep(self) -> None:
        stop = self._stop
        stop.note_thread()
        while not stop.is_set():
            try:
                pause_seconds = self._attempt()
            except Exception as error:  # noqa: BLE001  # the outermost edge of a stream: the others go on
                if stop.is_abandoned or (stop.is_set() and self._context.stopping.explains(error)):
                    break
                pause_seconds = self._note_error(error)
            stop.wait(pause_seconds)

    def _attempt(self) -> float:
        """Run the stream if it is to run; return the seconds until the next read of its head."""
        head = try_read_head(self._folders)
        decision = decide_start(head, self._context.cause)
        poll_seconds = POLL_SECONDS * find_storage(self._folders.table).poll_factor
        if decision.launch is None:
            self._tell(decision.reason)
            return poll_seconds
        if self.launch is not None and self._is_run_elsewhere():
            self._tell("another run writes it, or is about to; it starts here again after the end of that run")
            return poll_seconds
        began = time.monotonic()
        self.launch = msgspec.structs.replace(decision.launch, tuning=self._context.tuning)
        self.is_running = True
        try:
            outcome = self._run(self.launch)
        finally:
            self.is_running = False
            if time.monotonic() - began >= LASTING_SECONDS:
                self._failures = 0
        if self._stop.is_abandoned:
            return 0.0
        self._failures = 0
        self._told = ""
        LOG.info("stream %s: %s", self.stream.name, outcome.value)
        self._context.reports.note_end(RunEnd(self.stream.name, outcome.value))
        return poll_seconds if outcome is not RunOutcome.STOPPED else 0.0

    def _is_run_elsewhere(self) -> bool:
        """Whether another run writes the stream or is about to claim it; polls for some seconds."""
        control = self._folders.control
        for run_id in read_run_heartbeats(control):
            if is_run_counting(control, run_id):
                return True
            forget_run(control, run_id)  # of a killed process: the next read does not poll it again
        return False

    def _run(self, launch: Launch) -> RunOutcome:
        name = self.stream.name
        turns = self._context.turns

        def start_spark() -> SparkContext:
            context = self._context.spark()
            turns.take(name, self._stop)  # until the stream is settled; the checks before it need no turn
            return context

        reports = RunReports(
            batch=lambda batch: self._context.reports.note_batch(name, batch),
            settled=lambda: turns.end(name),
        )
        try:
            return run_stream(
                self.stream, self._context.settings, spark=start_spark, stop=self._stop, reports=reports, launch=launch
            )
        finally:
            turns.end(name)

    def _note_error(self, error: Exception) -> float:
        """Report the error that ended a run; return the seconds until the next start."""
        if not self._context.is_spark_alive():
            self._context.fail(error)
            return 0.0
        name = self.stream.name
        if isinstance(error, StreamHalted):
            reason = str(error.without_sessions())
            self._tell(reason)
            self._context.reports.note_end(RunEnd(name, "halted", reason))
            return POLL_SECONDS
        self._failures += 1
        pause_seconds = compute_pause_seconds(self._failures)
        reason, trace = describe_error(error, name)
        LOG.error(
            "stream %s failed: %s; the next start is in %g s, the other streams go on",
            name,
            reason,
            pause_seconds,
            exc_info=trace,
        )
        self._context.reports.note_end(RunEnd(name, "failed", reason))
        return pause_seconds

    def _tell(self, reason: str) -> None:
        """Log why the stream waits, once."""
        if reason != self._told:
            self._told = reason
            LOG.warning("stream %s waits: %s", self.stream.name, reason)
