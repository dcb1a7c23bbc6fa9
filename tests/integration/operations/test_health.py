"""The facts of health on a real Kafka and real tables, and the alarms that they raise."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from confluent_kafka import Producer

from lockstep import FromTime, Objectives, Ordered, Topics
from lockstep.control.heartbeat import Heartbeat, Phase
from lockstep.errors import KafkaError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.compaction.side_files import compact_side_tables
from lockstep.features.localdev.broker import Broker
from lockstep.operations.alarms import AlarmKind, AlarmSeverity
from lockstep.operations.inspect.health import Health, read_health
from lockstep.operations.inspect.status import read_overview, read_status
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import KafkaSettings
from lockstep.table.commit import OutputLog, commit_claim
from lockstep.table.head import Desired
from tests.support.adding_stream import adding
from tests.support.feed import Feed, ProducerRecord, session, snapshot, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600
WAIT_SECONDS_MAX = 60.0


def ago_ms(seconds: float) -> int:
    return int((time.time() - seconds) * 1000)


def raised(health: Health) -> dict[str, AlarmSeverity]:
    return {alarm.kind: alarm.severity for alarm in health.alarms}


def problem(health: Health, kind: AlarmKind) -> str:
    return next(alarm.problem for alarm in health.alarms if alarm.kind is kind)


def test_a_stream_that_never_ran_has_no_alarm_and_one_that_has_read_all_neither(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", config={"retention.ms": "60000"})
    assert (read_health(runs.handle).alarms, read_health(runs.handle).facts.has_table) == ((), False)
    feed.send(topic, session(2))
    runs.run()
    health = read_health(runs.handle)
    assert (health.alarms, health.unknown) == ((), ())
    facts = health.facts
    assert (facts.lag_messages, facts.waiting_seconds, facts.headroom_seconds) == (0, 0.0, 60.0)
    assert (facts.desired, facts.batch, facts.writer) == (Desired.BOUNDED, 1, Phase.ENDED)


def test_commits_of_a_clock_that_was_ahead_raise_an_alarm(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.send(feed.create("values"), session(2))
    runs.run()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 2 * HOUR)
    health = read_health(runs.handle)
    assert raised(health) == {AlarmKind.CLOCK: AlarmSeverity.WARNING}
    assert health.facts.progress_seconds == 0.0
    assert 2 * HOUR - 60 < health.facts.commit_ahead_seconds <= 2 * HOUR
    assert problem(health, AlarmKind.CLOCK).startswith("batch 1 was committed 1")


def desire(runs: LocalRuns, desired: Desired) -> Health:
    """Set a desired state and return the health."""
    output = OutputLog(runs.folders.table)
    output.commit(commit_claim(output.base().head.epoch, output.table_id, lambda _: None, desired=desired))
    return read_health(runs.handle)


def test_headroom_that_shrinks_is_a_warning_then_an_error_in_whatever_state_the_stream_is(
    feed: Feed, runs: LocalRuns
) -> None:
    """Kafka deletes whole segments every five minutes; until then, messages past their retention still exist."""
    topics = [feed.create(name, config={"retention.ms": str(HOUR * 1000)}) for name in "abc"]
    feed.send(topics[0], session(2))
    runs.run()
    assert desire(runs, Desired.STOPPED).alarms == ()
    ages = ((10, None), (40 * 60, AlarmSeverity.WARNING), (55 * 60, AlarmSeverity.ERROR))
    for topic, (seconds, expected) in zip(topics, ages, strict=True):
        feed.append(topic, [ProducerRecord("t", snapshot(1, a=1), ago_ms(seconds))])
        health = read_health(runs.handle)
        assert raised(health) == ({AlarmKind.HEADROOM: expected} if expected else {})
    assert f"of {topics[2]}/0 in 5 min with 1 unread message (2 partitions in all)" in problem(
        health, AlarmKind.HEADROOM
    )
    assert raised(desire(runs, Desired.HELD)) == {AlarmKind.HEADROOM: AlarmSeverity.ERROR}


def test_what_a_stream_will_never_read_of_a_new_topic_is_neither_lag_nor_about_to_be_lost(
    feed: Feed, runs: LocalRuns
) -> None:
    feed.send(feed.create("values"), session(2))
    runs.run()
    late = feed.create("late", config={"retention.ms": str(HOUR * 1000)})
    feed.append(late, [ProducerRecord("t", snapshot(1, a=1), ago_ms(55 * 60))])
    topics = Topics(pattern=feed.pattern, start=FromTime(datetime.now(UTC) - timedelta(minutes=5)))
    health = read_health(runs.of(dataclasses.replace(runs.stream, topics=topics)).handle)
    assert (health.alarms, health.facts.lag_messages) == ((), 0)
    assert read_health(runs.handle).facts.lag_messages == 1


def test_what_retention_deleted_from_under_a_stopped_stream_is_an_error(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.run()
    feed.send(topic, [update(4, a=1), update(5, a=1)])
    feed.expire(topic, 5)
    health = desire(runs, Desired.STOPPED)
    assert problem(health, AlarmKind.EXPIRED) == f"retention has deleted 2 unread offsets, most of {topic}/0"
    assert health.facts.lag_messages == 2


def test_a_transaction_is_as_old_as_its_first_message(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    producer = feed.transactional()
    feed.send(topic, session(2))
    runs.run()
    producer.begin_transaction()
    producer.produce(topic, update(4, a=1), "s", 0, timestamp=ago_ms(HOUR))
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    feed.send(topic, [update(5, a=1)])
    health = read_health(runs.handle)
    assert problem(health, AlarmKind.OPEN_TRANSACTION) == (
        f"a transaction open for 60 min hides 2 offsets of {topic}/0 from 3 on"
    )
    (figures,) = health.facts.partitions
    assert (figures.lag_messages, figures.readable_messages) == (2, 0)
    assert health.facts.waiting_seconds == pytest.approx(HOUR, abs=60)
    feed.end_transaction(producer, topic)
    assert read_health(runs.handle).facts.transactions == ()


def test_a_partition_without_a_leader_is_named_and_the_log_of_a_run_warns_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk of the only replica is lost; the broker continues with its other log folder."""
    folders = [tmp_path / "kafka" / name for name in ("data", "more")]
    with Broker.start(tmp_path / "kafka", settings={"log.dirs": ",".join(map(str, folders))}) as broker:
        feed = Feed(broker.bootstrap_servers, "family")
        runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path)
        topic = feed.create("values", partitions=2, config={"segment.bytes": "1048576"})
        for partition in range(2):
            feed.send(topic, session(2), partition=partition)
        runs.run()
        assert read_health(runs.handle).alarms == ()

        shutil.move(folders[1], tmp_path / "gone")
        lost = next(int(name.name.rpartition("-")[2]) for name in (tmp_path / "gone").glob("family.*"))
        lose_leader(feed, topic, lost)

        health = read_health(runs.handle)
        assert raised(health) == {AlarmKind.LEADERLESS: AlarmSeverity.ERROR}
        assert problem(health, AlarmKind.LEADERLESS).startswith(f"{topic}/{lost} has no leader that answers: ")
        assert read_status(runs.handle).alarms == health.alarms
        with pytest.raises(KafkaError, match=f"{topic}/{lost} has no leader that answers: its messages are not read"):
            runs.tuned(patience_seconds=2.0).run()
        assert caplog.text.count(f"{topic}/{lost} has no leader that answers: its messages wait") == 1


def lose_leader(feed: Feed, topic: str, partition: int) -> None:
    """Write until the broker starts a segment in the missing folder and drops the partition."""
    settings = {"message.max.bytes": 2_000_000, "message.timeout.ms": 1_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": feed.bootstrap_servers, **settings})
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while has_leader(producer, topic, partition):
        assert time.monotonic() < deadline
        producer.produce(topic, b"x" * 900_000, partition=partition)
        producer.flush(0.5)


def has_leader(producer: Producer, topic: str, partition: int) -> bool:
    return bool(producer.list_topics(topic, timeout=WAIT_SECONDS_MAX).topics[topic].partitions[partition].leader >= 0)


def test_a_stream_that_is_to_be_running_and_has_no_writer_is_an_error_after_a_while(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.send(feed.create("values"), session(2))
    runs.run()
    assert raised(desire(runs, Desired.RUNNING)) == {}  # its run may be starting
    with monkeypatch.context() as patch:
        later = time.time() + HOUR
        patch.setattr(time, "time", lambda: later)
        assert raised(read_health(runs.handle)) == {AlarmKind.NO_WRITER: AlarmSeverity.ERROR}
    heartbeat = runs.folders.control / "liveness-2.json"
    with Heartbeat(runs.folders.control, 2, never_ending=True):
        assert read_health(runs.handle).alarms == ()
    assert read_health(runs.handle).alarms == ()  # its writer may be restarting
    os.utime(heartbeat, (time.time() - HOUR,) * 2)
    expected = "the stream is to be running, and epoch 2 has had no live writer for 60 min"
    assert problem(read_health(runs.handle), AlarmKind.NO_WRITER) == expected


def test_messages_that_no_batch_takes_are_stale_only_with_an_objective(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.run()
    feed.append(topic, [ProducerRecord("s", update(4, a=1), ago_ms(HOUR))])
    assert read_health(runs.handle).alarms == ()
    eager = dataclasses.replace(runs.stream, objectives=Objectives(freshness=timedelta(minutes=5)))
    health = read_health(runs.of(eager).handle)
    assert raised(health) == {AlarmKind.FRESHNESS: AlarmSeverity.ERROR}
    assert f"of {topic}/0, waits for 60 min; the objective is 5 min" in problem(health, AlarmKind.FRESHNESS)
    runs.run()
    assert read_health(runs.of(eager).handle).alarms == ()


def test_quarantine_and_compaction_are_read_from_the_logs_of_their_tables(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    strict = Objectives(quarantine_per_hour=2, uncompacted=timedelta(microseconds=1))
    runs = runs.of(dataclasses.replace(adding(feed.pattern, Ordered()), objectives=strict))
    for first in (1, 10):
        feed.send(topic, [*session(2, first), *[b"garbage"] * 2], key=str(first))
        runs.run()
    health = read_health(runs.handle)
    assert (health.facts.quarantined_messages, health.facts.quarantined_last_hour) == (4, 4)
    assert problem(health, AlarmKind.QUARANTINE).startswith("4 messages entered quarantine within the last hour")
    assert health.facts.debt.hours == 0

    hour = close_hour(runs.folders)
    debt = read_health(runs.handle).facts.debt
    assert (debt.hours, debt.files, debt.oldest_hour) == (1, 2, hour)
    compact_stream(runs.folders)
    assert read_health(runs.handle).facts.debt.hours == 0


def test_a_compaction_of_the_quarantine_is_no_growth_of_it(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values")
    runs = runs.of(dataclasses.replace(adding(feed.pattern, Ordered()), objectives=Objectives(quarantine_per_hour=2)))
    for first in (1, 10):
        feed.send(topic, [*session(2, first), *[b"garbage"] * 2], key=str(first))
        runs.run()
    head = OutputLog(runs.folders.table).base().head
    later = time.time() + 2 * HOUR
    monkeypatch.setattr(time, "time", lambda: later)
    assert compact_side_tables(runs.folders, msgspec.structs.replace(head, hour="2099-01-01T00")).files_after == 1
    health = read_health(runs.handle)
    assert (health.facts.quarantined_messages, health.facts.quarantined_last_hour) == (4, 0)
    assert AlarmKind.QUARANTINE not in raised(health)


def test_a_kafka_that_does_not_answer_is_unknown_and_a_torn_table_too(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(2))
    runs.run()
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:9", timeout_seconds=0.2)
    silent = read_health(StreamHandle(runs.stream, runs.settings.model_copy(update={"kafka": nowhere})))
    assert raised(silent) == {AlarmKind.KAFKA: AlarmSeverity.ERROR}
    assert {AlarmKind.HEADROOM, AlarmKind.LEADERLESS} < set(silent.unknown)
    assert (silent.facts.lag_messages, silent.facts.headroom_seconds) == (None, None)

    max((runs.folders.table / "_delta_log").glob("*.json")).write_text("")
    torn = read_health(runs.handle)
    assert raised(torn) == {AlarmKind.UNREADABLE: AlarmSeverity.ERROR}
    (overview,) = read_overview([runs.stream], runs.settings)
    assert overview.alarms == torn.alarms
