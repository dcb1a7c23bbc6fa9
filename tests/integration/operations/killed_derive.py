"""A run of a derived table that kills its own process: python -m tests.integration.operations.killed_derive ..."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lockstep.operations import derive
from lockstep.settings import SparkSettings
from lockstep.spark.session import start_context
from tests.support.adding_stream import adding
from tests.support.derived_tables import Timed, activity

MOMENTS = ("_replace_rows", "_finish")
"""It dies before this function: when the rows are computed, and when they have replaced the old ones."""


def die(*_: object, **__: object) -> Any:
    """The end of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(root: str, pattern: str, moment: str) -> None:
    """Run it."""
    setattr(derive._Attempt if hasattr(derive._Attempt, moment) else derive, moment, die)  # noqa: SLF001
    settings = SparkSettings(master="local[2,3]", options={"spark.ui.enabled": "false"})
    stream = adding(pattern, transform=Timed())
    derive.run_derived(activity(stream), Path(root), lambda: SparkSession(start_context(settings, "killed")))


if __name__ == "__main__":
    main(*sys.argv[1:])
