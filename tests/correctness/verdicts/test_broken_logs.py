"""The verdict table: faults that need a separate broker, with a compacted log and with a truncated log."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from lockstep.errors import LockstepError
from lockstep.features.localdev.broker import Broker
from tests.correctness.verdicts.log_faults import LOG_CLASSES, LOG_TABLE, LOST_UNTIL, READ, UNTIL, Effect, LogFault, log
from tests.correctness.verdicts.reading import Log, assert_halted, assert_rows, halted_by, runs_of, send
from tests.support.feed import ANSWER_SECONDS, Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

CLEANED_SECONDS_MAX = 60.0
COMPACTING = {
    "cleanup.policy": "compact,delete",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that compacts immediately, and that may lose a folder."""
    with Broker.start(tmp_path_factory.mktemp("kafka"), settings={"log.cleaner.backoff.ms": "200"}) as running:
        yield running


@pytest.fixture(scope="module")
def compacted(own_broker: Broker) -> Feed:
    """A topic in which a later message of the same key has removed the message at offset `READ`."""
    feed = Feed(own_broker.bootstrap_servers, "compacted")
    topic = feed.create("unproven", config=COMPACTING)
    keyed = [replace(each, key=str(at).encode()) for at, each in enumerate(log())]
    keyed[READ] = replace(keyed[READ], key=keyed[LOST_UNTIL].key)
    for part in (keyed[: LOST_UNTIL + 1], keyed[LOST_UNTIL + 1 :]):  # the newest segment is never cleaned
        send(feed, topic, part)
    deadline = time.monotonic() + CLEANED_SECONDS_MAX
    while READ in offsets_of(feed, topic):
        assert time.monotonic() < deadline, "the log was not cleaned"
        time.sleep(0.2)
    return feed


def offsets_of(feed: Feed, topic: str) -> set[int]:
    """Return the offsets that hold a message."""
    reader = Consumer({"bootstrap.servers": feed.bootstrap_servers, "group.id": "looking", "log_level": 2})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: set[int] = set()
    while UNTIL - 1 not in found:
        found |= {each.offset() or 0 for each in reader.consume(UNTIL, ANSWER_SECONDS / 10)}
    reader.close()
    return found


@pytest.mark.parametrize("name", LOG_CLASSES)
def test_a_compacted_topic(own_broker: Broker, compacted: Feed, tmp_path: Path, name: str) -> None:
    """Its hole is counted if the class tolerates it; a class that needs every message does not start on it."""
    topic = f"{compacted.family}.unproven"
    effect = LOG_TABLE[LogFault.UNPROVEN][name]
    runs = runs_of(compacted.family, name, own_broker, tmp_path)
    if effect is Effect.REFUSED:
        with pytest.raises(LockstepError, match=f"topics {topic} are compacted"):
            runs.run()
        return
    found = Log(runs, halted_by(runs))
    assert_rows(found, topic, effect, goes_on=[range(READ), range(READ + 1, UNTIL)])
    assert found.holes(topic) == [(READ, READ + 1, "unproven")]


@pytest.fixture(scope="module")
def cut(own_broker: Broker, compacted: Feed, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Log]:
    """Return the result of a class for a log that it read up to `READ`, and that was then lost and written again."""
    del compacted  # not read, but the restart would interrupt its tests
    feed = Feed(own_broker.bootstrap_servers, "cut")
    root = tmp_path_factory.mktemp("cut")
    topic = feed.create("truncated")
    send(feed, topic, log()[:READ])
    runs = {name: runs_of(feed.family, name, own_broker, root) for name in LOG_CLASSES}
    for each in runs.values():
        each.run()
    own_broker.stop()
    shutil.rmtree(own_broker.folder / "data" / f"{topic}-0")
    own_broker.restart()
    send(feed, topic, log()[: READ // 2])
    halted = {name: halted_by(each) for name, each in runs.items()}
    send(feed, topic, log()[READ // 2 :])
    return cache(lambda name: Log(runs[name], halted[name] or halted_by(runs[name])))


@pytest.mark.parametrize("name", LOG_CLASSES)
def test_a_log_that_was_cut(cut: Callable[[str], Log], name: str) -> None:
    """Messages appended at offsets already read are skipped; later messages are new."""
    found = cut(name)
    assert_rows(found, "cut.truncated", LOG_TABLE[LogFault.TRUNCATED][name], goes_on=[range(UNTIL)])
    assert_halted(found, "cut.truncated", LogFault.TRUNCATED, (READ, READ))
