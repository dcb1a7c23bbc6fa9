"""lockstep on the workload: through a public `Stream`, with all defaults of a user enabled.

Strict class, ledger, state saved each batch, synced files, Delta commit; a Spark session of its own.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.sensors import sensors
from benchmarks.systems import parse_task, wait_for_turn
from lockstep import AvailableNow, Limits
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.context import RunReports
from lockstep.engine.driver.run import run_stream
from lockstep.settings import KafkaSettings, Settings
from lockstep.spark.session import start_context


def main(make_stream: Callable[[str], AnyStream] = sensors) -> None:
    """Run the task of the command line, and end the process."""
    task = parse_task()
    stream = replace(make_stream(task.topics), limits=Limits(batch_messages=task.batch_messages))
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=task.bootstrap_servers),
        table_root=task.output.absolute(),
        local_root=task.output.absolute() / "local",
    )
    roots = (Path(__file__).resolve().parents[1],)
    run_stream(
        stream,
        settings,
        spark=lambda: start_context(settings.spark, "benchmark", import_roots=roots),
        stop=threading.Event(),
        trigger=AvailableNow(),
        reports=RunReports(lambda batch: wait_for_turn(batch.counts.messages) if task.turns else None),
    )
    # Everything is committed and the JVM ends with its parent; nothing is left to wait for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
