"""Peers in Python that take one process for each core, each with a share of the topics: a process has one core only."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

_TIMEOUT_S = 60.0


def share_topics(bootstrap_servers: str, pattern: str) -> list[dict[str, list[int]]]:
    """The matching topics, each with the end of each of its partitions; one share for each core, none empty."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "peer-ends"})
    try:
        found = consumer.list_topics(timeout=_TIMEOUT_S).topics
        names = sorted(name for name in found if re.fullmatch(pattern, name))
        ends = {
            name: [_read_end(consumer, name, number) for number in sorted(found[name].partitions)] for name in names
        }
    finally:
        consumer.close()
    shares = len(os.sched_getaffinity(0))
    return [{name: ends[name] for name in names[n::shares]} for n in range(min(shares, len(names)))]


def run_processes(commands: Sequence[Sequence[str]]) -> None:
    """Run commands at once, to their ends; when one fails, the others are ended.

    Raises:
        SystemExit: One has failed.
    """
    running = [subprocess.Popen(command) for command in commands]
    try:
        for process in running:
            if process.wait():
                raise SystemExit(f"exit code {process.returncode}: {process.args!r}")
    finally:
        for process in running:
            process.terminate()
            process.wait()


def _read_end(consumer: Consumer, topic: str, partition: int) -> int:
    return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)[1]
