"""The driver that is killed, stopped and starved: a real run of a small stream in a process of its own.

    python -m tests.faults.driver PATTERN BATCH_MESSAGES [--spark] [--never-ending] [--patience SECONDS]

Where Kafka and the tables are comes from the environment, as for every run of lockstep. Without
`--spark` its bins run in this very process: the same engine and the same commits, and no JVM.
"""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING

from lockstep import Every, Limits
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import Fenced
from lockstep.operations.foreground import format_report, run_in_foreground
from lockstep.settings import load_settings
from tests.engine.local_runs import LocalRuns
from tests.faults.streams import faulty

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.engine.driver.metrics import BatchReport

SOON_SECONDS = 0.1


def main() -> None:
    """Run, and say each batch and the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern")
    parser.add_argument("batch_messages", type=int)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--never-ending", action="store_true")
    parser.add_argument("--patience", type=float, default=30.0, help="of a handover, in seconds")
    given = parser.parse_args()
    limits = Limits(batch_messages=given.batch_messages, handover_timeout_seconds=given.patience)
    stream = faulty(given.pattern, limits, Every(seconds=SOON_SECONDS))
    run = _on_spark if given.spark else _in_this_process
    say(f"outcome: {run(stream, available_now=not given.never_ending).value}")


def _on_spark(stream: AnyStream, *, available_now: bool) -> RunOutcome:
    return run_in_foreground(stream, load_settings(), available_now=available_now, say=tell)


def _in_this_process(stream: AnyStream, *, available_now: bool) -> RunOutcome:
    settings = load_settings()
    runs = LocalRuns(stream, settings.kafka.bootstrap_servers, settings.table_root.parent, reports=Told())
    try:
        return runs.run(trigger=None if available_now else stream.trigger)
    except Fenced:
        return RunOutcome.FENCED  # as `run_stream` does: another run claimed in the same moment


class Told(list["BatchReport"]):
    """Reports that are told as they come."""

    def append(self, report: BatchReport) -> None:
        """Tell it."""
        tell(format_report(report))


def tell(line: str) -> None:
    """A batch, on the thread that works it."""
    say(f"thread: {threading.get_native_id()}")
    say(line)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
