"""Sends samples again at a steady rate, lap after lap. A separate program; its CPU time is measured by itself.

Kafka's timestamp of a message (CreateTime) is the time at which it was passed to the client. Each partition has its
own pace; a partition's messages are sent in order by one idempotent producer, so the n-th one has offset n.

    python -m lockstep.features.rehearsal.paced_producer FOLDER

FOLDER holds `send.msgpack` (a `SendOrder`); it starts when the file `go` is there, and writes `sent.json` and
`times.npz`. SIGTERM ends it early, with its report.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, Message, Producer

from lockstep.features.rehearsal.message_copy import CopiedMessage, name_lap_key
from lockstep.kafka.client import make_producer
from lockstep.settings import KafkaSettings

TICK_SECONDS = 0.005
FLUSH_SECONDS_MAX = 60.0
SETTINGS = {
    "enable.idempotence": True,
    "linger.ms": 2,
    "queue.buffering.max.messages": 200_000,
    "message.max.bytes": 128_000_000,  # the copied topic has taken it already
}
ORDER = "send.msgpack"
READY = "ready"
GO = "go"
SENT = "sent.json"
TIMES = "times.npz"


class PartitionOrder(msgspec.Struct, frozen=True):
    """What to send to one partition.

    Attributes:
        topic: The copy.
        partition: Partition number.
        count: Number of messages.
        messages: The sample.
    """

    topic: str
    partition: int
    count: int
    messages: tuple[CopiedMessage, ...]


class SendOrder(msgspec.Struct, frozen=True):
    """What to send.

    Attributes:
        kafka: Connection to Kafka, as JSON of its settings.
        seconds: Duration.
        renames_keys: Whether each lap has other message keys.
        partitions: The partitions.
    """

    kafka: str
    seconds: float
    renames_keys: bool
    partitions: tuple[PartitionOrder, ...]


class SentReport(msgspec.Struct, frozen=True):
    """Result of a producer.

    Attributes:
        messages: Messages acknowledged by Kafka.
        seconds: From the first to the acknowledgement of the last.
        behind_seconds_max: Largest delay behind the pace.
        cpu_seconds: CPU time of the producer.
        failure: Why it ended early; empty otherwise.
    """

    messages: int
    seconds: float
    behind_seconds_max: float
    cpu_seconds: float
    failure: str = ""


class Lane:
    """One partition: how far it is, and when each of its messages was sent."""

    def __init__(self, order: PartitionOrder, seconds: float, *, renames_keys: bool, phase: float = 0.0) -> None:
        """Nothing is sent yet.

        Args:
            order: What to send.
            seconds: Duration.
            renames_keys: Whether each lap has another key.
            phase: How much earlier than at the end of its interval a message is due, in intervals.
        """
        self.order = order
        self.sent = 0
        self._phase = phase
        self.times_ms: npt.NDArray[np.int64] = np.zeros(order.count, dtype=np.int64)
        self._pace = order.count / seconds
        self._renames = renames_keys

    def count_due(self, passed_seconds: float) -> int:
        """Messages that should have been sent by now."""
        return min(self.order.count, int(passed_seconds * self._pace + self._phase))

    def get_behind_seconds(self, passed_seconds: float) -> float:
        """How far it is behind its pace."""
        if self.sent == self.order.count:
            return 0.0
        return max(0.0, passed_seconds - (self.sent + 1 - self._phase) / self._pace)

    def send_next(self, producer: Producer, delivered: Callable[[KafkaError | None, Message], None]) -> bool:
        """Pass the next message to the client; False while its queue is full."""
        lap, number = divmod(self.sent, len(self.order.messages))
        message = self.order.messages[number]
        key = name_lap_key(message.copied_key, lap) if self._renames else message.copied_key
        now_ms = time.time_ns() // 1_000_000
        try:
            producer.produce(
                self.order.topic,
                value=message.copied_value,
                key=key,
                partition=self.order.partition,
                headers=list(message.copied_headers) or None,
                timestamp=now_ms,
                on_delivery=delivered,
            )
        except BufferError:
            return False
        self.times_ms[self.sent] = now_ms
        self.sent += 1
        return True


def open_producer(settings: KafkaSettings) -> Producer:
    """The client of a load test."""
    return make_producer(settings, SETTINGS)


def make_lanes(order: SendOrder) -> list[Lane]:
    """The lanes of an order, one behind the other: many slow ones in step would send all at once."""
    wanted = [each for each in order.partitions if each.count]
    return [
        Lane(each, order.seconds, renames_keys=order.renames_keys, phase=number / len(wanted))
        for number, each in enumerate(wanted)
    ]


def send(producer: Producer, lanes: list[Lane], seconds: float, done: threading.Event) -> SentReport:
    """Send all messages, each no earlier than its time, until all are acknowledged or the end is requested."""
    failures: list[str] = []
    acknowledged = 0

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged
        acknowledged += error is None
        if error is not None:
            failures.append(error.str())

    began = time.monotonic()
    behind = 0.0
    cpu = time.process_time()
    while any(lane.sent < lane.order.count for lane in lanes) and not done.is_set() and not failures:
        passed = time.monotonic() - began
        behind = max(behind, *(lane.get_behind_seconds(min(passed, seconds)) for lane in lanes))
        for lane in lanes:
            due = lane.count_due(passed)
            while lane.sent < due:
                if not lane.send_next(producer, delivered):
                    producer.poll(TICK_SECONDS)
                    if done.is_set() or failures:
                        break
        producer.poll(0)
        time.sleep(TICK_SECONDS)
    unacknowledged = producer.flush(FLUSH_SECONDS_MAX)
    failure = _describe_failure(failures, unacknowledged)
    return SentReport(acknowledged, time.monotonic() - began, behind, time.process_time() - cpu, failure)


def _describe_failure(failures: Sequence[str], unacknowledged: int) -> str:
    if failures:
        return failures[0]
    return f"{unacknowledged} messages were not acknowledged" if unacknowledged else ""


def main() -> None:
    """Run the command line."""
    folder = Path(sys.argv[1])
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    order = msgspec.msgpack.decode((folder / ORDER).read_bytes(), type=SendOrder)
    lanes = make_lanes(order)
    producer = open_producer(KafkaSettings.model_validate_json(order.kafka))
    (folder / READY).touch()
    while not (folder / GO).exists() and not done.is_set():
        time.sleep(TICK_SECONDS)
    report = send(producer, lanes, order.seconds, done)
    times = {f"{lane.order.topic}/{lane.order.partition}": lane.times_ms[: lane.sent] for lane in lanes}
    np.savez(folder / TIMES, allow_pickle=False, **times)
    (folder / SENT).write_bytes(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
