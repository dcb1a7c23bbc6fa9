"""The driver that the crash test kills: the real order-book stream, in small batches.

    python -m tests.faults.crash.driver PATTERN BATCH_MESSAGES

The environment names Kafka and the tables, as for every run of lockstep.
"""

from __future__ import annotations

import dataclasses
import sys

from assets.order_books import order_books
from lockstep import Limits, Topics
from lockstep.operations.foreground import format_report, run_in_foreground
from lockstep.settings import load_settings


def main() -> None:
    """Run until all messages available at the start are committed."""
    pattern = sys.argv[1]
    batch_messages = int(sys.argv[2])
    stream = dataclasses.replace(
        order_books, topics=Topics(pattern=pattern), limits=Limits(batch_messages=batch_messages)
    )
    outcome = run_in_foreground(
        stream, load_settings(), available_now=True, report=lambda batch: _say(format_report(batch))
    )
    _say(outcome.value)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
