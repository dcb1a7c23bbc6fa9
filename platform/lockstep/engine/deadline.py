"""The hard deadline of a batch: its Spark job is cancelled, and the batch is planned again.

Spark gives up an executor that is silent. It waits for ever for one that lives while its Python does not
answer, stopped or hung in a file system. What a cancelled task still writes is named by no commit.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")

AGAIN_SECONDS = 0.5


class BatchOverdue(LockstepError):
    """A batch was not worked by its deadline; nothing of it is committed.

    Attributes:
        seconds: The deadline.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the batch was not worked within {seconds:g} s and was cancelled; nothing of it is committed",
            next_step="look for an executor that hangs; where the fold is that slow, declare "
            "Limits(batch_messages=...) lower or Limits(batch_seconds=...) higher",
        )
        self.seconds = seconds


def worked_within(context: SparkContext, seconds: float | None, work: Callable[[], T]) -> T:
    """What `work` gives; it runs Spark jobs on this thread, which are cancelled past the deadline.

    Args:
        context: Runs the jobs.
        seconds: The deadline; None for none.
        work: Raises when its jobs are cancelled.

    Raises:
        BatchOverdue: The deadline passed.
    """
    if seconds is None:
        return work()
    tag, over, overdue = f"lockstep-{uuid.uuid4().hex}", threading.Event(), threading.Event()

    def watch() -> None:
        if over.wait(seconds):
            return
        overdue.set()
        while not over.is_set():  # again: a job that is only now being submitted is not there to be cancelled
            context.cancelJobsWithTag(tag)
            over.wait(AGAIN_SECONDS)

    context.addJobTag(tag)
    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        return work()
    except Exception as error:
        if overdue.is_set():
            raise BatchOverdue(seconds) from error
        raise
    finally:
        over.set()
        context.removeJobTag(tag)
