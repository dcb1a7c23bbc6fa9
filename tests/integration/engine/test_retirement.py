"""Topics that an operator retires: they are read again from their last offset, and may be deleted."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException

from lockstep import Every, Latest, Ordered, Sequence, Strict, Topics
from lockstep.engine.driver.cluster_view import RETIRED_SECONDS
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.erase.erase import EraseRequest, erase_session, read_context
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import ClusterClient, OffsetAnswers
from lockstep.kafka.progress import TopicLifecycle
from lockstep.operations import retire
from lockstep.operations.inspect.plan import plan_next_batch, plan_restart
from lockstep.operations.inspect.topics import read_topics
from lockstep.operations.plan_frame import Refused
from lockstep.operations.retire import retire_topic
from lockstep.table.ledger import read_ledger
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import ProducerRecord, folded, session, snapshot, update
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as Places

    from confluent_kafka import IsolationLevel, TopicPartition

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

OLD_MS = 1_700_000_000_000
WAIT_SECONDS_MAX = 60.0


def send_old(feed: Feed, topic: str, values: list[bytes]) -> None:
    """Send messages with an old timestamp."""
    feed.append(topic, [ProducerRecord("s", value, OLD_MS) for value in values])


def changes(runs: LocalRuns, topic: str) -> list[str]:
    """Return the ledger's lifecycle events of a topic, in order."""
    rows = [row for row in read_ledger(runs.folders.ledger) if row.topic == topic]
    return [row.lifecycle for row in rows if row.lifecycle]


def states(runs: LocalRuns) -> dict[str, TopicLifecycle]:
    return {topic.topic: topic.state for topic in read_topics(runs.handle).topics}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def running(runs: LocalRuns, feed: Feed) -> Iterator[LocalRuns]:
    """A continuous run with one topic, which checks retired topics often."""
    runs = runs.tuned(lifecycle_seconds=0.2)
    stop = threading.Event()
    feed.send(feed.create("busy"), session(2))
    ended: list[RunOutcome] = []
    going = threading.Thread(target=lambda: ended.append(runs.run(trigger=Every(seconds=0.2), stop=stop)))
    going.start()
    try:
        wait_until(lambda: bool(runs.reports))
        yield runs
    finally:
        stop.set()
        going.join()
    assert ended == [RunOutcome.STOPPED]


def test_a_retired_topic_comes_back_where_it_stopped(feed: Feed, running: LocalRuns) -> None:
    runs = running
    topic = feed.create("old")
    values = session(3)
    send_old(feed, topic, values)
    wait_until(lambda: len(runs.rows(topic)) == len(values) * 2 - 2)
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    assert states(runs)[topic] is TopicLifecycle.RETIRED
    assert topic not in {row.topic for row in runs.handle.subscribed}
    feed.send(topic, [update(5, a=1)])
    wait_until(lambda: "re-added" in changes(runs, topic))
    wait_until(lambda: len(runs.rows(topic)) == len(values) * 2 - 1)
    assert changes(runs, topic) == ["added", "retired", "re-added"]
    assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate([*values, update(5, a=1)])])
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_a_time_beyond_the_calendar_says_nothing_of_the_age_of_a_topic(feed: Feed, runs: LocalRuns) -> None:
    """A producer that sends microseconds as milliseconds, to a topic that accepts any time."""
    old = feed.create("old")
    absurd = feed.create("absurd", config={"message.timestamp.after.max.ms": str(2**62)})
    send_old(feed, old, session(1))
    feed.append(absurd, [ProducerRecord("s", value, OLD_MS * 1_000) for value in session(1)])
    runs.run()
    assert states(runs) == {old: TopicLifecycle.DRAINED, absurd: TopicLifecycle.IDLE}


def test_a_later_run_looks_after_retired_topics_and_a_re_created_one_is_new(feed: Feed, runs: LocalRuns) -> None:
    kept = feed.create("kept")
    again = feed.create("again")
    for topic in (kept, again):
        send_old(feed, topic, session(2))
    runs.run()
    for topic in (kept, again):
        retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    assert {part.action for part in plan_restart(runs.stream, runs.settings).partitions} == {"keep aside"}
    feed.delete(again)
    feed.create_again("again")
    feed.send(again, session(1))
    feed.send(kept, [update(4, a=7)])
    runs.run()
    assert changes(runs, kept) == ["added", "retired", "re-added"]
    assert changes(runs, again) == ["added", "retired", "added"]
    assert len(runs.rows(kept)) == 5
    notes = [note for row in read_table(runs.folders.ledger).to_pylist() for note in row["accepted"]]
    assert [(note["kind"], note["who"], note["why"]) for note in notes] == [("retire", "ann", "no longer sent")] * 2


def planned(runs: LocalRuns) -> list[tuple[str, int, str, int]]:
    """Return the restart plan's action and start of each partition."""
    parts = plan_restart(runs.stream, runs.settings).partitions
    return [(part.topic.rpartition(".")[2], part.partition, part.action, part.start) for part in parts]


def test_the_plan_says_which_retired_topics_a_run_reads_again(feed: Feed, runs: LocalRuns) -> None:
    names = ("again", "gone", "grows", "sent", "silent")
    topics = {name: feed.create(name) for name in names}
    runs = runs.of(adding(feed.pattern, Ordered()))
    for topic in topics.values():
        send_old(feed, topic, session(2))
    runs.run()
    for topic in topics.values():
        retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    feed.delete(topics["gone"])
    feed.delete(topics["again"])
    feed.create_again("again")
    feed.send(topics["again"], session(1))
    feed.send(topics["sent"], [update(4, a=7)])
    feed.grow(topics["grows"], 2)
    feed.append(topics["grows"], [ProducerRecord("t", value) for value in session(1)], partition=1)
    assert planned(runs) == [
        ("again", 0, "add", 0),
        ("again", 0, "keep aside", 3),
        ("gone", 0, "keep aside", 3),
        ("grows", 0, "read again", 3),
        ("sent", 0, "read again", 3),
        ("silent", 0, "keep aside", 3),
    ]
    found = plan_restart(runs.stream, runs.settings)
    assert [why for part in found.partitions if "offsets 3 to 3" in (why := part.why)] == [
        "retired, and messages have arrived: offsets 3 to 3"
    ]
    assert (found.added, found.kept_aside) == ((topics["again"],), (topics["gone"], topics["silent"]))
    assert [finding.cause for finding in found.findings] == ["partitions grew"]
    ranges = {(item.topic, item.start, item.until) for item in plan_next_batch(runs.stream, runs.settings).ranges}
    assert ranges == {(topics["again"], 0, 2), (topics["sent"], 3, 4)}
    runs.run()
    latest = {name: changes(runs, topic)[-1] for name, topic in topics.items()}
    assert latest == {"again": "added", "gone": "retired", "grows": "grown", "sent": "re-added", "silent": "retired"}


def test_a_retired_topic_that_the_pattern_leaves_out_is_not_read_again(feed: Feed, runs: LocalRuns) -> None:
    left = feed.create("left")
    read = feed.create("read")
    for topic in (left, read):
        send_old(feed, topic, session(2))
    runs.run()
    retire_topic(runs.handle, left, who="ann", why="another stream reads it")
    feed.send(left, [update(4, a=7)])
    runs = runs.of(dataclasses.replace(runs.stream, topics=Topics(pattern=feed.pattern, exclude=re.escape(left))))
    assert planned(runs) == [("left", 0, "keep aside", 3), ("read", 0, "go on", 3)]
    runs.run()
    assert changes(runs, left) == ["added", "retired"]
    assert len(runs.rows(left)) == 4
    assert all(row.gone_since is None for row in runs.handle.positions.values())


def test_a_message_in_a_partition_that_a_retired_topic_got_brings_the_topic_back(feed: Feed, runs: LocalRuns) -> None:
    """The ends of the read partitions do not change, so only the new partition shows the message."""
    runs = runs.of(dataclasses.replace(runs.stream, integrity=Ordered()))
    topic = feed.create("grows")
    send_old(feed, topic, session(2))
    runs.run()
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    feed.grow(topic, 2)
    runs.run()
    assert changes(runs, topic) == ["added", "retired"]  # a partition without messages changes nothing
    assert states(runs) == {topic: TopicLifecycle.RETIRED}
    feed.append(topic, [ProducerRecord("t", value) for value in session(1)], partition=1)
    runs.run()
    assert changes(runs, topic) == ["added", "retired", "re-added", "grown"]
    assert (len(runs.rows(topic)), len(runs.rows(topic, 1))) == (4, 2)
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_an_operator_retires_through_the_live_writer_and_never_what_is_unread(running: LocalRuns, feed: Feed) -> None:
    busy = f"{feed.family}.busy"
    retired = retire_topic(running.handle, busy, who="ann", why="done")
    assert (retired.retired_by, retired.partitions, retired.position) == ("the writer", 1, 3)
    assert changes(running, busy) == ["added", "retired"]
    with pytest.raises(Refused, match="is not read"):
        retire_topic(running.handle, busy, who="ann", why="again")


def test_unread_messages_and_unknown_topics_refuse_a_retirement(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("fed")
    feed.send(topic, session(2))
    runs.run()
    feed.send(topic, [snapshot(9, a=1), update(10, a=1)])
    before = runs.handle.require_head()
    with pytest.raises(Refused, match="it has 2 unread messages"):
        retire_topic(runs.handle, topic, who="ann", why="done")
    with pytest.raises(Refused, match="is not read"):
        retire_topic(runs.handle, f"{feed.family}.mistyped", who="ann", why="done")
    assert runs.handle.require_head() == before


@pytest.mark.parametrize(
    ("why", "lives"), [("the writer did not commit it within", [True, True]), ("the writer has ended", [True, False])]
)
def test_a_retirement_that_a_writer_did_not_commit_is_refused_for_what_kept_it(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, why: str, lives: list[bool]
) -> None:
    """A writer also removes unanswered requests to it at its end."""
    topic = feed.create("fed")
    feed.send(topic, session(2))
    runs.run()
    monkeypatch.setattr(retire, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(retire, "is_writer_alive", lambda *_: lives.pop(0))
    monkeypatch.setattr(retire, "request_retirement", lambda *_: True)
    with pytest.raises(Refused, match=f"was not retired: {why}"):
        retire_topic(runs.handle, topic, who="ann", why="done")
    assert changes(runs, topic) == ["added"]


def test_a_retirement_says_at_once_that_another_run_took_over(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("fed")
    feed.send(topic, session(2))
    runs.run()
    monkeypatch.setattr(retire, "is_writer_alive", lambda *_: True)
    monkeypatch.setattr(retire, "request_retirement", lambda *_: runs.run())
    began = time.monotonic()
    with pytest.raises(Refused, match="was not retired: the writer has ended"):
        retire_topic(runs.handle, topic, who="ann", why="done")
    assert time.monotonic() - began < retire.ANSWER_SECONDS


def test_it_stands_in_the_ledger_under_a_class_that_goes_on(feed: Feed, runs: LocalRuns) -> None:
    gone = feed.create("gone")
    left = feed.create("left")
    tolerant = runs.of(adding(feed.pattern, Ordered()))
    for topic in (gone, left):
        feed.send(topic, session(2))
    tolerant.run()
    feed.delete(gone)
    tolerant.run()
    assert changes(tolerant, gone) == ["added", "deleted"]
    assert states(tolerant) == {left: TopicLifecycle.ACTIVE, gone: TopicLifecycle.DELETED}
    tolerant.run()  # it is not reported again
    assert changes(tolerant, gone) == ["added", "deleted"]


def forgetting(runs: LocalRuns) -> LocalRuns:
    """Return runs that forget missing topics at their second poll."""
    return runs.of(adding(runs.stream.topics.pattern, Ordered())).tuned(forget_seconds=0.0)


def retire_and_delete(runs: LocalRuns, feed: Feed, topic: str) -> None:
    """Retire and delete a topic; the first run notes its absence, the second run forgets it."""
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    feed.delete(topic)
    runs.run()
    runs.run()


def test_a_deleted_topic_is_forgotten_with_its_state_and_its_rows_stay(feed: Feed, runs: LocalRuns) -> None:
    runs = forgetting(runs)
    gone = feed.create("gone")
    feed.send(gone, session(2))
    runs.run()
    kept = feed.create("kept")
    feed.send(kept, session(2))
    runs.run()
    retire_and_delete(runs, feed, gone)
    assert changes(runs, gone) == ["added", "retired", "forgotten"]
    assert {row.topic for row in runs.handle.positions.values()} == {kept}
    rows = [row for row in read_ledger(runs.folders.ledger) if row.topic == gone]
    assert (rows[-1].until, rows[-1].state_file, rows[-1].retired) == (3, None, True)
    assert rows[-1].gone_since is not None
    assert len(runs.rows(gone)) == 4
    feed.send(kept, [update(4, a=7)])
    runs.run()
    assert [row for row in read_ledger(runs.folders.ledger) if row.topic == gone] == rows
    state = runs.folders.state / next(row.state_file for row in rows if row.state_file)
    assert state.exists()
    run_housekeeping(runs.folders, retention_seconds=0)
    assert not state.exists()
    assert not verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations


def test_a_forgotten_topic_that_is_created_again_is_new(feed: Feed, runs: LocalRuns) -> None:
    runs = forgetting(runs)
    again = feed.create("again")
    feed.send(again, session(2))
    runs.run()
    retire_and_delete(runs, feed, again)
    assert runs.handle.positions == {}
    feed.create_again("again")
    feed.send(again, session(1))
    runs.run()
    assert changes(runs, again) == ["added", "retired", "forgotten", "added"]
    assert len(runs.rows(again)) == 6
    assert not verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations


def test_with_all_topics_forgotten_a_new_topic_is_read_from_its_first_offset(feed: Feed, runs: LocalRuns) -> None:
    """`Latest()` concerns the first run: a later topic is read from its start."""
    topics = Topics(pattern=feed.pattern, start=Latest())
    runs = forgetting(runs).of(dataclasses.replace(forgetting(runs).stream, topics=topics))
    old = feed.create("old")
    runs.run()
    feed.send(old, session(2))
    runs.run()
    retire_and_delete(runs, feed, old)
    assert runs.handle.positions == {}
    new = feed.create("new")
    feed.send(new, session(2))
    runs.run()
    assert len(runs.rows(new)) == 4


def test_a_retired_topic_that_kafka_has_is_never_forgotten(feed: Feed, runs: LocalRuns) -> None:
    runs = forgetting(runs)
    topic = feed.create("kept")
    feed.send(topic, session(2))
    runs.run()
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    runs.run()
    runs.run()
    assert changes(runs, topic) == ["added", "retired"]
    assert all(row.gone_since is None for row in read_ledger(runs.folders.ledger))
    feed.send(topic, [update(4, a=7)])
    runs.run()
    assert len(runs.rows(topic)) == 5


def test_a_session_is_erased_from_the_rows_of_a_forgotten_topic(feed: Feed, runs: LocalRuns) -> None:
    runs = forgetting(runs)
    gone = feed.create("gone")
    kept = feed.create("kept")
    for topic in (gone, kept):
        feed.append(topic, [ProducerRecord(key, value) for key in ("s", "t") for value in session(1)])
    runs.run()
    retire_and_delete(runs, feed, gone)
    assert {row.topic for row in runs.handle.positions.values()} == {kept}
    request = EraseRequest(session="s", drop_state=True)
    erase_session(runs.folders, request, read_context(runs.handle), who="ann", why="request 4711")
    assert {row["_session"] for row in read_table(runs.folders.table).to_pylist()} == {"t"}
    assert not verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations
    runs.run()
    runs.run()
    assert changes(runs, gone) == ["added", "retired", "forgotten", "forgotten"]
    assert not verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations


def test_the_rows_before_a_re_creation_can_be_erased(feed: Feed, runs: LocalRuns) -> None:
    """The earlier topic keeps its position until it is forgotten, and an erasure counts its removed rows."""
    runs = runs.of(adding(feed.pattern, Ordered()))
    topic = feed.create("again")
    stop = threading.Event()
    feed.append(topic, [ProducerRecord(key, value) for key in ("s", "t") for value in session(1)])
    going = threading.Thread(target=lambda: runs.run(trigger=Every(seconds=0.2), stop=stop))
    going.start()
    try:
        wait_until(lambda: bool(runs.reports))
        feed.delete(topic)
        feed.create_again("again")
        feed.append(topic, [ProducerRecord("t", value) for value in session(1)])
        wait_until(lambda: len(changes(runs, topic)) == 3)
    finally:
        stop.set()
        going.join()
    assert changes(runs, topic) == ["added", "re-created", "re-created"]
    assert sorted(row.retired for row in runs.handle.positions.values()) == [False, True]
    request = EraseRequest(session="s", drop_state=True)
    erased = erase_session(runs.folders, request, read_context(runs.handle), who="ann", why="request 4711")
    assert erased.plan.rows == 2
    assert not verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations
    runs = runs.tuned(forget_seconds=0.0)
    runs.run()
    runs.run()
    assert changes(runs, topic) == ["added", "re-created", "re-created", "forgotten"]
    assert [row.retired for row in runs.handle.positions.values()] == [False]


def test_a_list_that_leaves_a_topic_out_makes_nothing_forget_it(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list omits topics that the user may not see, and a broker may be late: each topic is requested by name."""
    runs = forgetting(runs)
    listed = ClusterAdmin.topic_names
    topic = feed.create("kept")
    feed.send(topic, session(2))
    runs.run()
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    monkeypatch.setattr(ClusterAdmin, "topic_names", lambda admin: listed(admin) - {topic})
    for _ in range(3):
        runs.run()
    assert runs.handle.positions.keys() == {key for key, row in runs.handle.positions.items() if row.topic == topic}
    monkeypatch.setattr(ClusterAdmin, "topic_names", listed)
    feed.send(topic, [update(4, a=7)])
    runs.run()
    assert changes(runs, topic) == ["added", "retired", "re-added"]
    assert len(runs.rows(topic)) == 5
    assert [row.gone_since for row in runs.handle.positions.values()] == [None]


def test_buffered_messages_keep_a_deleted_topic(feed: Feed, runs: LocalRuns) -> None:
    """They are counted as buffered: without their state their content would be unknown."""
    waits = Strict(evidence=Sequence(), buffer_until_snapshot=True)
    runs = runs.of(adding(feed.pattern, waits)).tuned(forget_seconds=0.0)
    topic = feed.create("gone")
    feed.send(topic, [update(2, a=1)])
    runs.run()
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    feed.delete(topic)
    for _ in range(3):
        runs.run()
    assert changes(runs, topic) == ["added", "retired"]
    assert [row.state_file is None for row in runs.handle.positions.values()] == [False]


def test_the_silent_leader_of_a_retired_topic_delays_other_topics_briefly(
    feed: Feed, running: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other leader answers that question, so that it lasts as long as a request may."""
    runs = running
    old = feed.create("old")
    send_old(feed, old, session(1))
    wait_until(lambda: len(runs.rows(old)) == 2)
    retire_topic(runs.handle, old, who="ann", why="no longer sent")
    asked = list[float]()
    ask = ClusterClient.request_offsets

    def answer_all_but_old(
        client: ClusterClient, places: Places[TopicPartition], isolation: IsolationLevel, seconds: float
    ) -> Future[OffsetAnswers]:
        if {place.topic for place in places} != {old}:
            return ask(client, places, isolation, seconds)
        unanswered: Future[OffsetAnswers] = Future()
        silence = KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  # the client's name
        threading.Timer(seconds, unanswered.set_exception, [silence]).start()
        asked.append(seconds)
        return unanswered

    monkeypatch.setattr(ClusterClient, "request_offsets", answer_all_but_old)
    wait_until(lambda: bool(asked))
    assert max(asked) == RETIRED_SECONDS
    busy = f"{feed.family}.busy"
    feed.send(busy, [update(4, a=1)])
    wait_until(lambda: len(runs.rows(busy)) == 5)
