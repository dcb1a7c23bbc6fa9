"""The end of a task in a Python worker: once Spark has its result, the worker collects garbage, or ends.

Python's collector would examine all objects of a task before the result is sent, and the batch would wait for it.
PySpark calls it after each task anyway.

Spark keeps every worker that a busy time needed. A stream that has become quiet would meet them in turns, each with
other sessions decoded or with none, and each keeps its memory. Spark finds the process gone, and forks another when
it has more tasks at once.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

Work = Callable[..., Any]
"""PySpark's function of a worker: serves one task."""

_serving = threading.Event()
_asked = threading.Event()


def is_serving() -> bool:
    """Whether this process serves a task, after which PySpark collects garbage."""
    return _serving.is_set()


def end_after_task() -> None:
    """Called in a task: its worker ends once Spark has the result."""
    _asked.set()


def with_end(work: Work) -> Work:
    """`work`, after which the process ends if its task has requested that; the collector is on again after it.

    Spark closes the sockets of its workers when a run ends, as after a halt. PySpark's daemon would print a traceback
    of that, of which mostly the first line is left: it kills its workers at the same moment. Errors of a task do not
    end here.
    """

    def serve(*arguments: Any) -> Any:
        _serving.set()
        try:
            code = work(*arguments)
        except (EOFError, ConnectionError):
            os._exit(0)
        finally:
            _serving.clear()
            gc.enable()
        if _asked.is_set():
            os._exit(0)
        return code

    return serve
