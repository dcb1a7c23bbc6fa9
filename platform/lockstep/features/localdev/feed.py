"""Live feed that replays recordings.

A session is always replayed from its snapshot, in the order of the recording, under a key that was never used
before. So any evidence of a recording (links, checksums) holds in every replay, and a feed that was
killed half-way continues with new sessions: a session with an unknown end is never continued.

At intervals a new topic appears. It is fed with one session and then stays idle.

python -m lockstep.features.localdev.feed REPOSITORY --speed 30

The settings have Kafka's address. It ends at SIGTERM. While Kafka does not answer, messages wait for it, in order.
When it refuses one, or is away until the queue is full, it is unknown which of the last messages were written: the
sessions end there, and new sessions start.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections import deque
from datetime import UTC, datetime
from itertools import chain, count, cycle, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from lockstep.errors import KafkaError
from lockstep.features.localdev.producer import ANSWER_TIMEOUT_S, SentMessages, create_topic
from lockstep.features.localdev.recordings import (
    read_betting_market,
    read_checksummed_books,
    read_recorded_books,
    read_recorded_days,
    to_sent,
)
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.settings import KafkaSettings, load_settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lockstep.features.localdev.recordings import Recorded


SESSION_MESSAGES_MAX = 2_000
"""A part of a recording from its snapshot on is a recording. At a few messages a second and topic such a
session takes some ten minutes, so that sessions start while a person watches; and little is kept in memory."""
FIRST_NEW_TOPIC_SECONDS = 180.0
NEW_TOPIC_SECONDS = 1_800.0
"""Soon enough for a first impression; then rarely, as each new topic costs a restart of a stream."""


class NextMessage(msgspec.Struct, frozen=True):
    """A message to send.

    Attributes:
        at_seconds: Time since the start of the feed.
        topic: Its topic.
        key: The session, as the message key.
        value: The recorded value.
    """

    at_seconds: float
    topic: str
    key: bytes
    value: bytes


class FeedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the feed.

    Attributes:
        recordings: Messages by topic, from a snapshot on; one session each.
        run: Distinguishes the sessions of this feed from those of all others.
        messages_per_second: Of all topics together.
        taken: Existing topics.
        new_topic_seconds: Time until the first new topic, and between later topics.
    """

    recordings: Mapping[str, Sequence[Recorded]]
    run: str
    messages_per_second: float
    taken: Collection[str] = ()
    new_topic_seconds: tuple[float, float] = (FIRST_NEW_TOPIC_SECONDS, NEW_TOPIC_SECONDS)


def replay(plan: FeedPlan) -> Iterator[NextMessage]:
    """All messages, without end: the topics take turns, one message each."""
    turns = deque(_endless(topic, messages, plan.run) for topic, messages in plan.recordings.items())
    new_topics = _new_topics(plan)
    births = _births(plan)
    birth = next(births)
    for number in count():
        at = number / plan.messages_per_second
        if at >= birth:
            birth = next(births)
            turns.append(next(new_topics))
        topic, key, value = _next(turns)
        yield NextMessage(at, topic, key, value)


def _next(turns: deque[Iterator[tuple[str, bytes, bytes]]]) -> tuple[str, bytes, bytes]:
    """The next message; a topic without further messages is left out from then on."""
    while True:
        turn = turns.popleft()
        message = next(turn, None)
        if message is not None:
            turns.append(turn)
            return message


def _endless(topic: str, messages: Sequence[Recorded], run: str) -> Iterator[tuple[str, bytes, bytes]]:
    for number in count(1):
        yield from _session(topic, messages, f"{run}.{number}")


def _session(topic: str, messages: Sequence[Recorded], which: str) -> Iterator[tuple[str, bytes, bytes]]:
    for message in messages[:SESSION_MESSAGES_MAX]:
        yield topic, f"{message.book}.{which}".encode(), message.value


def _new_topics(plan: FeedPlan) -> Iterator[Iterator[tuple[str, bytes, bytes]]]:
    """One session each on a separate topic, named after a recording and a number not yet taken."""
    taken = {*plan.taken, *plan.recordings}
    for original, messages in cycle(plan.recordings.items()):
        topic = next(name for number in count(2) if (name := f"{original}_{number}") not in taken)
        taken.add(topic)
        yield _session(topic, messages, f"{plan.run}.1")


def _births(plan: FeedPlan) -> Iterator[float]:
    """Times at which new topics appear."""
    first, pause = plan.new_topic_seconds
    at = first
    for wait in chain((0.0,), repeat(pause)):
        at += wait
        yield at


SPEED = 30.0
"""Messages a second, of all topics together: about a fifth of the recorded pace, and a third of a core."""
RETENTION_HOURS = 12.0
"""Retention of the feed's topics: unlimited does not fit an endless feed, and headroom must be a finite figure."""
BREATH_SECONDS = 0.05
LATE_SECONDS_MAX = 2.0
"""Due messages are sent in one go; a delayed feed does not catch up in a burst."""
RETRY_SECONDS = 5.0
END_SECONDS = 3.0
SAY = Console(highlight=False, soft_wrap=True)


class Stamped(msgspec.Struct, frozen=True):
    """A message with a time, for the producer."""

    key: bytes
    value: bytes
    timestamp_ms: int


def main() -> None:
    """Feed until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="feed", description="Replays the recordings into Kafka in a loop.")
    parser.add_argument("repository", type=Path, help="folder that holds tests/recordings")
    parser.add_argument("--speed", type=float, default=SPEED, help=f"messages a second in all (default {SPEED:g})")
    wanted = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    feed(list_recordings(wanted.repository / "tests" / "recordings"), load_settings().kafka, wanted.speed, stop)


def list_recordings(folder: Path) -> dict[str, Sequence[Recorded]]:
    """The recordings of all streams by topic: the replayed part of each."""
    return {topic: messages[:SESSION_MESSAGES_MAX] for topic, messages in _whole(folder)}


def _whole(folder: Path) -> Iterator[tuple[str, Sequence[Recorded]]]:
    books = folder / "binance_l2"
    for book in read_recorded_books(books):
        yield f"order_books.{book}", to_sent(read_recorded_days(books, book)).messages
    for path in sorted((folder / "exchange_ws").glob("kraken*.gz")):
        for book, messages in read_checksummed_books(path).items():
            yield f"checksummed_books.{book}", messages
    for path in sorted((folder / "betfair").glob("mcm_1*.gz")):
        messages = read_betting_market(path)
        yield f"betting_markets.{messages[0].book}", messages


def feed(sources: Mapping[str, Sequence[Recorded]], kafka: KafkaSettings, speed: float, stop: threading.Event) -> None:
    """Send until asked to stop, with new sessions after each failure of Kafka."""
    while not stop.is_set():
        run = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        try:
            names = ClusterAdmin(make_admin_client(kafka), ANSWER_TIMEOUT_S).topic_names()
            SAY.print(f"run {run}: {len(sources)} recordings, {speed:g} messages a second")
            _send(replay(FeedPlan(recordings=sources, run=run, messages_per_second=speed, taken=names)), kafka, stop)
        except KafkaError as error:
            SAY.print(f"{error.problem}; new sessions in {RETRY_SECONDS:g} s")
            stop.wait(RETRY_SECONDS)


def _send(messages: Iterator[NextMessage], kafka: KafkaSettings, stop: threading.Event) -> None:
    delivery = SentMessages(kafka)
    known = set[str]()
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
