"""Runs a stream of a load test as `lockstep run` does, until SIGTERM. A separate program.

    python -m lockstep.features.rehearsal.loaded_stream FOLDER

FOLDER holds `stream.pickle` and `settings.json`; `batches.jsonl` receives the report of each batch, and
`failure.json` the error that ended the run.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.metrics import BatchReport
from lockstep.errors import LockstepError
from lockstep.operations.foreground import run_in_foreground
from lockstep.settings import Settings

STREAM = "stream.pickle"
SETTINGS = "settings.json"
BATCHES = "batches.jsonl"
FAILURE = "failure.json"


class StreamFailure(msgspec.Struct, frozen=True):
    """The error that ended a run.

    Attributes:
        problem: The problem.
        next_step: The next step.
    """

    problem: str
    next_step: str


def main() -> None:
    """Run the command line."""
    folder = Path(sys.argv[1])
    stream: AnyStream = pickle.loads((folder / STREAM).read_bytes())  # noqa: S301  # our own parent's
    settings = Settings(**msgspec.json.decode((folder / SETTINGS).read_bytes()))
    with (folder / BATCHES).open("ab", buffering=0) as reports:

        def report(batch: BatchReport) -> None:
            reports.write(msgspec.json.encode(batch) + b"\n")

        try:
            run_in_foreground(stream, settings, available_now=False, report=report)
        except LockstepError as error:
            (folder / FAILURE).write_bytes(msgspec.json.encode(StreamFailure(error.problem, error.next_step)))
            traceback.print_exc()
            sys.exit(1)


if __name__ == "__main__":
    main()
