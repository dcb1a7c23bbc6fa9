"""Limits of the machine and of the engine's libraries, as opposed to errors of a message.

Lack of memory, of file handles or of disk, the 2 GiB of an Arrow column, and a panic in a library of Rust prove nothing
about the message during which they occur. The task that met one is tried again with less, until it fits. Only a
message that fails in a range without any other may be named: as the text of an error of the run, and in a finding
when a library panics on it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

import pyarrow as pa
import zstandard
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from lockstep.errors import EnvironmentProblem, LockstepError, StateError
from lockstep.model.position import TopicIdPartition
from lockstep.state.compression import is_lack_of_memory


class LimitKind(Enum):
    """A limit, as its name and the remedy."""

    MEMORY = (
        "memory",
        (
            "give the workers more memory (spark.executor.memoryOverhead), run fewer tasks at a time on a machine, or "
            "declare Limits(message_bytes=...) lower"
        ),
    )
    WORKER_MEMORY = (
        "memory of its worker",
        (
            "make the states of sessions smaller, or correct a transform that uses the memory itself; or raise "
            "spark.worker_memory_mb"
        ),
    )
    HANDLES = (
        "file handles",
        ("raise the limit of open files of the workers (ulimit -n), and close the files that the transform opens"),
    )
    DISK = "disk space", "make room on the local disk and below the table root, or set local_root to a larger disk"
    DEVICE = "a disk that works", "check the system's log for errors of disks and of network file systems"
    NETWORK = "network", "check that the workers reach the services that the decoder and the transform call"
    PROCESSES = "threads or processes", "raise the limit of processes of the workers (ulimit -u)"
    COLUMN_BYTES = "bytes of a column", "let the transform emit smaller values, or more rows of fewer values"
    ROW_BYTES = "room for the rows of one message", "correct the transform: the rows that it yields may have no end"
    PANIC = "a library that does not panic", "report the panic, with its text, to the authors of the library"

    @property
    def resource(self) -> str:
        """The exhausted resource."""
        return self.value[0]

    @property
    def next_step(self) -> str:
        """The remedy."""
        return self.value[1]


_OF_ERRNO: Final[Mapping[int, LimitKind]] = {
    **dict.fromkeys((errno.ENOMEM,), LimitKind.MEMORY),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), LimitKind.HANDLES),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), LimitKind.DISK),
    **dict.fromkeys((errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOLCK), LimitKind.DEVICE),
    **dict.fromkeys((errno.EAGAIN,), LimitKind.PROCESSES),
    **dict.fromkeys(
        (
            errno.ENOBUFS,
            errno.ENETDOWN,
            errno.ENETUNREACH,
            errno.EHOSTDOWN,
            errno.EHOSTUNREACH,
            errno.ECONNREFUSED,
            errno.ECONNRESET,
            errno.ECONNABORTED,
            errno.ETIMEDOUT,
            errno.EPIPE,
        ),
        LimitKind.NETWORK,
    ),
}
"""Errors of the system that no argument of a call causes. A wrong path, which a message may contain, is not among
them."""


class WorkerMemoryExceeded(MemoryError):
    """The memory of a Python worker passed its limit: the task is not tried again in this worker."""


class RowsTooLarge(Exception):
    """One message, or one timer, emits more rows than a whole batch may have."""


def _of_client(error: KafkaException) -> LimitKind | None:
    if error.args and error.args[0].code() == ClientError._CRIT_SYS_RESOURCE:  # noqa: SLF001  # the client's name
        return LimitKind.HANDLES
    return None


def _of_system(error: OSError) -> LimitKind | None:
    if error.errno is None:
        return None
    return _OF_ERRNO.get(error.errno)


def _of_text(error: Exception) -> LimitKind | None:
    if _NO_THREAD.search(str(error)):
        return LimitKind.PROCESSES
    return None


def _of_compression(error: zstandard.ZstdError) -> LimitKind | None:
    return LimitKind.MEMORY if is_lack_of_memory(error) else None


_NO_THREAD: Final = re.compile("can't start new thread|Failed to launch worker thread")
"""Of Python, and of Arrow."""
_BY_KIND: Final[tuple[tuple[Any, Callable[[Any], LimitKind | None]], ...]] = (
    (WorkerMemoryExceeded, lambda _: LimitKind.WORKER_MEMORY),
    (MemoryError, lambda _: LimitKind.MEMORY),
    (RowsTooLarge, lambda _: LimitKind.ROW_BYTES),
    (pa.ArrowCapacityError, lambda _: LimitKind.COLUMN_BYTES),
    (OSError, _of_system),
    (zstandard.ZstdError, _of_compression),
    (KafkaException, _of_client),
    ((RuntimeError, pa.ArrowException), _of_text),
)

_TEXTS: Final[Mapping[str, LimitKind]] = {
    "Too many open files": LimitKind.HANDLES,
    "Cannot allocate memory": LimitKind.MEMORY,
}
"""Texts of lmdb's errors, which lack the number of the system's error."""


class EngineLimit(EnvironmentProblem):
    """A task reached a limit of the machine or of a library: no verdict on any message.

    Attributes:
        limit: The limit.
        reason: The error's text.
        key: Topic id and partition of the range that was folded; None outside of the fold.
        offset: Offset that was being processed, if any.
        alone: Topic, partition and offsets of the range, if the task had no other message.
    """

    def __init__(
        self,
        limit: LimitKind,
        reason: str,
        *,
        key: TopicIdPartition | None = None,
        offset: int | None = None,
        alone: str = "",
    ) -> None:
        place = f"{alone}: a task of this message alone" if alone else "a task"
        super().__init__(
            f"{place} lacks {limit.resource}: {reason}; nothing of the batch is committed, and no message is judged",
            next_step=limit.next_step,
        )
        self.limit = limit
        self.reason = reason
        self.key = key
        self.offset = offset
        self.alone = alone


def is_of_machine(error: Exception) -> bool:
    """Whether an error of user code is one of the machine, the registry or the state: no verdict on any message."""
    return isinstance(error, (EnvironmentProblem, StateError)) or find_limit(error) is not None


def find_limit(error: BaseException) -> LimitKind | None:
    """The limit that an error is about; None for errors that may be those of a message."""
    if isinstance(error, EngineLimit):
        return error.limit
    if is_panic(error):
        return LimitKind.PANIC
    if isinstance(error, EnvironmentProblem):
        return _find_below(error)
    for kind, find in _BY_KIND:
        if isinstance(error, kind):
            return find(error)
    return None


def _find_below(error: BaseException) -> LimitKind | None:
    """The limit behind an error of this machine, such as a local store that cannot be opened."""
    for cause in _list_causes(error):
        limit = find_limit(cause) or _find_in_text(str(cause))
        if limit in {LimitKind.HANDLES, LimitKind.MEMORY}:  # the others are named by the error already
            return limit
    return None


def _find_in_text(text: str) -> LimitKind | None:
    for part, limit in _TEXTS.items():
        if part in text:
            return limit
    return None


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None and not isinstance(cause, EnvironmentProblem):
        yield cause
        cause = cause.__cause__


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of an extension in Rust: a BaseException, and each extension has its own type."""
    kind = type(error)
    return kind.__name__ == "PanicException" and kind.__module__ == "pyo3_runtime"


def describe_error(error: BaseException) -> str:
    """An error in one line, without its next step."""
    if isinstance(error, EngineLimit):
        return error.reason
    problem = error.problem if isinstance(error, LockstepError) else error
    return f"{type(error).__name__}: {problem}"
