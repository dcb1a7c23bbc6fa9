"""A time limit for a call that may wait for another machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def run_within(seconds: float, call: Callable[[], T]) -> T:
    """The result of a call, on a thread that is left behind after a time.

    The timeout of a socket is no limit: each byte of an answer starts it again, and resolving the name of a host has
    none.

    Raises:
        TimeoutError: It has not ended in time. What the call raises is raised likewise.
    """
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            ended.set_exception(error)

    Thread(target=run, name="within a time", daemon=True).start()
    return ended.result(seconds)
