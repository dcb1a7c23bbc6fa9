"""Errors of the machine and of libraries in the words of lockstep: the same in the command line and in Dagster.

Nothing here imports Delta: `lockstep --help` responds at once.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from lockstep.errors import EnvironmentProblem, LockstepError, StoreFailed, TableError

_NO_SPACE: Final = "free space there, then try again; nothing that is committed is lost"
_NO_SPACE_SOMEWHERE: Final = (
    "free space in table_root, local_root or TMPDIR (lockstep doctor names the full one), then try again; "
    "nothing that is committed is lost"
)
_OTHER_PATH: Final = "name another path, or see to it that this user can read and write there; then try again"
_OF_FILES: Final = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _NO_SPACE) | dict.fromkeys(
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS), _OTHER_PATH
)
"""The remedies of a user for an error of the file system."""


def explain_error(error: Exception, stream: str = "") -> LockstepError | None:
    """An error as lockstep reports it: problem and next step.

    Args:
        error: Any error.
        stream: Its name, in place of STREAM in the next step; empty if no stream is known.

    Returns:
        The error itself if it is one of lockstep's; None for a defect, which is shown unchanged, with its traceback.
    """
    explained = error if isinstance(error, LockstepError) else _explain_foreign_error(error)
    if explained is not None:
        explained.name_stream(stream)
    return explained


def describe_error(error: Exception, stream: str = "") -> tuple[str, Exception | None]:
    """The text of an error for a log, and the error whose traceback belongs there; None for one of lockstep's."""
    explained = explain_error(error, stream)
    text = f"{type(error).__name__}: {error}" if explained is None else str(explained)
    return text, None if explained is error else error


@contextmanager
def explain_errors(stream: str = "") -> Generator[None]:
    """Raise an error of the block as `explain_error` returns it; a defect stays as it is."""
    try:
        yield
    except Exception as error:
        explained = explain_error(error, stream)
        if explained is None or explained is error:
            raise
        raise explained from error


def _explain_foreign_error(error: Exception) -> LockstepError | None:
    if isinstance(error, (OSError, EOFError)):
        return _explain_system_error(error)
    if isinstance(error, MemoryError):
        step = "try again on a machine with more memory, or raise the limit of its container"
        return EnvironmentProblem("this process ran out of memory", next_step=step)
    return _explain_delta_error(error)


def _explain_system_error(error: OSError | EOFError) -> EnvironmentProblem | None:
    if isinstance(error, (ConnectionError, EOFError)):
        # A JVM that has ended breaks the connection of py4j.
        if not any("/py4j/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)):
            return None
        problem = "Spark's JVM ended under this process: it was killed, or had too little memory"
        return EnvironmentProblem(problem, next_step="try again; a run continues after the last committed batch")
    if isinstance(error, StoreFailed):
        return EnvironmentProblem(f"{error.filename}: {error.strerror}", next_step=error.next_step)
    step = _OF_FILES.get(error.errno or 0)
    if step is None or (error.filename is None and step != _NO_SPACE):
        return None
    if error.filename is None:
        return EnvironmentProblem(str(error.strerror), next_step=_NO_SPACE_SOMEWHERE)
    return EnvironmentProblem(f"{error.strerror}: {error.filename}", next_step=step)


def _explain_delta_error(error: Exception) -> TableError | None:
    """The log of a table that Delta cannot read."""
    delta = sys.modules.get("deltalake.exceptions")
    if delta is None or not isinstance(error, delta.DeltaError):
        return None
    reason = str(error).splitlines()[0]
    return TableError(f"a table cannot be read: {reason}", next_step="lockstep repair STREAM checks the table")
