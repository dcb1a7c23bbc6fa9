"""Reads of a stream that has run: status, topics, plans, positions, state, rows."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake
from typer.testing import CliRunner

from lockstep import Ordered, Topics
from lockstep.cli import inspect
from lockstep.cli.__main__ import app
from lockstep.control.heartbeat import WriterState
from lockstep.engine.driver.run import run_stream
from lockstep.errors import LockstepError, TableError
from lockstep.integrity.resume_options import IntegrityLost, SkipSession
from lockstep.kafka.progress import TopicLifecycle
from lockstep.operations.inspect import plan
from lockstep.operations.inspect.history import read_history
from lockstep.operations.inspect.state import NoSuchSession, StateFilter, read_states, to_plain
from lockstep.operations.inspect.status import read_status
from lockstep.operations.inspect.streams import Positions, format_spark_offsets, read_positions
from lockstep.operations.inspect.topics import TopicStatus, read_topics
from lockstep.operations.query import AsOf, WrongQuery, query_derived, query_sql, query_stream
from lockstep.operations.resume import resume_stream
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import NoTable
from lockstep.state.codec import StateTypeChanged
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.layout import DerivedFolders, TableRootMissing
from tests.support.adding_stream import adding
from tests.support.evolving_streams import Unmigrated, release
from tests.support.feed import folded, session, update

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

Read = tuple["Feed", "LocalRuns"]


def test_status_says_position_and_lag_of_each_partition_and_how_long_unread_messages_stay(read: Read) -> None:
    feed, runs = read
    found = read_status(runs.handle)
    assert [(p.topic, p.partition, p.position, p.lag_messages) for p in found.partitions] == [
        (f"{feed.family}.values", 0, 4, 2),
        (f"{feed.family}.values", 1, 2, 0),
    ]
    assert (found.desired, found.writer) == ("bounded", WriterState.ENDED)
    assert (found.lag_messages, found.batch, found.kafka) == (2, 1, "")
    assert found.freshness_seconds is not None
    assert found.headroom_seconds is None  # the topic keeps its messages forever


def test_headroom_counts_from_the_first_unread_message(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", config={"retention.ms": "3600000"})
    feed.send(topic, session(1))
    runs.run()
    assert read_status(runs.handle).headroom_seconds == 3600  # nothing is unread: a message that arrives now
    feed.send(topic, [update(3, a=1)])
    (listed,) = read_topics(runs.handle).topics
    assert listed.retention_seconds == 3600
    assert listed.headroom_seconds is not None
    assert 3000 < listed.headroom_seconds <= 3600
    headroom = read_status(runs.handle).headroom_seconds
    assert headroom is not None
    assert 3000 < headroom <= 3600


def test_status_without_kafka_says_what_the_table_knows(read: Read) -> None:
    _, runs = read
    kafka = runs.settings.kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1", "timeout_seconds": 1.0})
    found = read_status(StreamHandle(runs.stream, runs.settings.model_copy(update={"kafka": kafka})))
    assert (found.lag_messages, [p.position for p in found.partitions]) == (None, [4, 2])
    assert "Kafka did not answer" in found.kafka


def test_a_halt_is_shown_with_its_evidence_and_later_with_who_resumed_it(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, [*session(1), update(9, a=1)])
    with pytest.raises(IntegrityLost):
        runs.run()
    halted = read_status(runs.handle)
    assert (halted.desired, [finding.cause for finding in halted.findings]) == ("halted", ["gap"])
    resume_stream(runs.folders, why="a producer was restarted", who="operator", accepted=[SkipSession(topic, 0, "s")])
    resumed = read_status(runs.handle)
    assert resumed.last_resume is not None
    assert resumed.last_resume.endswith("a producer was restarted (operator)")


def test_the_history_names_why_runs_began_what_halted_them_and_who_resumed(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(1))
    runs.run()
    feed.send(topic, [update(9, a=1)])
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    resume_stream(runs.folders, why="a producer was restarted", who="ann", accepted=[SkipSession(topic, 0, "s")])
    events = [(each.event, each.detail) for each in read_history(runs.folders, last=50).events]
    assert events[1] == ("new writer", "first start; test")
    assert events[3:5] == [
        ("new writer", "the run before had ended; test"),
        ("halted", str(lost.value.findings[0])),
    ]
    assert events[5:] == [("new writer", "resume"), ("resumed", "a producer was restarted (ann)")]


def test_a_message_from_the_future_is_named_where_freshness_would_be(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values")
    feed.send(topic, session(1))
    runs.run()
    assert read_status(runs.handle).ahead_seconds == 0
    producer = Producer({"bootstrap.servers": feed.bootstrap_servers})
    producer.produce(topic, update(3, a=1), key="s", timestamp=int((time.time() + 3_000) * 1000))
    assert producer.flush(30) == 0
    runs.run()
    found = read_status(runs.handle)
    assert (found.freshness_seconds, 2_000 < found.ahead_seconds <= 3_000) == (0, True)
    monkeypatch.setattr(inspect, "open_handle", lambda _: runs.handle)
    monkeypatch.setattr(inspect, "list_all_derived", dict)
    said = CliRunner().invoke(app, ["status", "adding"]).stdout
    assert re.search(r"unknown: the newest timestamp is \d+ min in the future", said)


def test_a_partition_whose_sessions_are_all_suspended_is_shown_with_the_batch_that_did_it(
    feed: Feed, runs: LocalRuns
) -> None:
    """A message of an unknown session was lost; rows alone do not explain the partition's gaps."""
    topic = feed.create("values", partitions=2)
    runs = runs.of(adding(feed.pattern, Ordered()))
    feed.send(topic, session(2), partition=1)
    runs.run()
    assert read_status(runs.handle).suspensions == ()
    feed.send(topic, [b"garbage", update(4, a=1)], partition=1)
    runs.run()
    feed.send(topic, [update(5, a=1)], partition=1)
    runs.run()
    (found,) = read_status(runs.handle).suspensions
    until = "until their next snapshot (under FIRST_MESSAGE their next message)"
    assert str(found) == f"{topic}/1: sessions that started before offset 4 are suspended {until}"
    details = [each.detail for each in read_history(runs.folders, 50).events if each.event == "batches"]
    assert details == ["", str(found), ""]


def test_topics_are_told_apart_by_their_lives(feed: Feed, runs: LocalRuns) -> None:
    read = feed.create("read")
    deleted = feed.create("deleted")
    again = feed.create("again")
    feed.send(read, session(1))
    runs.run()
    feed.delete(deleted)
    feed.delete(again)
    feed.create_again("again")
    new = feed.create("new", partitions=3)
    feed.send(new, session(4), partition=2)

    found = read_topics(runs.handle)
    assert {item.topic: item.state for item in found.topics} == {
        read: TopicLifecycle.ACTIVE,
        deleted: TopicLifecycle.DELETED,
        again: TopicLifecycle.RECREATED,
        new: TopicLifecycle.NEW,
    }
    by_name: dict[str, TopicStatus] = {item.topic: item for item in found.topics}
    assert (by_name[new].partitions, by_name[new].messages, by_name[new].lag_messages) == (3, 5, 5)
    assert (by_name[deleted].messages, by_name[deleted].first_message) == (None, None)
    first = by_name[new].first_message
    last = by_name[new].last_message
    assert first is not None
    assert last is not None
    assert first <= last
    assert (by_name[read].position, by_name[read].lag_messages, by_name[deleted].lag_messages) == (2, 0, None)
    fresh = {topic: item.freshness_seconds is not None for topic, item in by_name.items()}
    assert fresh == {read: True, deleted: False, again: False, new: False}  # of committed messages
    assert (found.wanted, found.subscribed) == (3, 3)


def test_the_lag_of_a_stream_is_that_of_topics_that_it_reads_or_will_read(feed: Feed, runs: LocalRuns) -> None:
    read = feed.create("read")
    feed.send(read, session(2))
    runs.run()
    feed.send(read, [update(4, a=1), update(5, a=1)])
    new = feed.create("new")
    feed.send(new, session(3))
    both = [read_status(runs.handle).lag_messages, read_topics(runs.handle).lag_messages]
    only = runs.of(dataclasses.replace(runs.stream, topics=Topics(pattern=re.escape(new)))).handle
    assert both == [2 + 4, 2 + 4]
    assert [read_status(only).lag_messages, read_topics(only).lag_messages] == [4, 4]
    assert [topic.state for topic in read_topics(only).topics] == [TopicLifecycle.NEW, TopicLifecycle.UNWANTED]


def test_the_next_batch_is_what_is_left_to_read(read: Read) -> None:
    feed, runs = read
    found = plan.plan_next_batch(runs.stream, runs.settings)
    assert [msgspec.structs.astuple(item) for item in found.ranges] == [(0, f"{feed.family}.values", 0, 4, 6)]
    assert (found.batch, found.messages, found.backlog, found.findings) == (2, 2, 0, ())


def test_a_plan_works_before_the_first_run(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(2))
    assert plan.plan_next_batch(runs.stream, runs.settings).messages == 3
    found = plan.plan_restart(runs.stream, runs.settings)
    assert (found.added, found.takes_over) == ((f"{feed.family}.values",), "no writer: it would be the first run")
    assert found.refused == ""
    with pytest.raises(NoTable):
        read_status(runs.handle)


def test_a_restart_without_the_table_that_kafka_knows_of_would_be_refused(read: Read, tmp_path: Path) -> None:
    _, runs = read
    elsewhere = runs.settings.model_copy(update={"table_root": tmp_path})
    assert "does not exist" in plan.plan_restart(runs.stream, elsewhere).refused
    assert plan.plan_restart(runs.stream, runs.settings).refused == ""


def test_a_start_that_is_refused_for_its_table_makes_no_root_that_would_look_new(read: Read, tmp_path: Path) -> None:
    _, runs = read
    elsewhere = runs.settings.model_copy(update={"table_root": tmp_path / "unmounted"})
    with pytest.raises(TableError, match="does not exist, but stream adding had come to"):
        run_stream(runs.stream, elsewhere, spark=lambda: pytest.fail("Spark starts"), stop=threading.Event())
    assert not elsewhere.table_root.exists()
    with pytest.raises(TableRootMissing):
        read_status(StreamHandle(runs.stream, elsewhere))


def test_a_run_that_cannot_read_the_state_names_its_stream_in_the_next_step(read: Read) -> None:
    _, runs = read
    other = release(runs.stream.topics.pattern, Unmigrated())
    with pytest.raises(StateTypeChanged, match="lockstep reset adding"):
        run_stream(other, runs.settings, spark=lambda: pytest.fail("Spark starts"), stop=threading.Event())


def test_a_restart_says_of_each_partition_where_it_begins_and_why(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("read"), session(1))
    deleted = feed.create("deleted")
    runs.run()
    feed.delete(deleted)
    feed.create("new")
    found = plan.plan_restart(runs.stream, runs.settings)
    assert [(p.topic.rpartition(".")[2], p.action, p.start) for p in found.partitions] == [
        ("deleted", "audit", 0),
        ("new", "add", 0),
        ("read", "go on", 2),
    ]
    assert (found.added, found.kept_aside) == ((f"{feed.family}.new",), (deleted,))
    assert [finding.cause for finding in found.findings] == ["topic gone"]
    assert found.takes_over == "epoch 1, which has ended"


def test_positions_are_those_that_spark_starts_from(read: Read) -> None:
    feed, runs = read
    found = read_positions(runs.handle)
    assert json.loads(format_spark_offsets(found)) == {f"{feed.family}.values": {"0": 4, "1": 2}}
    assert found == msgspec.json.decode(msgspec.json.encode(found), type=Positions)


def test_the_state_of_a_session_is_that_of_the_plain_fold(read: Read) -> None:
    _, runs = read
    listed = read_states(runs.stream, runs.root / "tables", StateFilter())
    assert [(s.partition, s.session, s.position) for s in listed.sessions] == [(0, "a", 4), (1, "b", 2)]
    (found,) = read_states(runs.stream, runs.root / "tables", StateFilter(session="a")).sessions
    last = {row[4]: row[5] for row in folded([(n, "a", value) for n, value in enumerate(session(3))])}
    assert found.state == {"values": last}
    with pytest.raises(NoSuchSession, match="lockstep state adding"):
        read_states(runs.stream, runs.root / "tables", StateFilter(session="c"))


def test_a_state_with_keys_that_are_no_text_becomes_a_list() -> None:
    assert to_plain({("bid", "1.5"): "2", ("ask", "1.6"): "3"}) == [
        {"key": ["bid", "1.5"], "value": "2"},
        {"key": ["ask", "1.6"], "value": "3"},
    ]


def test_rows_are_those_of_now_of_a_version_or_of_a_time(read: Read) -> None:
    _, runs = read
    root = runs.root / "tables"
    now = AsOf()
    rows = query_stream("adding", root, now, limit=None)
    assert len(rows.rows) == len(folded([(n, "a", v) for n, v in enumerate(session(3))])) + 2
    assert rows.rows == sorted(
        rows.rows, key=lambda row: [row[rows.columns.index(n)] for n in ("_partition", "_offset")]
    )
    assert query_stream("adding", root, AsOf(version=1), limit=None).rows == []
    assert query_stream("adding", root, AsOf(time=datetime(2020, 1, 1, tzinfo=UTC)), limit=None).rows == []
    few = query_stream("adding", root, now, limit=3)
    assert (few.rows, few.more) == (rows.rows[:3], True)


def test_sql_joins_rows_and_ledger_without_spark(read: Read) -> None:
    _, runs = read
    sql = (
        "SELECT l.partition, sum(l.messages), (SELECT count(*) FROM adding) FROM adding_ledger l GROUP BY 1 ORDER BY 1"
    )
    found = query_sql(sql, ["adding", "never_ran"], runs.root / "tables", AsOf(), limit=None)
    assert found.rows == [[0, 4, 8], [1, 2, 8]]


def test_derived_tables_are_read_by_name_and_joined_to_their_streams(read: Read) -> None:
    _, runs = read
    root = runs.root / "tables"
    with pytest.raises(LockstepError, match=f"totals has no table in {root} yet"):
        query_derived("totals", root, AsOf(), limit=None)
    write_deltalake(DerivedFolders("totals", root).table, pa.table({"name": ["a", "b"]}))
    assert query_derived("totals", root, AsOf(version=0), limit=1).rows == [["a"]]
    sql = "SELECT count(*) AS n, (SELECT count(*) FROM adding) FROM totals"
    assert query_sql(sql, ["adding"], root, AsOf(), limit=None, derived=["totals", "never_made"]).rows == [[2, 8]]


def test_a_time_that_a_derived_table_does_not_know_matters_only_where_the_query_names_it(read: Read) -> None:
    _, runs = read
    root = runs.root / "tables"
    before = AsOf(time=datetime(2020, 1, 1, tzinfo=UTC))
    folder = DerivedFolders("cleaned", root).table
    for number in (1, 2):
        write_deltalake(folder, pa.table({"n": [number]}), mode="append")
    write_checkpoint(folder)
    delta_log.make_entry_path(folder, 0).unlink()
    sql = "SELECT count(*) FROM adding"
    assert query_sql(sql, ["adding"], root, before, limit=None, derived=["cleaned"]).rows == [[0]]
    with pytest.raises(LockstepError, match="are not known"):
        query_sql("SELECT count(*) FROM cleaned", ["adding"], root, before, limit=None, derived=["cleaned"])


@pytest.mark.parametrize("sql", ["SELECT nothing FROM adding", "SELECT * FROM nowhere", "COPY adding TO 'x.csv'", "1"])
def test_wrong_sql_is_refused_with_the_tables_that_there_are(read: Read, sql: str) -> None:
    _, runs = read
    with pytest.raises(WrongQuery, match="adding, adding_ledger"):
        query_sql(sql, ["adding"], runs.root / "tables", AsOf(), limit=None)
