"""CPU seconds, wall seconds and memory of a command with all its descendants."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks import reaper


class Usage(msgspec.Struct, frozen=True):
    """Resource usage of a command.

    Attributes:
        exit_code: Of the command itself; negative is the number of the signal that ended it.
        cpu_seconds: User and system time of the command and all its descendants, daemons included.
        wall_seconds: From the command's start to its end.
        peak_memory_bytes: Highest sum of the proportional set sizes of all processes, sampled four
            times a second; at least the largest process's own peak.
        left_behind: Descendants that outlived the command and its deadline, and were killed.
    """

    exit_code: int
    cpu_seconds: float
    wall_seconds: float
    peak_memory_bytes: int
    left_behind: int


class CommandFailedError(Exception):
    """A measured command failed, or left processes behind.

    Attributes:
        command: The command.
        usage: Its usage until then.
    """

    def __init__(self, command: Sequence[str], usage: Usage) -> None:
        super().__init__(
            f"exit code {usage.exit_code}, {usage.left_behind} processes left behind: {' '.join(command)}\n"
            "  next: run the command by itself and read what it says"
        )
        self.command = tuple(command)
        self.usage = usage


def run_measured(command: Sequence[str], env: Mapping[str, str]) -> Usage:
    """Run a command to its end and return its usage and that of all its descendants.

    Processes that are no descendants (the broker) are not counted.

    Args:
        command: The command and its arguments; its output is the caller's.
        env: Its whole environment.

    Raises:
        CommandFailedError: It ended with another code than 0, or left processes behind.
    """
    with tempfile.TemporaryDirectory(prefix="usage-") as folder:
        report = Path(folder) / "usage.json"
        reaping = [sys.executable, "-I", reaper.__file__, str(report), *command]
        _run(reaping, env)
        usage = msgspec.json.decode(report.read_bytes(), type=Usage)
    if usage.exit_code != 0 or usage.left_behind:
        raise CommandFailedError(command, usage)
    return usage


def _run(reaping: Sequence[str], env: Mapping[str, str]) -> None:
    """Run the reaper; when this process is terminated, let the reaper end its processes first."""
    with subprocess.Popen(reaping, env=dict(env)) as process:
        try:
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, reaping)
