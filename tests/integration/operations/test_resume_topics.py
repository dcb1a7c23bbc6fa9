"""Faults of whole topics, accepted by an operator: expired, truncated, re-created, deleted, grown, or a burst."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from lockstep import Limits, OnGrowth, Ordered, Sequence, Strict
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import (
    AcceptDeleted,
    AcceptGrowth,
    Fixed,
    FromSnapshot,
    Quarantined,
    suggest_option,
)
from lockstep.operations.inspect.status import read_status
from lockstep.operations.inspect.topics import read_topics
from lockstep.table.ledger import read_ledger
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.resuming import TWO, WHO, WHY, applied, halted, kept, noted, resumed, send

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker


def test_messages_that_expired_unread_are_passed_over_and_sessions_begin_anew(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    sent = [*TWO, ("s", update(3, a=1)), ("s", update(4, a=1)), ("t", update(3, b=1)), ("t", snapshot(7, b=2))]
    send(feed, topic, *sent[:4])
    runs.run()
    send(feed, topic, *sent[4:], ("t", update(8, b=1)))
    feed.expire(topic, 6)
    (finding,) = halted(runs)
    assert (finding.cause, suggest_option(finding)) == ("expired unread", FromSnapshot(topic, 0))
    (row,) = resumed(runs, suggest_option(finding))
    assert (row.start, row.until, row.suspended_from) == (4, 6, 6)
    assert row.is_loss
    assert [(each.kind, each.who, each.why) for each in row.accepted] == [("from-snapshot", WHO, WHY)]
    runs.run()
    assert applied([*sent, ("t", update(8, b=1))], 0, 1, 2, 3, 7, 8) == runs.rows(topic)
    assert kept(runs) == {(topic, 0, 6): "suspended"}


def test_a_topic_created_anew_is_read_from_its_start_and_its_old_life_is_retired(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    other = feed.create("other")
    send(feed, topic, *TWO)
    send(feed, other, *TWO)
    runs.run()
    feed.delete(topic)
    feed.create_again("values")
    again = [("s", snapshot(1, a=5)), ("s", update(2, a=1))]
    send(feed, topic, *again)
    (finding,) = halted(runs)
    assert [suggest_option(finding).OPTION, suggest_option(finding).argument] == ["accept-recreated", topic]
    rows = resumed(runs, suggest_option(finding))
    assert sorted((row.topic, row.retired) for row in rows) == [(other, False), (topic, False), (topic, True)]
    assert noted(rows) == [("accept-recreated", "topic re-created", 4, 4, None)]
    for _ in range(2):  # nothing is found again
        assert runs.run() is RunOutcome.ENDED
    assert [*applied(TWO, 0, 1, 2, 3), *applied(again, 0, 1)] == runs.rows(topic)


def test_a_topic_that_is_gone_is_dropped_and_comes_back_as_a_new_one(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=2)
    other = feed.create("other")
    send(feed, topic, *TWO)
    send(feed, other, *TWO)
    runs.run()
    feed.delete(topic)
    found = halted(runs)
    assert {suggest_option(finding) for finding in found} == {AcceptDeleted(topic)}
    assert noted(resumed(runs, AcceptDeleted(topic))) == [
        ("accept-deleted", "topic gone", at, at, None) for at in (4, 0)
    ]
    assert [(each.topic, each.state.value, each.ending) for each in read_topics(runs.handle).topics if each.ending] == [
        (topic, "deleted", "read to offset 4, its end is not known")
    ]
    assert [each.topic for each in read_status(runs.handle).partitions] == [other]
    send(feed, other, ("s", update(3, a=1)))
    runs.run()
    assert applied([*TWO, ("s", update(3, a=1))], *range(5)) == runs.rows(other)
    feed.create_again("values")
    send(feed, topic, *TWO)
    runs.run()
    assert applied(TWO, 0, 1, 2, 3) * 2 == runs.rows(topic)


def test_new_partitions_are_read_from_their_start_once_their_growth_is_accepted(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    send(feed, topic, *TWO)
    runs.run()
    feed.grow(topic, partitions=3)
    feed.send(topic, session(2), key="u", partition=2)
    found = halted(runs)
    assert {suggest_option(finding) for finding in found} == {AcceptGrowth(topic)}
    rows = resumed(runs, AcceptGrowth(topic))
    assert noted(rows) == [("accept-growth", "partitions grew", 0, 0, None)] * 2
    assert [row.newest_timestamp is None for row in rows] == [row.partition > 0 for row in rows]
    send(feed, topic, ("s", update(3, a=1)))
    runs.run()
    assert applied([*TWO, ("s", update(3, a=1))], *range(5)) == runs.rows(topic)
    assert folded([(at, "u", value) for at, value in enumerate(session(2))]) == runs.rows(topic, 2)


MOVED = [("a", update(3, a=1)), ("b", update(3, b=1)), ("a", snapshot(9, a=5)), ("a", update(10, a=1))]
"""Sessions that move to a new partition, without their first snapshots."""


def test_all_sessions_that_moved_to_a_new_partition_are_answered_at_the_first_halt_of_one(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    send(feed, topic, *TWO)
    runs.run()
    feed.grow(topic, partitions=2)
    for key, value in MOVED:
        feed.send(topic, [value], key=key, partition=1)
    assert {finding.cause for finding in halted(runs)} == {"partitions grew"}
    resumed(runs, AcceptGrowth(topic))
    (finding,) = halted(runs)
    assert (finding.cause, finding.session) == ("unknown session", "a")
    resumed(runs, FromSnapshot(topic, 1))
    assert runs.run() is RunOutcome.ENDED
    assert kept(runs) == {(topic, 1, 0): "suspended", (topic, 1, 1): "unknown session"}
    assert folded([(at, *MOVED[at]) for at in (2, 3)]) == runs.rows(topic, 1)


def test_a_class_that_restarts_sessions_answers_the_halt_by_growth_as_fixed(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    send(feed, topic, *TWO)
    runs.run()
    feed.grow(topic, partitions=2)
    for key, value in MOVED:
        feed.send(topic, [value], key=key, partition=1)
    halted(runs)
    restarting = runs.of(adding(feed.pattern, Strict(evidence=Sequence(), on_growth=OnGrowth.RESTART_SESSIONS)))
    resumed(restarting, Fixed())
    assert restarting.run() is RunOutcome.ENDED
    assert kept(runs) == {(topic, 1, 0): "unknown session", (topic, 1, 1): "unknown session"}
    assert folded([(at, *MOVED[at]) for at in (2, 3)]) == runs.rows(topic, 1)


def test_a_burst_is_accepted_once_until_it_is_over(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, Ordered())).with_limits(Limits(batch_messages=150))
    feed.send(topic, [snapshot(1, a=1), *[b"garbage"] * 290, snapshot(2, a=1), *session(30, first=3)])
    (finding,) = halted(runs)
    assert (finding.cause, suggest_option(finding)) == ("quarantine burst", Quarantined())
    assert noted(resumed(runs, Quarantined())) == [("accept-quarantine", "quarantine burst", 0, 0, None)]
    runs.run()
    assert set(kept(runs)) == {(topic, 0, at) for at in range(1, 291)}
    feed.send(topic, [b"garbage"] * 200)
    assert [each.cause for each in halted(runs)] == ["quarantine burst"]


def test_a_log_that_was_cut_is_caught_up_with_and_sessions_begin_anew(
    harmed_broker: Broker, topic_family: str, tmp_path: Path
) -> None:
    """A broker that lost a partition's folder reuses offsets that were already read; the reused offsets are skipped."""
    broker = harmed_broker
    feed = Feed(harmed_broker.bootstrap_servers, topic_family)
    topic = feed.create("values")
    runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path)
    send(feed, topic, *TWO)
    runs.run()
    broker.stop()
    shutil.rmtree(broker.folder / "data" / f"{topic}-0")
    broker.restart()
    again = [("s", update(9, a=9)), ("s", snapshot(10, a=5))]
    send(feed, topic, *again)
    (finding,) = halted(runs)
    assert (finding.cause, suggest_option(finding).OPTION) == ("log truncated", "accept-truncated")
    (row,) = resumed(runs, suggest_option(finding))
    assert (row.until, row.suspended_from, row.catching_up) == (4, 4, True)
    runs.run()
    assert read_ledger(runs.folders.ledger)[-1].catching_up
    below = [("t", update(3, b=1)), ("t", snapshot(4, b=7))]
    after = [("t", update(5, b=1)), ("s", update(11, a=1)), ("t", snapshot(20, b=1)), ("t", update(21, b=1))]
    send(feed, topic, *below, *after)
    runs.run()
    assert [*applied(TWO, 0, 1, 2, 3), *applied([*again, *below, *after], 6, 7)] == runs.rows(topic)
    assert kept(runs) == {(topic, 0, 4): "suspended", (topic, 0, 5): "suspended"}
    assert not read_ledger(runs.folders.ledger)[-1].catching_up
