"""Kafka Streams on the workload: `java/.../StreamsJob.java`, from topics to a topic of its own.

python -m benchmarks.peers.kafka_streams TASK...
"""

from __future__ import annotations

import os

from benchmarks.peers.jvm import run_java
from benchmarks.peers.topic_rows import open_application
from benchmarks.systems import parse_task

if __name__ == "__main__":
    task = parse_task()
    application = open_application(task.bootstrap_servers, task.output, "streams")
    threads = str(len(os.sched_getaffinity(0)))
    state = str(task.output.absolute() / "state")
    run_java(
        "peers.StreamsJob", task.bootstrap_servers, task.topics, state, application, f"{application}-rows", threads
    )
