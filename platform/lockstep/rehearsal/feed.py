"""A live feed: replays the recordings into Kafka for ever, with the time of now.

    python -m lockstep.rehearsal.feed REPOSITORY --speed 30

Where Kafka is, the settings say. It ends at SIGTERM. When Kafka refuses or does not answer, nobody knows which of
the last messages are there: the sessions end where they are, and new ones begin.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from lockstep.errors import KafkaError
from lockstep.kafka.client import admin_client
from lockstep.kafka.discovery import Discovery
from lockstep.rehearsal.producer import ANSWER_TIMEOUT_S, Delivery, create_topic
from lockstep.rehearsal.recorded_streams import betting_market, checksummed_books
from lockstep.rehearsal.recordings import as_sent, recorded_books, recorded_days
from lockstep.rehearsal.replay import SESSION_MESSAGES_MAX, Due, Plan, replay
from lockstep.settings import KafkaSettings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lockstep.rehearsal.recordings import Recorded

SPEED = 30.0
"""Messages a second, of all topics together: about a fifth of the recorded pace, and a third of a core."""
RETENTION_HOURS = 12.0
"""For ever is too long for a feed that goes on for ever; and headroom shall be a number to look at."""
BREATH_SECONDS, LATE_SECONDS_MAX = 0.05, 2.0
"""Messages that are due are sent in one go; a feed that was held up does not make up for it in a burst."""
RETRY_SECONDS, END_SECONDS = 5.0, 3.0
SAY = Console(highlight=False, soft_wrap=True)


class Stamped(msgspec.Struct, frozen=True):
    """A message with a time, as the producer takes it."""

    key: bytes
    value: bytes
    timestamp_ms: int


def main() -> None:
    """Feed until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="feed", description="Replays the recordings into Kafka for ever.")
    parser.add_argument("repository", type=Path, help="folder that holds tests/recordings")
    parser.add_argument("--speed", type=float, default=SPEED, help=f"messages a second in all (default {SPEED:g})")
    wanted = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    feed(recordings(wanted.repository / "tests" / "recordings"), load_settings().kafka, wanted.speed, stop)


def recordings(folder: Path) -> dict[str, Sequence[Recorded]]:
    """The recordings of all streams by topic: the part of each that is replayed."""
    return {topic: messages[:SESSION_MESSAGES_MAX] for topic, messages in _whole(folder)}


def _whole(folder: Path) -> Iterator[tuple[str, Sequence[Recorded]]]:
    books = folder / "binance_l2"
    for book in recorded_books(books):
        yield f"order_books.{book}", as_sent(recorded_days(books, book)).messages
    for path in sorted((folder / "exchange_ws").glob("kraken*.gz")):
        for book, messages in checksummed_books(path).items():
            yield f"checksummed_books.{book}", messages
    for path in sorted((folder / "betfair").glob("mcm_1*.gz")):
        messages = betting_market(path)
        yield f"betting_markets.{messages[0].book}", messages


def feed(sources: Mapping[str, Sequence[Recorded]], kafka: KafkaSettings, speed: float, stop: threading.Event) -> None:
    """Send until asked to stop, with new sessions after each failure of Kafka."""
    while not stop.is_set():
        run = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        try:
            names = Discovery(admin_client(kafka), ANSWER_TIMEOUT_S).topic_names()
            SAY.print(f"run {run}: {len(sources)} recordings, {speed:g} messages a second")
            _send(replay(Plan(recordings=sources, run=run, messages_per_second=speed, taken=names)), kafka, stop)
        except KafkaError as error:
            SAY.print(f"{error.problem}; new sessions in {RETRY_SECONDS:g} s")
            stop.wait(RETRY_SECONDS)


def _send(messages: Iterator[Due], kafka: KafkaSettings, stop: threading.Event) -> None:
    delivery, known = Delivery(kafka), set[str]()
    began = time.monotonic()
    for due in messages:
        late = time.monotonic() - began - due.at_seconds
        if late > LATE_SECONDS_MAX:
            began += late
        elif late < -BREATH_SECONDS:
            stop.wait(-late)
        if stop.is_set():
            break
        if due.topic not in known:
            known.add(due.topic)
            if create_topic(kafka, due.topic, retention_hours=RETENTION_HOURS):
                SAY.print(f"new topic {due.topic}")
        delivery.send(due.topic, Stamped(due.key, due.value, time.time_ns() // 1_000_000))
    delivery.abandon(END_SECONDS)


if __name__ == "__main__":
    main()
