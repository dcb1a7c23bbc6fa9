"""lockstep on live messages: the stream of the workload with a trigger of so many seconds, until SIGTERM.

It runs as `lockstep run` does, with all defaults of a user enabled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.sensors import sensors
from lockstep import Every
from lockstep.declare.stream import AnyStream
from lockstep.operations.foreground import format_report, run_in_foreground
from lockstep.settings import KafkaSettings, Settings

LOCAL = "local"
"""Folder of the local stores below the output folder."""


@dataclass(frozen=True)
class LiveTask:
    """Task of a live run.

    Attributes:
        bootstrap_servers: The broker, as `host:port`.
        topics: Regular expression that matches the topics' whole names.
        output: Root of the stream's tables.
        trigger_seconds: A batch every so many seconds.
    """

    bootstrap_servers: str
    topics: str
    output: Path
    trigger_seconds: float

    def command(self, module: str) -> list[str]:
        """The command by which a module does the task; `parse_live_task` reads it."""
        return [
            *(sys.executable, "-m", module),
            *("--bootstrap-servers", self.bootstrap_servers, "--topics", self.topics),
            *("--output", str(self.output), "--trigger-seconds", str(self.trigger_seconds)),
        ]


def parse_live_task() -> LiveTask:
    """The task on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topics", required=True)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--trigger-seconds", required=True, type=float)
    given = parser.parse_args()
    return LiveTask(given.bootstrap_servers, given.topics, given.output, given.trigger_seconds)


def main(make_stream: Callable[[str], AnyStream] = sensors) -> None:
    """Run the stream of the command line."""
    given = parse_live_task()
    stream = replace(make_stream(given.topics), trigger=Every(seconds=given.trigger_seconds))
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=given.bootstrap_servers),
        table_root=given.output.absolute(),
        local_root=given.output.absolute() / LOCAL,
    )
    outcome = run_in_foreground(
        stream, settings, available_now=False, report=lambda batch: print(format_report(batch), flush=True)
    )
    print(outcome.value, flush=True)


if __name__ == "__main__":
    main()
