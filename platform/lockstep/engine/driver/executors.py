"""The executors of a Spark application: which there are, and why one cannot run tasks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.spark.session import is_local
from lockstep.time_limit import SLOW, describe_silence

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOK_SECONDS = 1.0
"""Interval at which a running job is asked for its executors: most jobs end before the first time."""
PYTHON_NEEDED = (
    "each executor needs the driver's version of Python, lockstep and the module of the stream: "
    '"spark.pyspark.python" and "spark.executorEnv.PYTHONPATH" in [spark.options] (docs/cluster.md)'
)
SHORT_PATHS_NEEDED = (
    'leave "spark.python.unix.domain.socket.enabled" out of [spark.options], or set it to "false", or name a shorter '
    'folder by "spark.python.unix.domain.socket.dir": the path of a socket has at most 107 bytes (docs/cluster.md#yarn)'
)
LOGS_NEEDED = "correct the cause; the log of the executor, on the page of the master, has it with its frames"
_NAMES_ERROR = re.compile(r"\b[A-Za-z]*(Error|Exception)\b")
_FRAMES = ("at ", "org.", "java.", "Caused by: ", "Error from python worker")
_LONG_PATH = "AF_UNIX path too long"
_UNUSABLE = ("worker_daemon's stdout", "[PYTHON_VERSION_MISMATCH]", "ModuleNotFoundError")
_CANCELLED = re.compile(r"\[SPARK_JOB_CANCELLED\] Job \d+ cancelled ")
_STOPPED = re.compile(
    r"Job \d+ cancelled because SparkContext was shut down|Cannot call methods on a stopped SparkContext"
)
"""The start of Spark's own messages. The text of a failed task, which may quote a message of Kafka, follows later."""
_EXECUTOR = re.compile(r"\(([^()]+ executor [^()]+)\)")


class ExecutorsGone(LockstepError):
    """An application that had executors has had none for long. It may never get one again: the run ends.

    Attributes:
        master: The Spark master.
    """

    def __init__(self, master: str) -> None:
        super().__init__(
            f"{master} has left this application without any executor for long; nothing of the batch is committed",
            next_step="the supervisor starts another run, as a new application; check the master's page for workers; "
            "a master that was started again knows the application only with spark.deploy.recoveryMode "
            "(docs/cluster.md#when-machines-fail)",
        )
        self.master = master


class JobCancelled(EnvironmentProblem):
    """Somebody cancelled the job of a batch, or one of its stages. No message is to blame: the batch is planned again.

    Attributes:
        reason: Spark's own words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"a job of the run was cancelled from outside: {reason}; nothing of the batch is committed",
            next_step="the batch is planned again; find who cancels jobs: a kill link of Spark's pages "
            "(spark.ui.killEnabled), or other code that uses this Spark; to end a stream: lockstep stop STREAM",
        )
        self.reason = reason


class SparkStopped(LockstepError):
    """Somebody stopped the Spark application of a run, for example by a kill link of the master's page: the run ends.

    Attributes:
        master: The Spark master.
    """

    def __init__(self, master: str) -> None:
        super().__init__(
            f"the Spark application of the run on {master} was stopped from outside; nothing of the batch is committed",
            next_step="the supervisor starts another run, as a new application; find who stopped it: a kill link of "
            "the master's page (its spark.ui.killEnabled), its operator, or the cluster after too many failures of "
            "executors (see the log before this); to end a stream: lockstep stop STREAM",
        )
        self.master = master


def count_cores(context: SparkContext) -> int:
    """The cores of all executors.

    Raises:
        SparkStopped: Somebody stopped Spark since the last batch.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none; only runs need it

    try:
        return context.defaultParallelism
    except Py4JError as error:
        raise explain_foreign_end(context, error) or error from error


def list_busy_executors(context: SparkContext) -> frozenset[str]:
    """Ids of the executors that run tasks now; empty without such a call in this Spark: then none is replaced."""
    from py4j.protocol import Py4JError  # only runs need it

    try:
        shown = context._jsc.sc().taskScheduler().runningTasksByExecutors().mkString(",")  # noqa: SLF001  # see above
    except Py4JError:
        return frozenset()
    busy = set[str]()
    for entry in str(shown).split(","):  # such as "0 -> 2,1 -> 0"
        if not entry:  # the text is empty without executors
            continue
        name, count = entry.split(" -> ")
        if count != "0":
            busy.add(name)
    return frozenset(busy)


def count_running_tasks(context: SparkContext, pool: str) -> int | None:
    """Running tasks of a scheduler pool; None if Spark has no such pool, as without `spark.scheduler.mode=FAIR`."""
    from py4j.protocol import Py4JError  # only runs need it

    try:
        option = context._jsc.sc().getPoolForName(pool)  # noqa: SLF001  # pyspark has no such call
        if not option.isDefined():
            return None
        return int(option.get().runningTasks())
    except Py4JError:
        return None


def renew_executor(context: SparkContext, executor: str) -> bool:
    """Ask the cluster manager to kill an executor and to start another one; returns whether it accepted the request."""
    from py4j.protocol import Py4JError  # only runs need it

    try:
        return bool(context._jsc.sc().killAndReplaceExecutor(executor))  # noqa: SLF001  # pyspark has no such call
    except Py4JError:  # the cluster manager does not answer; the present executors continue
        return False


class ExecutorPresence:
    """Since when a job has no executor. Spark itself waits for an executor without end or message."""

    def __init__(self, now: float, seconds_max: float) -> None:
        """There is one now.

        Args:
            now: By the monotonic clock.
            seconds_max: How long a job may be without any.
        """
        self._seen = now
        self._looked = now
        self._seconds_max = seconds_max

    def is_missed(self, now: float, has_executor: Callable[[], bool]) -> bool:
        """Whether there was none for too long; asks once in `LOOK_SECONDS`."""
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        if has_executor():
            self._seen = now
        return now - self._seen >= self._seconds_max


def explain_idle(context: SparkContext, seconds: float) -> EnvironmentProblem:
    """The error of a first task that did not end in time."""
    settings = context.getConf()
    executors = count_executors(context)
    if executors:
        return EnvironmentProblem(
            f"{describe_silence(f'the first task on {context.master}', seconds, verb='end')}, with {executors} "
            "executors; nothing was taken over",
            next_step=f"{SLOW}, and the next run tries again; check the page of the master: executors need at least "
            f"spark.task.cpus = {settings.get('spark.task.cpus', '1')} cores, and a Python that answers: "
            '"spark.executor.cores" in [spark.options] (docs/cluster.md)',
        )
    return EnvironmentProblem(
        f"{describe_silence(str(context.master), seconds, verb='give an executor')}; nothing was taken over",
        next_step=f"{SLOW}, and the next run tries again; check on the master's page whether cores and memory are free "
        'and a worker is large enough: an application takes all free cores unless [spark.options] "spark.cores.max" '
        "limits them; check in the logs of executors that have ended whether they reach the driver at "
        f"spark.driver.host = {settings.get('spark.driver.host')!r} (docs/cluster.md)",
    )


def count_executors(context: SparkContext) -> int:
    """Executors that can be given tasks. Spark lists the driver among them, which is one only with a local master."""
    count = int(context._jsc.sc().getExecutorMemoryStatus().size())  # noqa: SLF001  # pyspark shows them nowhere
    return count if is_local(str(context.master)) else count - 1


def find_message(error: Exception) -> str:
    """The message of an exception that Java threw, with its causes; else its own message."""
    java = getattr(error, "java_exception", None)
    if java is None:
        return str(error)
    return str(java.getMessage())


def explain_foreign_end(context: SparkContext, error: Exception) -> JobCancelled | SparkStopped | None:
    """The error of a job that failed because somebody cancelled it or stopped Spark; None for others."""
    return find_foreign_end(find_message(error), str(context.master), stopped=_is_stopped(context))


def _is_stopped(context: SparkContext) -> bool:
    """Whether Spark is stopped or about to be; False without an answer of the JVM."""
    from py4j.protocol import Py4JError  # only runs need it

    java = context._jsc  # noqa: SLF001  # pyspark shows it nowhere
    if java is None:
        return True
    try:
        return bool(java.sc().isStopped())
    except (Py4JError, OSError):
        return False


def find_foreign_end(message: str, master: str, *, stopped: bool) -> JobCancelled | SparkStopped | None:
    """The error of a job that ended because somebody cancelled it or stopped Spark; None for others.

    Args:
        message: Spark's, of the failed job.
        master: The Spark master.
        stopped: Whether Spark is stopped now: the text of a job that it stopped at its submission may name
            any part of Spark.
    """
    if stopped or _STOPPED.match(message):
        return SparkStopped(master)
    if _CANCELLED.match(message):  # at the start: the text of a failed task may quote it
        return JobCancelled(message.splitlines()[0])
    return None


def find_python_problem(message: str) -> EnvironmentProblem | None:
    """The error of a job that failed because an executor's Python does not start or lacks a module; None for others.

    No message is to blame for it. Such an executor fails a task immediately and is free for its next attempt, so that
    one machine without the package fails most jobs.

    Args:
        message: Spark's, of the failed job.
    """
    if not any(sign in message for sign in _UNUSABLE):
        return None
    match = _EXECUTOR.search(message)
    where = match[1] if match else "an executor"
    return EnvironmentProblem(
        f"the Python of {where} cannot run tasks: {find_cause_line(message)}; nothing of the batch is committed",
        next_step=find_remedy(message),
    )


def find_remedy(message: str) -> str:
    """The next step after a job that failed on its executors: an error names its cause, others may be Python's."""
    if _LONG_PATH in message:
        return SHORT_PATHS_NEEDED
    if any(sign in message for sign in _UNUSABLE):
        return PYTHON_NEEDED
    return LOGS_NEEDED


def find_cause_line(message: str) -> str:
    """The line of a failed job's message that names the error of Python; else the first line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith(_FRAMES) and _NAMES_ERROR.search(line)]
    if errors:
        return errors[-1]  # a traceback of Python ends with its error
    return lines[0] if lines else "no reason given"
