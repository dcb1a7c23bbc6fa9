"""Bytewax on the workload: `bytewax_worker.py` in an environment of its own, from topics to Parquet files.

python -m benchmarks.peers.bytewax TASK...
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.peers.build import build_environment
from benchmarks.peers.processes import run_processes, share_topics
from benchmarks.systems import parse_task

REQUIREMENTS = ("bytewax==0.21.1", "confluent-kafka==2.16.1", "msgspec==0.22.0", "pyarrow==26.0.1")


def build() -> Path:
    """The Python of Bytewax.

    Raises:
        EnvironmentProblem: pip could not install it.
    """
    return build_environment("bytewax", REQUIREMENTS)


if __name__ == "__main__":
    task = parse_task()
    worker = [str(build()), "-m", "benchmarks.peers.bytewax_worker", task.bootstrap_servers]
    run_processes(
        [
            [*worker, str(task.output.absolute()), str(number), json.dumps(list(ends))]
            for number, ends in enumerate(share_topics(task.bootstrap_servers, task.topics))
        ]
    )
