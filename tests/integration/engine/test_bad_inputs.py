"""The 42 bad inputs through a real broker and the engine: each ends as a row, a quarantine row or a named halt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer
from deltalake import DeltaTable

from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.table.ledger import read_ledger
from lockstep.table.quarantine import VALUE_BYTES_MAX
from tests.support.bad_inputs import AT, INPUTS, Bad, snapshot, strict, tolerant, update
from tests.support.feed import Feed
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker
    from lockstep.model.finding import Finding


FAMILY = "bad_inputs"
TOPIC = {"max.message.bytes": "20000000", "message.timestamp.after.max.ms": str(2**63 - 1)}
COLUMNS = ("id", "size", "price", "note")
Read = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Went:
    """The outcome of all inputs.

    Attributes:
        topics: The topic of each message, by name of the input.
        rows: The table, by topic.
        kept: The quarantine, by topic.
        halts: Findings that halt a strict stream over the same topics, by topic.
        strict_rows: The strict stream's table, by topic.
        read_whole: Topics whose every offset is in the ledger.
        taken: All topics of the ledger.
    """

    topics: dict[str, list[tuple[str, Bad]]]
    rows: Read
    kept: Read
    halts: dict[str, Finding]
    strict_rows: Read
    read_whole: set[str]
    taken: set[str]


@pytest.fixture(scope="module")
def went(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Went:
    """Read all inputs, each in a topic, in one tolerant and one strict run."""
    feed = Feed(broker.bootstrap_servers, FAMILY)
    topics = {
        name: [(sent(feed, slug(name, at, bad), bad), bad) for at, bad in enumerate(bads)]
        for name, bads in INPUTS.items()
    }
    feed.create("decoy", partitions=1)
    runs = LocalRuns(tolerant(rf"{FAMILY}\.i.+"), feed.bootstrap_servers, tmp_path_factory.mktemp("tolerant"))
    assert runs.run() is RunOutcome.ENDED
    halting = LocalRuns(strict(rf"{FAMILY}\.i.+"), feed.bootstrap_servers, tmp_path_factory.mktemp("strict"))
    with pytest.raises(IntegrityLost) as lost:
        halting.run()
    ledger = read_ledger(runs.folders.ledger)
    return Went(
        topics=topics,
        rows=by_topic(runs.folders.table, "_topic", "_offset"),
        kept=by_topic(runs.folders.quarantine, "topic", "offset"),
        halts={finding.topic: finding for finding in lost.value.findings},
        strict_rows=by_topic(halting.folders.table, "_topic", "_offset"),
        read_whole={row.topic for row in ledger if row.until == 5},
        taken={row.topic for row in ledger},
    )


def slug(name: str, at: int, bad: Bad) -> str:
    if bad.topic == "long.":
        return f"i{'long'.ljust(199 - len(FAMILY) - 1, 'g')}"
    return f"i{at}.{bad.topic or re.sub('[^a-z0-9]+', '_', name.lower())}"


def sent(feed: Feed, name: str, bad: Bad) -> str:
    """Create a topic with the message between valid messages and return the topic's name."""
    topic = feed.create(name, config=TOPIC)
    feed.send(topic, [snapshot(1, bad.session), update(2, bad.session)], key=bad.session)
    compression = {"compression.type": "gzip" if bad.gzip else "none", "message.max.bytes": 100_000_000}
    alone = Producer({"bootstrap.servers": feed.bootstrap_servers, **compression})
    when = bad.timestamp_ms or 0  # 0 is now
    alone.produce(topic, bad.value, key=bad.key, headers=bad.headers, partition=0, timestamp=when)
    assert alone.flush(60) == 0
    feed.send(topic, [snapshot(10, bad.session), update(11, bad.session)], key=bad.session)
    return topic


def by_topic(folder: object, topic: str, offset: str) -> Read:
    found: Read = {}
    table = DeltaTable(str(folder)).to_pyarrow_table()
    for row in table.sort_by([(topic, "ascending"), (offset, "ascending")]).to_pylist():
        found.setdefault(str(row[topic]), []).append(row)
    return found


def test_there_are_42_of_them() -> None:
    assert len(INPUTS) == 42


@pytest.mark.parametrize("name", INPUTS)
def test_a_bad_input_gives_a_row_or_is_kept_with_its_reason_and_the_stream_goes_on(went: Went, name: str) -> None:
    """No column is null, and the following messages are read."""
    for topic, bad in went.topics[name]:
        rows = went.rows[topic]
        assert tuple(tuple(row[column] for column in COLUMNS) for row in rows if row["_offset"] == AT) == bad.rows
        assert all(row[column] is not None for row in rows for column in COLUMNS)
        assert {row["_session"] for row in rows} == {bad.session}
        assert [row["_offset"] for row in rows if row["_offset"] > AT] == [AT + 1, AT + 2]
        assert topic in went.read_whole
        kept = went.kept.get(topic, [])
        assert [row["offset"] for row in kept] == ([AT] if bad.kept else [])
        if bad.kept:
            assert_kept_whole(kept[0], bad)
        if bad.event_time is not None:
            (row,) = (row for row in rows if row["_offset"] == AT)
            assert row["_event_time"].isoformat() == bad.event_time


def assert_kept_whole(row: dict[str, Any], bad: Bad) -> None:
    """Assert the reason and every byte up to the quarantine's limit."""
    assert (row["cause"], bad.found in str(row["found"])) == (bad.cause, True), row["found"]
    assert row["value_bytes"] == len(bad.value or b"")
    assert row["value"] == (None if bad.value is None else bad.value[:VALUE_BYTES_MAX])
    assert row["key"] == (bad.key.encode() if isinstance(bad.key, str) else bad.key)
    assert row["headers"] == [{"name": header, "value": value} for header, value in bad.headers]


@pytest.mark.parametrize("name", INPUTS)
def test_a_strict_stream_halts_at_a_bad_input_by_name_or_gives_the_same_row(went: Went, name: str) -> None:
    """The preceding messages have rows in both cases."""
    for topic, bad in went.topics[name]:
        finding = went.halts.get(topic)
        rows = went.strict_rows[topic]
        assert [row["_offset"] for row in rows][:2] == [0, 1]
        if bad.kept:
            assert finding is not None
            assert (finding.cause, finding.offset) == (bad.cause, AT)
            assert bad.found in f"{finding.found} {finding.detail}"
            assert len(rows) == AT
        else:
            assert finding is None or finding.offset > AT  # the snapshot after it jumps ahead in its numbers
            assert [tuple(row[column] for column in COLUMNS) for row in rows if row["_offset"] == AT] == list(bad.rows)


@pytest.mark.usefixtures("went")
@pytest.mark.parametrize("wrong", ["i0.a.b.c-d", "i0.a+b", "i0.a b", "i0.a/b", "i0." + "x" * 250])
def test_kafka_itself_refuses_topics_whose_names_clash_or_hold_other_characters(broker: Broker, wrong: str) -> None:
    """Folders, files and metrics of two topics therefore always differ."""
    with pytest.raises(KafkaException):
        Feed(broker.bootstrap_servers, FAMILY).create(wrong)


def test_only_topics_that_match_the_whole_pattern_are_read(went: Went) -> None:
    assert went.taken == {topic for sent in went.topics.values() for topic, _ in sent}
    assert {len(topic) for topic in went.taken if "long" in topic} == {200}
