"""Sends messages of the workload at a steady rate. A program of its own; its CPU time is not measured.

The first million messages is made before any is sent, so that making them takes no CPU from the measured run; later
ones, of a run of many minutes, are made as they are sent: some 3 us each.
Kafka's timestamp of a message (CreateTime) is the time at which it was passed to the producer.

    python -m benchmarks.pacer BROKER SIZE FIRST UNTIL RATE GO REPORT

SIZE is a `workload.Size` as JSON; [FIRST, UNTIL) are messages of each topic, RATE is per second over
all topics. Sends as soon as the file GO is there; SIGTERM ends it early, with its report.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError, Message, Producer

from benchmarks.workload import Size, interleaved

TICK_SECONDS = 0.005
MADE_FIRST = 1_000_000
"""Some 350 MB; the runs that measure latency alone send fewer."""
READY_SUFFIX = ".ready"
_PRODUCER = {"enable.idempotence": True, "linger.ms": 2, "queue.buffering.max.messages": 1_000_000}
_FLUSH_SECONDS = 60.0


class Paced(msgspec.Struct, frozen=True):
    """Result of a pacer.

    Attributes:
        messages: Number of messages.
        seconds: From the first to the last.
        behind_seconds_max: Largest delay behind its rate: high on an overloaded machine.
    """

    messages: int
    seconds: float
    behind_seconds_max: float


class NotDeliveredError(Exception):
    """The broker did not take a message."""


def send(
    producer: Producer, messages: Iterator[tuple[str, bytes, bytes]], total: int, rate: float, done: threading.Event
) -> Paced:
    """Send all messages, each no earlier than its time; a requested end takes effect between two ticks.

    Raises:
        NotDeliveredError: The broker refused a message.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    began, sent, behind = time.monotonic(), 0, 0.0
    while sent < total and not done.is_set() and not failures:
        passed = time.monotonic() - began
        behind = max(behind, passed - sent / rate)
        due = min(total, int(passed * rate))
        for topic, key, value in islice(messages, due - sent):
            producer.produce(topic, key=key, value=value, partition=0, on_delivery=delivered)
        sent = due
        producer.poll(0)
        time.sleep(TICK_SECONDS)
    seconds = time.monotonic() - began
    if producer.flush(_FLUSH_SECONDS) or failures:
        raise NotDeliveredError(failures[0].str() if failures else f"not within {_FLUSH_SECONDS:g} s")
    return Paced(sent, seconds, behind)


def main() -> None:
    """Run the command line."""
    broker, size, first, until, rate, go, report = sys.argv[1:]
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    workload = msgspec.json.decode(size, type=Size)
    later = interleaved(workload, int(first), int(until))
    messages = chain(list(islice(later, MADE_FIRST)), later)
    producer = Producer({**_PRODUCER, "bootstrap.servers": broker})
    Path(go + READY_SUFFIX).touch()
    while not Path(go).exists() and not done.is_set():
        time.sleep(TICK_SECONDS)
    total = (int(until) - int(first)) * workload.topics
    paced = send(producer, messages, total, float(rate), done)
    Path(report).write_bytes(msgspec.json.encode(paced))


if __name__ == "__main__":
    main()
