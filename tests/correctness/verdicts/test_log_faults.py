"""The verdict table: faults of the log. Each class reads the same topics before and after the fault."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from lockstep.integrity.verdict import Judgement
from lockstep.model.fault import Fault
from tests.correctness.verdicts.log_faults import (
    LOG_CLASSES,
    LOG_TABLE,
    LOST_UNTIL,
    READ,
    SNAPSHOT,
    UNTIL,
    Effect,
    LogFault,
    log,
    other_session,
    rows_of_offsets,
)
from tests.correctness.verdicts.reading import Log, assert_halted, assert_rows, halted_by, runs_of, send
from tests.support.feed import ANSWER_SECONDS, Feed
from tests.support.plain_reader import first_difference, heads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker


TOGETHER = (LogFault.ABORTED, LogFault.EXPIRED, LogFault.RECREATED, LogFault.GREW)
ABORTED = range(READ, READ + 5)


@pytest.fixture(scope="module")
def read_by(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Log]:
    """Return the result of a class for four topics: read by all classes, damaged, and read by all classes again."""
    feed = Feed(broker.bootstrap_servers, "verdicts_of_logs")
    topics = {fault: feed.create(fault.name.lower()) for fault in TOGETHER}
    for topic in topics.values():
        send(feed, topic, log()[:READ])
    abort(feed, topics[LogFault.ABORTED])
    send(feed, topics[LogFault.ABORTED], log()[READ:])
    root = tmp_path_factory.mktemp("logs")
    runs = {name: runs_of(feed.family, name, broker, root) for name in LOG_CLASSES}
    for each in runs.values():
        each.run()
    hit(feed, topics)
    return cache(lambda name: Log(runs[name], halted_by(runs[name])))


def abort(feed: Feed, topic: str) -> None:
    """Write five messages that are aborted, and the control record that marks them."""
    producer = feed.transactional()
    producer.begin_transaction()
    for _ in ABORTED:
        producer.produce(topic, b"garbage", partition=0)
    assert producer.flush(ANSWER_SECONDS) == 0
    feed.end_transaction(producer, topic, commits=False)


def hit(feed: Feed, topics: dict[LogFault, str]) -> None:
    """Damage the topics, and send more messages."""
    send(feed, topics[LogFault.EXPIRED], log()[READ:])
    feed.expire(topics[LogFault.EXPIRED], LOST_UNTIL)
    feed.grow(topics[LogFault.GREW], partitions=2)
    send(feed, topics[LogFault.GREW], log()[READ:])
    send(feed, topics[LogFault.GREW], other_session(log()[:READ]), partition=1)
    feed.delete(topics[LogFault.RECREATED])
    feed.create_again(LogFault.RECREATED.name.lower())
    send(feed, topics[LogFault.RECREATED], log()[:READ])


def test_no_cell_of_the_table_is_missing() -> None:
    assert set(LOG_TABLE) == set(LogFault)
    assert {fault: set(LOG_CLASSES) for fault in LogFault} == {fault: set(told) for fault, told in LOG_TABLE.items()}


@pytest.mark.parametrize("name", LOG_CLASSES)
def test_the_answer_of_a_class_to_a_session_in_two_partitions_is_that_of_the_table(name: str) -> None:
    """All classes are tested without a broker; three of them also run through a broker below."""
    halts = LOG_CLASSES[name].judge(Fault.SESSION_SPLIT) is Judgement.VIOLATION
    assert (Effect.HALTS if halts else Effect.GOES_ON) is LOG_TABLE[LogFault.MOVED][name]


@pytest.mark.parametrize("name", LOG_CLASSES)
def test_an_aborted_transaction_is_an_explained_hole_to_every_class(read_by: Callable[[str], Log], name: str) -> None:
    found = read_by(name)
    topic = "verdicts_of_logs.aborted"
    assert LOG_TABLE[LogFault.ABORTED][name] is Effect.GOES_ON
    assert first_difference(rows_of_offsets(range(UNTIL)), found.rows(topic)) is None
    assert found.holes(topic) == [(READ, ABORTED.stop, "aborted"), (ABORTED.stop, ABORTED.stop + 1, "marker")]
    assert {(row.gaps, row.quarantined) for row in found.ledger(topic)} == {(0, 0)}


@pytest.mark.parametrize("name", LOG_CLASSES)
def test_messages_that_expired_unread(read_by: Callable[[str], Log], name: str) -> None:
    found = read_by(name)
    topic = "verdicts_of_logs.expired"
    effect = LOG_TABLE[LogFault.EXPIRED][name]
    assert_rows(found, topic, effect, goes_on=[range(READ), range(LOST_UNTIL, UNTIL)])
    lost = [] if found.findings else [(READ, LOST_UNTIL, "expired")]
    assert found.holes(topic) == lost
    assert_halted(found, topic, LogFault.EXPIRED, (READ, LOST_UNTIL))
    if name == "suspend" and not found.findings:
        (accepted,) = [each for row in found.ledger(topic) for each in row.accepted]
        assert (accepted.kind, accepted.start, accepted.until) == ("accept-loss", LOST_UNTIL, SNAPSHOT)


@pytest.mark.parametrize("name", LOG_CLASSES)
def test_a_topic_that_is_created_anew(read_by: Callable[[str], Log], name: str) -> None:
    found = read_by(name)
    topic = "verdicts_of_logs.recreated"
    assert_rows(found, topic, LOG_TABLE[LogFault.RECREATED][name], goes_on=[range(READ), range(READ)])
    assert_halted(found, topic, LogFault.RECREATED, (READ, READ))


@pytest.mark.parametrize("name", LOG_CLASSES)
def test_a_topic_that_gets_another_partition(read_by: Callable[[str], Log], name: str) -> None:
    found = read_by(name)
    topic = "verdicts_of_logs.grew"
    effect = LOG_TABLE[LogFault.GREW][name]
    assert_rows(found, topic, effect, goes_on=[range(UNTIL)])
    assert_halted(found, topic, LogFault.GREW, (0, 0))
    assert len(found.rows(topic, 1)) == (0 if found.findings else len(rows_of_offsets(range(READ))))


USUAL_MOVED = ("none", "ordered", "strict")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL_MOVED else pytest.mark.slow) for name in LOG_CLASSES]
)
def test_a_session_that_begins_in_two_partitions(broker: Broker, topic_family: str, tmp_path: Path, name: str) -> None:
    feed = Feed(broker.bootstrap_servers, topic_family)
    topic = feed.create("moved", partitions=2)
    for partition in (0, 1):
        send(feed, topic, log()[: READ // 2], partition)
    runs = runs_of(topic_family, name, broker, tmp_path)
    found = Log(runs, halted_by(runs))
    goes_on = LOG_TABLE[LogFault.MOVED][name] is Effect.GOES_ON
    assert goes_on is not bool(found.findings)
    assert {finding.cause for finding in found.findings} <= {LogFault.MOVED.value.removeprefix("one ")}
    for partition in (0, 1) if goes_on else ():
        assert first_difference(rows_of_offsets(range(READ // 2)), found.rows(topic, partition)) is None
    assert heads(runs.folders.table)[-1]["desired"] == ("bounded" if goes_on else "halted")
