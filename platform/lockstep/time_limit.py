"""Time limits, and the one text of all time-outs.

A slow answer and none are the same until it arrives. So a time-out names the silent party and the seconds, and no
cause: `describe_silence` makes the text of each. Possible causes belong in the next step of an error.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
SLOW = "it may only be slow"
"""Start of the next step of a time-out."""


def describe_silence(who: str, seconds: float, about: str = "", *, verb: str = "answer") -> str:
    """The text of a time-out.

    Args:
        who: The party that was waited for.
        seconds: The time limit.
        about: The subject of the question.
        verb: The missing action.
    """
    asked = f" about {about}" if about else ""
    return f"{who} did not {verb}{asked} within {seconds:g} s"


def start_call(call: Callable[[], T]) -> Future[T]:
    """Make a call on a thread that the end of the process does not wait for; its result or error, once it ends."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
            ended.set_exception(error)

    Thread(target=run, name="within a time", daemon=True).start()
    return ended


def run_within(seconds: float, call: Callable[[], T]) -> T:
    """The result of a call, on a thread that is left behind after a time.

    The timeout of a socket is not a limit: each byte of an answer starts it again, and resolving the name of a host has
    none.

    Raises:
        TimeoutError: It has not ended in time. Errors of the call are raised likewise.
    """
    return start_call(call).result(seconds)


def run_command(
    command: Sequence[str],
    who: str,
    seconds: float,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its exit code is the caller's to judge.

    Args:
        command: The command and its arguments.
        who: Its name in the text of a time-out.
        seconds: The time limit.
        folder: Its working folder.
        environment: Its environment; by default that of this process.

    Raises:
        TimeoutError: It was killed at the limit; with the text of `describe_silence`.
    """
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as late:
        raise TimeoutError(describe_silence(who, seconds)) from late


def has_ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process; False if it still runs."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    if not has_ended_within(process, seconds):
        process.kill()
        process.wait()
