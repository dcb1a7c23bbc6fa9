"""The Spark of a process, shared by the streams that run in it.

PySpark has one Spark in a process. Its cores, Python workers and executors belong to all streams of the process; jobs
belong to one stream each, and only these are cancelled with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Self
from weakref import WeakKeyDictionary

import msgspec

from lockstep.engine.driver.executors import LOOK_SECONDS, count_cores, count_running_tasks

if TYPE_CHECKING:
    from pyspark import SparkContext

EMPTY = b""
"""An empty task, which occupies a worker's place in the order of tasks, and its result."""
SURPLUS = b"surplus"
"""An empty task that ends its worker."""
PLACES_MAX = 4
"""With more places than this, empty tasks, at some milliseconds of CPU time each, would cost more than they save."""
SURPLUS_BATCHES = 20
"""Workers that so many batches of each stream did not need are ended; a new worker is forked in some 10 ms."""
POOL_PROPERTY = "spark.scheduler.pool"
"""Spark's local property: with `spark.scheduler.mode=FAIR`, pools get equal shares of the cores."""
TURNS = 4
"""Pools for each stream. A job in the last of them waits until the others have had so many turns; each pool is sorted
whenever a core is free."""


class WorkerPlaces:
    """The order in which the tasks of a batch are started.

    A bin is started in the place in which it ended the last time: Spark assigns tasks, in their order, to the Python
    workers in the order in which these became free. So a bin runs in the worker that has its sessions decoded. If a
    batch has fewer bins than before, empty tasks occupy the places of the missing bins; otherwise bins would change
    their workers. A worker that no batch needs for a while is ended: two workers that become free at the same
    time may change places.

    The tasks of several streams mix, so that no order can be kept: then the only empty tasks are those that end
    surplus workers.
    """

    def __init__(self, cores: int) -> None:
        """No worker is known yet.

        Args:
            cores: Tasks that run at once.
        """
        self._cores = cores
        self._places = 0
        self._bins = deque[int]()

    def arrange(
        self, tasks: Sequence[bytes], ended: Sequence[int], *, streams: int = 1, unfinished: int = 0
    ) -> list[tuple[int, bytes]]:
        """The tasks, each with the number of its bin, and empty ones, in the order in which they are started.

        Args:
            tasks: The bins.
            ended: The numbers of the batch before, in the order in which their tasks ended.
            streams: Streams of the process.
            unfinished: Unfinished tasks of the other streams.
        """
        window = SURPLUS_BATCHES * streams
        self._bins.append(min(len(tasks) + unfinished, self._cores))
        while len(self._bins) > window:
            self._bins.popleft()
        places = max(self._bins)
        if len(self._bins) < window:  # too early to end workers
            places = max(places, self._places)
        surplus = max(0, self._places - places)
        self._places = places
        empty = 0
        place_of = dict[int, int]()
        if streams == 1:  # the tasks of several streams mix: no order can be kept
            place_of = {number: place for place, number in enumerate(ended)}
            if places <= PLACES_MAX:
                empty = max(0, places - len(tasks))
        numbered = enumerate([*tasks, *[EMPTY] * empty, *[SURPLUS] * surplus])
        return sorted(numbered, key=lambda task: place_of.get(task[0], len(place_of)))


class LateTask(msgspec.Struct, frozen=True):
    """The last late task of an executor.

    Attributes:
        run_id: Run of the stream.
        at: Time of its cancellation, by the monotonic clock.
    """

    run_id: str
    at: float


class SharedSpark:
    """A Spark, and the streams of this process that run jobs on it."""

    _known: ClassVar[WeakKeyDictionary[SparkContext, SharedSpark]] = WeakKeyDictionary()
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, context: SparkContext) -> None:
        """No stream runs yet. Use `of`: all streams of a Spark need the same object."""
        self._lock = threading.Lock()
        self._unfinished = dict[str, int]()
        self._places = WorkerPlaces(count_cores(context))
        self._late = dict[str, LateTask]()
        self._turn = 0

    @classmethod
    def of(cls, context: SparkContext) -> SharedSpark:
        """The object of a Spark; the same for all its streams."""
        with cls._making:
            shared = cls._known.get(context)
            if shared is None:
                shared = cls(context)
                cls._known[context] = shared
            return shared

    @property
    def is_shared(self) -> bool:
        """Whether more than one stream runs."""
        return len(self._unfinished) > 1

    def add(self, run_id: str) -> None:
        """Count a stream that runs from now on."""
        with self._lock:
            self._unfinished[run_id] = 0

    def remove(self, run_id: str) -> None:
        """Count a stream no more."""
        with self._lock:
            self._unfinished.pop(run_id, None)

    def limit_cores(self, cores: int) -> int:
        """Cores that a batch may use: one stream of several leaves a core to the others."""
        return max(1, cores - 1) if self.is_shared else cores

    def start_job(self, run_id: str, tasks: Sequence[bytes], ended: Sequence[int]) -> list[tuple[int, bytes]]:
        """The tasks of a job in the order in which they are started, by `WorkerPlaces`."""
        with self._lock:
            unfinished = sum(self._unfinished.values()) - self._unfinished.get(run_id, 0)
            self._unfinished[run_id] = len(tasks)
            return self._places.arrange(tasks, ended, streams=len(self._unfinished), unfinished=unfinished)

    def end_job(self, run_id: str) -> None:
        """Count the tasks of a job no more."""
        with self._lock:
            if run_id in self._unfinished:
                self._unfinished[run_id] = 0

    def choose_pool(self) -> str:
        """The name of the pool of the next job.

        Of pools with equal shares Spark serves the first by name. With a pool for each stream, the last streams by name
        would get no core while the others keep all cores busy. So jobs use numbered pools in turn: the job that has
        waited longest is served first.
        """
        with self._lock:
            self._turn = (self._turn + 1) % (TURNS * max(1, len(self._unfinished)))
            return f"{self._turn:05d}"

    def has_job(self, run_id: str) -> bool:
        """Whether a job of a run has not ended."""
        return bool(self._unfinished.get(run_id))

    def note_late(self, run_id: str, executors: frozenset[str], now: float, rest_seconds: float) -> frozenset[str]:
        """Note executors with late tasks; returns those to replace, which had late tasks lately before.

        A replaced executor loses the tasks of all streams. So if several streams run, tasks of two of them must be
        late: the tasks of one stream may be late for a reason of that stream.
        """
        with self._lock:
            recent = {name: last for name, last in self._late.items() if now - last.at < rest_seconds}
            others = self.is_shared
            repeated = set[str]()
            for name in executors & recent.keys():
                if not others or recent[name].run_id != run_id:
                    repeated.add(name)
            self._late = recent | dict.fromkeys(executors, LateTask(run_id, now))
            return frozenset(repeated)


class StreamJobs:
    """The jobs of one stream on the Spark of its process.

    Attributes:
        context: Spark.
        run_id: Id of the run; its jobs are the job group of this name.
        pool: Name of the pool of its newest job.
    """

    def __init__(self, context: SparkContext, run_id: str) -> None:
        self.context = context
        self.run_id = run_id
        self.pool = ""
        self._shared = SharedSpark.of(context)

    @contextmanager
    def on_this_thread(self, stream: str) -> Iterator[Self]:
        """Jobs of this thread belong to the stream within the block.

        Args:
            stream: Name of the stream, which Spark's pages show.
        """
        self._shared.add(self.run_id)
        self.context.setJobGroup(self.run_id, f"stream {stream}")
        self._choose_pool()
        try:
            yield self
        finally:
            self._shared.remove(self.run_id)

    def count_cores(self) -> int:
        """Cores that the next batch may use."""
        return self._shared.limit_cores(count_cores(self.context))

    def start(self, tasks: Sequence[bytes], ended: Sequence[int]) -> list[tuple[int, bytes]]:
        """As `SharedSpark.start_job`; the job of this thread that follows has the next pool."""
        if self._shared.is_shared:
            self._choose_pool()
        return self._shared.start_job(self.run_id, tasks, ended)

    def end(self) -> None:
        """Count the tasks of the job no more."""
        self._shared.end_job(self.run_id)

    def note_late(self, executors: frozenset[str], now: float, rest_seconds: float) -> frozenset[str]:
        """As `SharedSpark.note_late`."""
        return self._shared.note_late(self.run_id, executors, now, rest_seconds)

    def are_running(self, tasks: int) -> bool:
        """Whether so many tasks of the job run. The tasks of one stream alone start immediately."""
        if not self._shared.is_shared:
            return True
        running = count_running_tasks(self.context, self.pool)
        return running is None or running >= tasks

    def _choose_pool(self) -> None:
        self.pool = self._shared.choose_pool()
        self.context.setLocalProperty(POOL_PROPERTY, self.pool)


class JobClock:
    """Seconds since the first task of a job started: tasks of other streams may have all cores until then."""

    def __init__(self, started_at: float, has_started: Callable[[], bool]) -> None:
        """Nothing is asked yet.

        Args:
            started_at: Start of the job, by the monotonic clock.
            has_started: Whether a task of it has started; asked once in `LOOK_SECONDS`.
        """
        self._has_started = has_started
        self._asked = started_at - LOOK_SECONDS
        self._since: float | None = None

    def read(self, now: float) -> float:
        """The seconds; 0 until a task has started."""
        if self._since is None and now - self._asked >= LOOK_SECONDS:
            self._asked = now
            if self._has_started():
                self._since = now
        return 0.0 if self._since is None else now - self._since
