"""Flink on the workload: `java/.../FlinkJob.java`, in a cluster inside one JVM.

python -m benchmarks.peers.flink hashmap|rocksdb TASK...
"""

from __future__ import annotations

import os
import sys

from benchmarks.peers.jvm import run_java
from benchmarks.systems import parse_task

if __name__ == "__main__":
    backend, task = sys.argv[1], parse_task(sys.argv[2:])
    parallelism = str(len(os.sched_getaffinity(0)))
    run_java("peers.FlinkJob", task.bootstrap_servers, task.topics, str(task.output.absolute()), backend, parallelism)
