"""Transactions on a real broker: explained holes, the stable end, and topics that lose messages by design."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import LockstepError
from tests.support.feed import folded, send_within, session, update
from tests.support.plain_reader import read_table, read_until

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


def holes(runs: LocalRuns, topic: str) -> list[tuple[int, int, str]]:
    rows = [row for row in read_table(runs.folders.ledger).to_pylist() if row["topic"] == topic]
    return [(hole["start"], hole["until"], hole["cause"]) for row in rows for hole in row["holes"]]


def test_markers_and_aborted_messages_are_explained_holes_and_a_strict_stream_goes_on(
    feed: Feed, runs: LocalRuns
) -> None:
    """Offsets: 0 to 3 committed, 4 marker, 5 and 6 aborted, 7 marker, 8 committed, 9 marker at the end."""
    topic = feed.create("values")
    producer = feed.transactional()
    opening = session(3)
    next_one = update(5, a=1)
    producer.begin_transaction()
    send_within(producer, topic, opening)
    feed.end_transaction(producer, topic)
    producer.begin_transaction()
    send_within(producer, topic, [update(5, a=7), update(6, a=7)])
    feed.end_transaction(producer, topic, commits=False)
    producer.begin_transaction()
    send_within(producer, topic, [next_one])
    feed.end_transaction(producer, topic)
    assert runs.run() is RunOutcome.ENDED
    assert folded([*((n, "s", value) for n, value in enumerate(opening)), (8, "s", next_one)]) == runs.rows(topic)
    assert holes(runs, topic) == [(4, 5, "marker"), (5, 7, "aborted"), (7, 8, "marker"), (9, 10, "marker")]
    assert read_until(runs.folders.ledger, topic) == 10


def test_a_bounded_run_says_what_it_leaves_behind_a_young_open_transaction(
    feed: Feed, runs: LocalRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """The second run can read nothing and has no batch, but still reports them."""
    topic = feed.create("values")
    producer = feed.transactional()
    feed.send(topic, session(2))
    assert runs.run() is RunOutcome.ENDED
    assert "transaction" not in caplog.text
    producer.begin_transaction()
    send_within(producer, topic, [update(4, a=1), update(5, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert f"2 offsets wait behind open transactions and are not read, 2 of them in {topic}/0 from 3 on" in caplog.text
    caplog.clear()
    feed.end_transaction(producer, topic)
    assert runs.run() is RunOutcome.ENDED
    assert "transaction" not in caplog.text
    assert len(runs.rows(topic)) == 6


def test_a_compacted_topic_is_refused_at_start(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", config={"cleanup.policy": "compact"})
    feed.send(topic, session(2))
    with pytest.raises(LockstepError, match=f"topics {topic} are compacted") as refused:
        runs.run()
    assert "set cleanup.policy=delete on the topics" in refused.value.next_step
