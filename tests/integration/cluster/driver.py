"""The driver of a stream on a cluster, configured by the settings like every run of lockstep.

python -m tests.integration.cluster.driver PATTERN TRAP --seconds 1 --deadline 300 --patience 60
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from lockstep import Every
from lockstep.model.tuning import Tuning
from lockstep.operations.foreground import format_report, run_in_foreground
from lockstep.settings import load_settings
from tests.integration.cluster.streams import catching


def main() -> None:
    """Run until a signal, or with `--seconds 0` until all available messages are committed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern")
    parser.add_argument("trap", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="from batch to batch; 0 for all there is now")
    parser.add_argument("--deadline", type=float, default=300.0, help="of a batch, in seconds")
    parser.add_argument("--patience", type=float, default=300.0, help="for a first executor, in seconds")
    given = parser.parse_args()
    # Spread a test's batches over the executors although they are small.
    tuning = Tuning(small_batch_messages=1, bin_seconds=1e-9, executors_seconds_max=given.patience)
    stream = catching(given.pattern, given.trap, given.deadline)
    if given.seconds:
        stream = dataclasses.replace(stream, trigger=Every(seconds=given.seconds))
    outcome = run_in_foreground(
        stream,
        load_settings(),
        available_now=not given.seconds,
        report=lambda batch: _say(format_report(batch)),
        tuning=tuning,
    )
    _say(f"outcome: {outcome.value}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
