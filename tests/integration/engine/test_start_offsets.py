"""Starting offsets of a stream in existing topics: each start with its rows, counts and proof."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from lockstep import Earliest, FirstSnapshot, FromTime, GroupOffsets, Latest, Ordered, Topics
from lockstep.declare.options import StartingOffsets
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import DeclarationError
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.inspect.plan import plan_restart
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import ProducerRecord, folded, session, snapshot, update
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

PAGE = Path(__file__).resolve().parents[3] / "docs" / "migrate.md"
SENT = [
    *[("old", snapshot(1, a=1)), ("old", update(2, a=1)), ("new", snapshot(1, b=5)), ("old", update(3, a=1))],
    *[("new", update(2, b=1)), ("old", snapshot(4, a=9)), ("old", update(5, a=1)), ("new", update(3, b=2))],
]
TIMES_MS = [1_700_000_000_000 + 1_000 * at for at in range(len(SENT))]


def starting(
    runs: LocalRuns, feed: Feed, start: StartingOffsets, integrity: IntegrityClass | None = None, name: str = "adding"
) -> LocalRuns:
    """Return runs of the stream with a start; the default class is Strict with Sequence."""
    topics = Topics(pattern=feed.pattern, start=start)
    return runs.of(dataclasses.replace(adding(feed.pattern, integrity), name=name, topics=topics))


def sent_before(feed: Feed, name: str = "before") -> str:
    """Create a topic with the messages of SENT."""
    topic = feed.create(name)
    feed.append(topic, [ProducerRecord(key, value, at) for (key, value), at in zip(SENT, TIMES_MS, strict=True)])
    return topic


def rows_from(start: int, sent: list[tuple[str, bytes]] = SENT) -> list[tuple[object, ...]]:
    """Return the rows of the messages from an offset, each session from its first snapshot."""
    known = set[str]()
    kept = list[tuple[int, str, bytes]]()
    for offset, (key, value) in enumerate(sent):
        if offset >= start and (key in known or b"snapshot" in value):
            known.add(key)
            kept.append((offset, key, value))
    return folded(kept)


def skipped(runs: LocalRuns) -> int:
    rows = read_table(runs.folders.ledger).to_pylist()
    assert sum(row["skipped"] for row in rows) == sum(row["before_snapshot"] for row in rows)
    return sum(row["before_snapshot"] for row in rows)


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status is InvariantStatus.PROVEN, report


def commit_offset(feed: Feed, group: str, topic: str, offset: int) -> None:
    """Commit an offset as the job that the stream replaces."""
    old_job = Consumer({"bootstrap.servers": feed.bootstrap_servers, "group.id": group, "log_level": 2})
    old_job.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    old_job.close()


def test_earliest_refuses_a_log_that_retention_has_cut_and_the_first_snapshot_adopts_it(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = sent_before(feed)
    feed.expire(topic, 1)
    strict = starting(runs, feed, Earliest())
    with pytest.raises(IntegrityLost, match="unknown session"):
        strict.run()
    adopting = starting(runs, feed, FirstSnapshot(), name="adopting")
    assert adopting.run() is RunOutcome.ENDED
    assert adopting.rows(topic) == rows_from(1)
    assert skipped(adopting) == 2
    assert_proven(adopting)


def test_from_a_time_and_what_a_later_run_and_a_later_topic_add(feed: Feed, runs: LocalRuns) -> None:
    topic = sent_before(feed)
    runs = starting(runs, feed, FromTime(datetime.fromtimestamp(TIMES_MS[3] / 1000, UTC)))
    added = plan_restart(runs.stream, runs.settings).partitions
    assert [(each.action, each.start) for each in added] == [("add", 3)]
    assert "joined" in added[0].why
    runs.run()
    assert runs.rows(topic) == rows_from(3)
    later = [*SENT, ("third", update(7, a=1)), ("third", snapshot(8, a=1)), ("old", update(6, a=4))]
    feed.append(topic, [ProducerRecord(key, value) for key, value in later[len(SENT) :]])
    whole = feed.create("whole")
    feed.send(whole, session(3))
    runs.run()  # the declaration no longer matters for the first topic; the second is younger than the time
    assert runs.rows(topic) == rows_from(3, later)
    assert runs.rows(whole) == folded([(at, "s", value) for at, value in enumerate(session(3))])
    assert skipped(runs) == 4
    assert_proven(runs)


def test_the_latest_reads_what_comes_and_topics_that_appear_later_whole(feed: Feed, runs: LocalRuns) -> None:
    topic = sent_before(feed)
    runs = starting(runs, feed, Latest())
    runs.run()
    assert sum(report.counts.messages for report in runs.reports) == 0
    feed.append(topic, [ProducerRecord("old", update(6, a=1)), ProducerRecord("old", snapshot(7, a=1))])
    later = feed.create("later")
    feed.send(later, session(2))
    runs.run()
    assert skipped(runs) == 1
    assert runs.rows(later) == folded([(at, "s", value) for at, value in enumerate(session(2))])
    assert_proven(runs)


def test_the_offsets_of_a_group_and_a_topic_with_a_start_of_its_own(feed: Feed, runs: LocalRuns) -> None:
    taken = sent_before(feed, "taken")
    untaken = sent_before(feed, "untaken")
    group = f"{feed.family}-old-job"
    commit_offset(feed, group, taken, 5)
    runs = runs.of(
        dataclasses.replace(
            runs.stream,
            topics=Topics(
                pattern=feed.pattern, start=GroupOffsets(group), start_by_topic={r".+\.untaken": FirstSnapshot()}
            ),
        )
    )
    runs.run()
    assert runs.rows(taken) == rows_from(5)
    assert runs.rows(untaken) == rows_from(0)
    later = feed.create("later")  # the group knows no offset of a topic that appears after the first run
    feed.send(later, session(2))
    runs.run()
    assert runs.rows(later) == folded([(at, "s", value) for at, value in enumerate(session(2))])
    assert_proven(runs)


def test_the_page_on_migration_makes_a_group_of_the_checkpoint_of_a_spark_query(
    feed: Feed, runs: LocalRuns, tmp_path: Path
) -> None:
    """The files are as Spark 4.2 wrote them, with batch 10 planned and not committed."""
    topic = sent_before(feed)
    checkpoint = tmp_path / "checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    for batch, end in ((8, 2), (9, 5), (10, 7)):
        ends = json.dumps({topic: {"0": end}})
        (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{ends}')
        (checkpoint / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in (8, 9):
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (code,) = re.findall(r"^```python checkpoint$\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    group = f"{feed.family}-old-job"
    exec(code.replace("old-job", group), {"checkpoint": str(checkpoint), "brokers": feed.bootstrap_servers})  # noqa: S102  # our own page
    starting(runs, feed, GroupOffsets(group)).run()
    assert runs.rows(topic) == rows_from(5)


def test_a_group_whose_offsets_expired_lost_messages_and_one_without_offsets_is_refused(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = sent_before(feed)
    feed.expire(topic, 4)
    with pytest.raises(DeclarationError, match=r"Topics\.start.*has no committed offset"):
        starting(runs, feed, GroupOffsets(f"{feed.family}-mistyped")).run()
    group = f"{feed.family}-old-job"
    commit_offset(feed, group, topic, 2)
    ordered = starting(runs, feed, GroupOffsets(group), Ordered(), name="ordered")
    ordered.run()
    holes = [hole for row in read_table(ordered.folders.ledger).to_pylist() for hole in row["holes"]]
    assert [(hole["start"], hole["until"], hole["cause"]) for hole in holes] == [(2, 4, "expired")]
    assert_proven(ordered)
    with pytest.raises(IntegrityLost, match="expired unread"):
        starting(runs, feed, GroupOffsets(group), name="strict").run()
