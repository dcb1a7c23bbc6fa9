"""The systems under test, and the contract each keeps.

A system is a module run as a command:

    python -m MODULE --bootstrap-servers HOST:PORT --topics REGEX --output FOLDER --batch-messages N

It reads every topic whose whole name matches REGEX from its first offset up to the end it had at the
start, folds the messages, writes the rows as Parquet files or as a Delta table under FOLDER, which
is new, with the columns of `messages.Change` and then the proof columns, and ends with exit code 0.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class System:
    """A system under test.

    Attributes:
        name: Its name in the table of results.
        module: The module for `python -m`.
        rows: Folder of the rows below the output folder; None for rows in a topic (`benchmarks.peers.topic_rows`).
        options: Arguments before the task's.
        python: Its Python, if that is another than this one.
    """

    name: str
    module: str
    rows: str | None = "."
    options: tuple[str, ...] = ()
    python: Path = Path(sys.executable)

    def command(self, task: Task) -> list[str]:
        """The command that does a task."""
        return [str(self.python), "-m", self.module, *self.options, *task.arguments()]


@dataclass(frozen=True)
class Task:
    """Task of a system.

    Attributes:
        bootstrap_servers: The broker, as `host:port`.
        topics: Regular expression that matches the topics' whole names.
        output: A folder of its own, not there yet.
        batch_messages: Messages of one batch, and of one output file.
        turns: Whether each batch waits for its turn (`wait_for_turn`); only the bare loop and lockstep can.
    """

    bootstrap_servers: str
    topics: str
    output: Path
    batch_messages: int
    turns: bool = False

    def arguments(self) -> list[str]:
        """The task as a command line; `parse_task` reads it."""
        return [
            *("--bootstrap-servers", self.bootstrap_servers, "--topics", self.topics),
            *("--output", str(self.output), "--batch-messages", str(self.batch_messages)),
            *(["--turns"] if self.turns else []),
        ]


def parse_task(arguments: list[str] | None = None) -> Task:
    """The task on a system's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topics", required=True)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--batch-messages", type=int, default=200_000)
    parser.add_argument("--turns", action="store_true")
    given = parser.parse_args(arguments)
    return Task(given.bootstrap_servers, given.topics, given.output, given.batch_messages, given.turns)


def wait_for_turn(messages: int) -> None:
    """Say on the standard output that a batch of so many messages is done, and wait for a line before the next.

    Raises:
        SystemExit: Who gives the turns has ended.
    """
    print(f"{DONE}{messages}", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("no turn comes any more")


def environment() -> dict[str, str]:
    """The environment of every system: this one, with the repository and its library importable.

    Compiled modules are cached, whatever this environment sets: a system that runs warm has them,
    and compiling pandas alone (which pyarrow imports) is 2 CPU seconds of start-up.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = [str(_ROOT), str(_ROOT / "platform"), os.environ.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, path))}


DONE = "done "
"""What a line about a finished batch begins with."""

REFERENCE = System("bare", "benchmarks.bare")
"""The base of the ratios."""

STREAM = "sensors"
"""Name of lockstep's stream, and of the group in Kafka that shows its positions."""

LOCKSTEP = System("lockstep", "benchmarks.lockstep_side", rows=f"{STREAM}/table")

READY = System("ready fold", "benchmarks.ready_side", rows=f"{STREAM}/table")

SYSTEMS = {system.name: system for system in (REFERENCE, LOCKSTEP, READY)}
