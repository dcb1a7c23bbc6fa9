"""Lets a Python worker end after its task: Spark itself keeps every worker that a busy time needed.

A stream that has become quiet would meet them in turns, each with other sessions decoded or with none, and each keeps
its memory. Spark finds the process gone, and forks a new one when it has more tasks at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

Work = Callable[..., Any]
"""PySpark's function of a worker: serves one task."""

_asked = threading.Event()


def end_after_task() -> None:
    """Called in a task: its worker ends once Spark has the result."""
    _asked.set()


def with_end(work: Work) -> Work:
    """`work`, after which the process ends where its task has asked for that."""

    def serve(*arguments: Any) -> Any:
        code = work(*arguments)
        if _asked.is_set():
            os._exit(0)
        return code

    return serve
