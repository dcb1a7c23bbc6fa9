"""Offsets without a message on a real broker: only the log proves a marker, not the topic's settings."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from lockstep import LogOnly, Ordered, Strict
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev.broker import Broker
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.kafka import reader
from lockstep.kafka import reader as kafka_reader
from lockstep.kafka.client import Configuration, make_reader_configuration
from lockstep.model.finding import Hole
from lockstep.model.tuning import Tuning
from lockstep.settings import KafkaSettings
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.integration.engine.test_transactions import holes as holes_in_ledger
from tests.support.adding_stream import adding
from tests.support.feed import Feed, send_within, session, snapshot, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Iterator

CLEANED_SECONDS_MAX = 60.0
CLEANABLE = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "min.compaction.lag.ms": "0"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that compacts immediately and may be stopped."""
    with Broker.start(tmp_path_factory.mktemp("kafka"), settings={"log.cleaner.backoff.ms": "200"}) as running:
        yield running


def transactions(feed: Feed, topic: str, *values: list[bytes]) -> None:
    """Commit a transaction of each list: its messages, then its marker."""
    producer = feed.transactional()
    for each in values:
        producer.begin_transaction()
        send_within(producer, topic, each)
        producer.commit_transaction()


@pytest.mark.slow
def test_what_compaction_removed_is_no_marker_although_the_topic_only_deletes_again(
    feed: Feed, runs: LocalRuns
) -> None:
    """Messages 5 to 33 are gone; offset 4 and the later gaps are markers. Numbers of `LogOnly` do not show the loss."""
    runs = runs.of(adding(feed.pattern, Strict(evidence=LogOnly())))
    topic = feed.create("values", config=CLEANABLE)
    transactions(feed, topic, session(3))
    assert runs.run() is RunOutcome.ENDED
    feed.send(topic, [update(5 + n, a=1) for n in range(30)])
    time.sleep(0.2)  # older than segment.ms: the next message starts a new segment
    transactions(feed, topic, [update(35, b=1)], [update(36, b=1)])
    compact_for_a_while(feed, topic, gone=5)
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    (finding,) = lost.value.findings
    assert (finding.cause, finding.offset) == ("hole", 5)
    assert finding.until > finding.offset


def test_markers_beside_what_compaction_removed_are_told_apart(feed: Feed) -> None:
    topic = feed.create("values", config=CLEANABLE)
    transactions(feed, topic, *([update(n, a=1)] for n in range(4)))  # 0, 2, 4, 6 are messages
    time.sleep(0.2)
    feed.send(topic, [update(9, a=1)])
    compact_for_a_while(feed, topic, gone=4)
    left = offsets_of(feed, topic)
    gaps = [(at, at + 1) for at in range(8) if at not in left]
    found = kafka_reader.explain_missing_offsets(configuration(feed), topic, 0, gaps)
    assert causes(found) == {at: "unproven" if at in {0, 2, 4, 6} else "marker" for at, _ in gaps}


def test_many_transactions_are_proven_by_one_read(feed: Feed) -> None:
    topic = feed.create("values")
    transactions(feed, topic, *([update(n, a=1)] for n in range(50)))
    found = kafka_reader.explain_missing_offsets(
        configuration(feed), topic, 0, [(at, at + 1) for at in range(11, 90, 2)], Tuning(probed_runs_max=0)
    )
    assert set(causes(found).values()) == {"marker"}


@pytest.mark.parametrize("halts", [True, False], ids=["strict", "ordered"])
def test_brokers_that_leave_control_records_out_of_fetches_prove_no_marker(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, *, halts: bool
) -> None:
    """Redpanda does so: the end of a transaction resembles a missing message."""
    look = reader._Prober.look  # noqa: SLF001  # the seam at which the fetches of a broker arrive

    def look_without_control_records(prober: reader._Prober, whole: reader.Range) -> object:
        looked = look(prober, whole)
        if isinstance(looked, reader.UnreadableRange):
            return looked
        seen, fetches = looked
        kept = (msgspec.structs.replace(each, records=each.records - each.control, control=0) for each in fetches)
        return seen, [each for each in kept if each.records]

    monkeypatch.setattr(reader._Prober, "look", look_without_control_records)  # noqa: SLF001
    runs = runs.of(adding(feed.pattern, Strict(evidence=LogOnly()) if halts else Ordered()))
    topic = feed.create("values")
    transactions(feed, topic, session(3), [update(5, a=1)])
    if halts:
        with pytest.raises(IntegrityLost) as lost:
            runs.run()
        assert [(each.cause, each.offset) for each in lost.value.findings] == [("hole", 4)]
        return
    assert runs.run() is RunOutcome.ENDED
    assert len(runs.rows(topic)) > 0
    assert {cause for _, _, cause in holes_in_ledger(runs, topic)} == {"unproven"}


def test_what_compaction_removed_after_it_was_read_is_not_proven_and_no_violation(feed: Feed, runs: LocalRuns) -> None:
    """A message replaced by a later message of its key, and an aborted message, under a class that allows holes."""
    runs = runs.of(adding(feed.pattern, Ordered()))
    replaced = feed.create("replaced", config=CLEANABLE)
    aborted = feed.create("aborted", config=CLEANABLE)
    producer = feed.transactional()
    producer.begin_transaction()
    send_within(producer, aborted, [snapshot(1, a=1)])
    feed.end_transaction(producer, aborted, commits=False)
    for topic in (replaced, aborted):
        for key in ("s", "t"):
            feed.send(topic, [snapshot(1, a=1)], key=key)
    runs.run()
    time.sleep(0.2)  # older than segment.ms: the next message starts a new segment
    feed.send(replaced, [update(2, a=1)], key="s")
    feed.send(aborted, [snapshot(1, a=1)], key="u")
    runs.run()
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN
    for topic in (replaced, aborted):
        time.sleep(0.2)
        feed.send(topic, [snapshot(1, a=1)], key="v")  # the newest segment is never cleaned
        compact(feed, topic, gone=0)
    found = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    gone = "the topic is compacted, and Kafka has no message 0 of it any more"
    assert found.notes == (f"{replaced}/0: from offset 0 on nothing is proven: {gone}",)


def test_a_broker_that_is_silent_while_a_hole_is_explained_halts_nothing(
    broker: Broker, feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range ends before the hole, and the next batch asks again."""
    topic = feed.create("values")
    asked = []
    explained = kafka_reader.explain_missing_offsets
    transactions(feed, topic, session(3), [update(5, a=1)])

    def explain_in_silence(*args: object, **options: object) -> object:
        asked.append(args)
        if len(asked) > 1:
            return explained(*args, **options)  # type: ignore[arg-type]  # as it was called
        pid = broker.pid or 0
        os.kill(pid, signal.SIGSTOP)
        try:
            return explained(*args, **options)  # type: ignore[arg-type]  # as it was called
        finally:
            os.kill(pid, signal.SIGCONT)

    monkeypatch.setattr("lockstep.engine.executor.message_source.explain_missing_offsets", explain_in_silence)
    assert runs.tuned(silence_seconds_max=0.5).run() is RunOutcome.ENDED
    assert holes_in_ledger(runs, topic) == [(4, 5, "marker"), (6, 7, "marker")]
    assert [row[0] for row in runs.rows(topic)] == [1, 1, 2, 2, 3, 3, 5]
    assert len(asked) > 1


def configuration(feed: Feed) -> Configuration:
    return make_reader_configuration(KafkaSettings(bootstrap_servers=feed.bootstrap_servers))


def causes(found: list[Hole] | reader.UnreadableRange) -> dict[int, str]:
    assert isinstance(found, list)
    return {at: each.cause for each in found for at in range(each.start, each.until)}


def compact_for_a_while(feed: Feed, topic: str, *, gone: int) -> None:
    """Let the broker compact a topic until a message is gone; then it only deletes again."""
    compact(feed, topic, gone=gone)
    feed.configure(topic, "cleanup.policy", "delete")


def compact(feed: Feed, topic: str, *, gone: int) -> None:
    """Let the broker compact a topic, and wait until a message is gone, committed or not."""
    feed.configure(topic, "cleanup.policy", "compact")
    deadline = time.monotonic() + CLEANED_SECONDS_MAX
    while gone in offsets_of(feed, topic):
        assert time.monotonic() < deadline, "the log was not cleaned"
        time.sleep(0.2)


def offsets_of(feed: Feed, topic: str) -> set[int]:
    """Return the offsets that hold a message."""
    reader = Consumer(
        {
            "bootstrap.servers": feed.bootstrap_servers,
            "group.id": "looking",
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "log_level": 2,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: set[int] = set()
    while True:
        for each in reader.consume(100, 1.0):
            if each.error() is not None:
                reader.close()
                return found
            found.add(each.offset() or 0)
