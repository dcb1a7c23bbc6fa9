"""Runs many streams in this process, with one Spark and a thread for each stream.

Each stream keeps its epoch, claim, heartbeat, requests, desired state and halts, as in a separate process. Driver and
JVM are shared fate: without them the host ends with an error, and its next start brings all streams back.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lockstep.declare.options import AvailableNow
from lockstep.engine.driver.import_roots import find_import_roots
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.engine.driver.shared_spark import SharedSpark
from lockstep.errors import LockstepError, format_some
from lockstep.features.host.keeper import HostContext, HostReports, StreamKeeper
from lockstep.features.host.presence import HostPresence
from lockstep.features.host.turns import StartTurns
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.spark.session import start_context
from lockstep.spark.shutdown import end_jobs, is_context_alive, stop_context
from lockstep.table.layout import require_root

if TYPE_CHECKING:
    from pyspark import SparkContext

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings, SparkSettings

LOG = logging.getLogger("lockstep")
JOIN_SECONDS = 0.5
STOP_SECONDS_SPARE = 5.0
"""Time for the last streams to end after their jobs were cancelled."""
REPLACED = "a host that started later runs its streams"
"""Why a host ended that another host has replaced."""


class HostLaunch(msgspec.Struct, frozen=True):
    """Origin of a host.

    Attributes:
        cause: Cause of the runs that it starts.
        host_id: Id of the host; Dagster's id of its run.
        ends_replaced: Whether it ends after a host of its group that started later has taken all its streams;
            otherwise it waits as a standby.
    """

    cause: str
    host_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    ends_replaced: bool = False


class HostEnded(msgspec.Struct, frozen=True):
    """The end of a host.

    Attributes:
        host: Its name.
        streams: Names of its streams.
        abandoned: Names of the streams whose batch did not end in time; nothing of these batches is visible.
        reason: Why it ended.
    """

    host: str
    streams: tuple[str, ...]
    abandoned: tuple[str, ...]
    reason: str


class SparkGone(LockstepError):
    """The Spark of a host cannot run jobs any more: all its streams end.

    Attributes:
        host: Name of the host.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(
            f"the Spark of host {host} is gone: {reason}",
            next_step=f"start it again: lockstep host --group {host}; each stream continues from its last commit",
        )
        self.host = host


class SharedContext:
    """The Spark of the process: started by the first stream that needs it."""

    def __init__(self, settings: SparkSettings, name: str, import_roots: tuple[Path, ...]) -> None:
        """Nothing is started yet.

        Args:
            settings: Master, memory and options.
            name: Of the application.
            import_roots: Folders from which workers import the modules of all streams.
        """
        self._settings = settings
        self._name = name
        self._import_roots = import_roots
        self._lock = threading.Lock()
        self._has_failed = False
        self._context: SparkContext | None = None

    def start(self) -> SparkContext:
        """Start Spark once, and return it.

        Raises:
            EnvironmentProblem: Spark does not start with these settings.
        """
        with self._lock:
            if self._context is None:
                try:
                    self._context = start_context(self._settings, self._name, import_roots=self._import_roots)
                except LockstepError:
                    self._has_failed = True
                    raise
            return self._context

    def is_alive(self) -> bool:
        """Whether it can run jobs, or has not been started; False also after a start that failed."""
        if self._context is None:
            return not self._has_failed
        return is_context_alive(self._context)

    def has_job(self, run_id: str) -> bool:
        """Whether a job of a run has not ended."""
        return self._context is not None and SharedSpark.of(self._context).has_job(run_id)

    def end_jobs(self, group: str | None = None) -> None:
        """Cancel the jobs of a run, by default all jobs."""
        if self._context is not None:
            end_jobs(self._context, group)

    def stop(self) -> None:
        """Stop it."""
        if self._context is not None:
            stop_context(self._context)


class Host:
    """Streams that run in this process, each on a thread."""

    def __init__(
        self,
        name: str,
        streams: Sequence[AnyStream],
        settings: Settings,
        *,
        launch: HostLaunch | None = None,
        reports: HostReports | None = None,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """Nothing runs yet.

        Args:
            name: Name of the host.
            streams: The streams, one at least; none ends by itself.
            settings: Addresses of Kafka and the tables, and Spark.
            launch: Its origin; by default the command line.
            reports: Receives the batches and the ends of runs.
            tuning: Intervals, attempts and sizes of all runs.
        """
        self._name = name
        self._root = settings.table_root
        self._launch = HostLaunch(f"host {name}") if launch is None else launch
        self._presence = HostPresence(settings.table_root, name, self._launch.host_id)
        self._reports = HostReports() if reports is None else reports
        self._stopping = StopSignal()
        self._errors = list[Exception]()
        roots = dict.fromkeys(chain.from_iterable(map(find_import_roots, streams)))
        self._spark = SharedContext(settings.spark, f"lockstep host {name}", tuple(roots))
        context = HostContext(
            cause=self._launch.cause,
            settings=settings,
            spark=self._spark.start,
            turns=StartTurns(),
            stopping=self._stopping,
            reports=self._reports,
            tuning=tuning,
            fail=self._fail,
            is_spark_alive=self._spark.is_alive,
            has_job=self._spark.has_job,
            end_jobs=self._spark.end_jobs,
        )
        self._keepers = [StreamKeeper(stream, context) for stream in streams]
        self._abandoned = dict[str, None]()

    def run(self) -> HostEnded:
        """Run the streams until the host is stopped; each ends at its batch boundary, or after its stop_timeout.

        Raises:
            SparkGone: Spark cannot run jobs any more.
            TableRootMissing: The table root was named in the settings, and does not exist.
        """
        # Each stream ends within its own time; the host waits for the longest.
        longest = max(keeper.stream.limits.stop_timeout_seconds for keeper in self._keepers)
        require_root(self._root)
        try:
            with self._presence:
                run_off_main_thread(
                    self._work,
                    self._stopping,
                    patience_seconds=longest + STOP_SECONDS_SPARE,
                    tick=self._tick,
                    abandon=self._spark.end_jobs,
                )
        except StopTimeout:
            LOG.warning("host %s did not end in time: the rest of its streams is abandoned", self._name)
            self._abandoned |= dict.fromkeys(each.stream.name for each in self._list_running())
        finally:
            self._spark.stop()
        if self._errors:
            raise SparkGone(self._name, str(self._errors[0])) from self._errors[0]
        names = tuple(keeper.stream.name for keeper in self._keepers)
        return HostEnded(self._name, names, tuple(self._abandoned), self._stopping.reason)

    def _work(self) -> None:
        for keeper in self._keepers:
            keeper.start()
        while running := self._list_running():
            # With a timeout: `_tick` may have replaced the keeper meanwhile.
            running[0].has_ended(JOIN_SECONDS)

    def _fail(self, error: Exception) -> None:
        self._errors.append(error)
        self._stopping.ask("Spark is gone")

    def list_launched(self) -> dict[str, str]:
        """The run that each stream had last, by name of the stream; empty for a stream that never ran here."""
        launched = dict[str, str]()
        for keeper in self._keepers:
            launch = keeper.launch
            launched[keeper.stream.name] = "" if launch is None else launch.run_id
        return launched

    def _tick(self) -> None:
        self._abandon_late()
        self._keepers = [keeper.replace_hung() for keeper in self._keepers]
        self._reports.tick(self._stopping)
        is_idle = not any(keeper.is_running for keeper in self._keepers)
        if self._launch.ends_replaced and is_idle and self._presence.has_successor():
            self._stopping.ask(REPLACED)

    def _abandon_late(self) -> None:
        """Cancel the jobs of each stream that has not ended within its own time after the stop."""
        stopping_seconds = self._stopping.seconds()
        if not stopping_seconds:
            return
        for keeper in self._list_running():
            name = keeper.stream.name
            is_late = stopping_seconds > keeper.stream.limits.stop_timeout_seconds
            if is_late and name not in self._abandoned and keeper.launch is not None:
                LOG.warning("stream %s: the batch did not end in time and is abandoned", name)
                self._abandoned[name] = None
                self._spark.end_jobs(keeper.launch.run_id)

    def _list_running(self) -> list[StreamKeeper]:
        return [keeper for keeper in self._keepers if not keeper.has_ended(0)]


def choose_streams(declared: Iterable[AnyStream], group: str) -> tuple[AnyStream, ...]:
    """The continuous streams of a group, by name.

    Raises:
        LockstepError: The group has none.
    """
    declared = tuple(declared)
    chosen = list_hosted(declared, group)
    if not chosen:
        groups = sorted({stream.host_group for stream in declared if stream.host_group is not None})
        listed = format_some(groups) if groups else "none"
        raise LockstepError(
            f"no continuous stream declares host_group={group!r}",
            next_step=f"declare it, or choose one of the declared groups: {listed}; "
            "streams with the trigger AvailableNow end by themselves and run by lockstep run STREAM",
        )
    return chosen


def list_hosted(declared: Iterable[AnyStream], group: str) -> tuple[AnyStream, ...]:
    """The continuous streams of a group, by name; perhaps none."""
    of_group = [stream for stream in declared if stream.host_group == group]
    continuous = [stream for stream in of_group if not isinstance(stream.trigger, AvailableNow)]
    return tuple(sorted(continuous, key=lambda stream: stream.name))
