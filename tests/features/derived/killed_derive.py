"""A run of a derived table that kills its process: python -m tests.features.derived.killed_derive ..."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from lockstep.features.derived import derive
from lockstep.settings import SparkSettings
from lockstep.spark.session import start_context
from tests.support.adding_stream import adding
from tests.support.derived_tables import Timed, activity

MOMENTS = ("_replace_rows", "_finish")
"""Functions before which the process dies: with the rows computed, and with the old rows replaced."""
IN_BATCH = "batch"
"""The process dies when the next batch is planned. Its JVM is suspended until later runs have continued."""


def die(*_: object, **__: object) -> Any:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_batch(offsets: Path, before: set[str]) -> None:
    """Suspend the JVM, print its process id and die when another batch is planned."""
    while {path.name for path in offsets.glob("[0-9]*")} == before:
        time.sleep(0.001)
    (jvm,) = [each for each in psutil.Process().children(recursive=True) if "java" in each.name()]
    jvm.suspend()
    sys.stdout.write(f"{jvm.pid}\n")
    sys.stdout.flush()
    die()


def main(root: str, pattern: str, moment: str) -> None:
    """Run the derived table."""
    if moment == IN_BATCH:
        (offsets,) = Path(root).glob("activity/checkpoints/*/spark/offsets")
        before = {path.name for path in offsets.glob("[0-9]*")}
        threading.Thread(target=die_in_batch, args=(offsets, before), daemon=True).start()
    else:
        setattr(derive._Attempt if hasattr(derive._Attempt, moment) else derive, moment, die)  # noqa: SLF001
    settings = SparkSettings(master="local[2,3]", options={"spark.ui.enabled": "false"})
    stream = adding(pattern, transform=Timed())
    derive.run_derived(activity(stream), Path(root), lambda: SparkSession(start_context(settings, "killed")))


if __name__ == "__main__":
    main(*sys.argv[1:])
