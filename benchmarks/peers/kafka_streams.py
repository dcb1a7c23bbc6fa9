"""Kafka Streams on the workload: `java/.../StreamsJob.java`, from topics to a topic of its own.

python -m benchmarks.peers.kafka_streams TASK...
"""

from __future__ import annotations

import os
import uuid

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.jvm import run_java
from benchmarks.peers.topic_rows import PARTITIONS, TIMEOUT_S, name_file
from benchmarks.systems import parse_task

if __name__ == "__main__":
    task = parse_task()
    application = f"peer-streams-{uuid.uuid4().hex[:8]}"
    rows = NewTopic(f"{application}-rows", num_partitions=PARTITIONS, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": task.bootstrap_servers})
    for created in admin.create_topics([rows]).values():
        created.result(TIMEOUT_S)
    name_file(task.output, application)
    threads = str(len(os.sched_getaffinity(0)))
    state = str(task.output.absolute() / "state")
    run_java(
        "peers.StreamsJob", task.bootstrap_servers, task.topics, state, application, f"{application}-rows", threads
    )
