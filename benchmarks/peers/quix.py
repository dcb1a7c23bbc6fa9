"""Quix Streams on the workload: `quix_worker.py` in an environment of its own, from topics to a topic.

python -m benchmarks.peers.quix TASK...
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.peers.build import build_environment
from benchmarks.peers.processes import run_processes, share_topics
from benchmarks.peers.topic_rows import open_application
from benchmarks.systems import parse_task

REQUIREMENTS = ("quixstreams==3.28.1", "confluent-kafka==2.12.2", "msgspec==0.22.0")


def build() -> Path:
    """The Python of Quix Streams.

    Raises:
        EnvironmentProblem: pip could not install it.
    """
    return build_environment("quix", REQUIREMENTS)


if __name__ == "__main__":
    task = parse_task()
    application = open_application(task.bootstrap_servers, task.output, "quix")
    worker = [str(build()), "-m", "benchmarks.peers.quix_worker", task.bootstrap_servers, application]
    run_processes(
        [
            [*worker, str(number), str(task.output.absolute() / f"state-{number}"), json.dumps(ends)]
            for number, ends in enumerate(share_topics(task.bootstrap_servers, task.topics))
        ]
    )
