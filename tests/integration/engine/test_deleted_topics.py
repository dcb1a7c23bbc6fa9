"""The deletion of a topic during a run: an event if every message was read, else a fault of that topic."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Every, NoIntegrity, Once, Ordered, Sequence, Strict, Suspend
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.startup import WriterStartup
from lockstep.features.history.rewind import rewind_stream
from lockstep.integrity.resume_options import AcceptDeleted, IntegrityLost
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.progress import TopicLifecycle
from lockstep.operations.inspect.history import read_history
from lockstep.operations.inspect.status import read_status
from lockstep.operations.inspect.topics import read_topics
from lockstep.operations.resume import resume_stream
from lockstep.table.ledger import LedgerRow, read_ledger
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import send_within, session, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Sequence as Several

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.driver.startup import WriterClaim
    from lockstep.engine.protocol import TaskResult
    from lockstep.integrity.base import IntegrityClass
    from lockstep.kafka.admin import ClusterView
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

WAIT_SECONDS_MAX = 120.0
STRICT = Strict(evidence=Sequence())


def ending(runs: LocalRuns, topic: str) -> LedgerRow:
    """Return the ledger row of a topic's end."""
    rows = [row for row in read_ledger(runs.folders.ledger) if row.topic == topic]
    (row,) = (row for row in rows if row.lifecycle in {"deleted", "re-created"} and row.retired)
    return row


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Going:
    """A continuous run in a thread.

    Attributes:
        ended: Its outcome, or the error that ended it.
    """

    def __init__(self, runs: LocalRuns, around: Callable[[Runner], Runner]) -> None:
        self._runs, self._around, self.stop = runs, around, threading.Event()
        self.ended: list[RunOutcome | IntegrityLost] = []
        self.thread = threading.Thread(target=self._go)

    def _go(self) -> None:
        try:
            self.ended.append(self._runs.run(trigger=Every(seconds=0.2), stop=self.stop, around=self._around))
        except IntegrityLost as lost:
            self.ended.append(lost)

    def lost(self) -> IntegrityLost:
        """Wait for the end and return the loss that caused it."""
        self.thread.join(WAIT_SECONDS_MAX)
        (lost,) = self.ended
        assert isinstance(lost, IntegrityLost)
        return lost


@contextmanager
def going(runs: LocalRuns, around: Callable[[Runner], Runner] = lambda runner: runner) -> Iterator[Going]:
    run = Going(runs, around)
    before = len(runs.reports)
    run.thread.start()
    try:
        wait_until(lambda: len(runs.reports) > before or bool(run.ended))
        yield run
    finally:
        run.stop.set()
        run.thread.join()


def is_read(runs: LocalRuns, topic: str, until: int) -> bool:
    return any(row.topic == topic and row.until == until for row in runs.handle.positions.values())


@pytest.mark.fault("F30")
@pytest.mark.parametrize(
    "integrity",
    [
        STRICT,
        Strict(evidence=Sequence(), on_violation=Suspend()),
        Once(keep_ids=1_000),
        Ordered(),
        NoIntegrity(),
    ],
    ids=["strict", "strict-suspend", "once", "ordered", "none"],
)
def test_the_deletion_of_a_topic_that_is_read_is_an_event_and_the_others_go_on(
    feed: Feed, runs: LocalRuns, integrity: IntegrityClass
) -> None:
    runs = runs.of(adding(feed.pattern, integrity))
    gone = feed.create("gone", partitions=2)
    other = feed.create("other")
    feed.send(gone, session(3), partition=1)
    feed.send(other, session(3))
    with going(runs) as run:
        feed.delete(gone)
        wait_until(lambda: not any(row.topic == gone for row in runs.handle.subscribed) or bool(run.ended))
        feed.send(other, [update(5, a=1)])
        wait_until(lambda: is_read(runs, other, 5) or bool(run.ended))
    assert run.ended == [RunOutcome.STOPPED]
    rows = {row.partition: row for row in read_ledger(runs.folders.ledger) if row.lifecycle == "deleted"}
    assert {n: (row.until, row.last_end, row.retired) for n, row in rows.items()} == {0: (0, 0, True), 1: (4, 4, True)}
    assert all(0 < (row.last_end_age_seconds or 0) < 60 and row.gone_since for row in rows.values())
    assert_shown(runs, gone, r"was deleted \(missed at .* UTC\): read to its end at offset 4, as observed \d+ s before")
    assert runs.run() is RunOutcome.ENDED
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def assert_shown(runs: LocalRuns, topic: str, text: str) -> None:
    """Assert that status, topics and history show the end of a topic."""
    (shown,) = (str(each) for each in read_status(runs.handle).ended if each.topic == topic)
    assert re.search(text, shown)
    (listed,) = (each for each in read_topics(runs.handle).topics if each.topic == topic)
    assert (listed.state, listed.ending) == (TopicLifecycle.DELETED, shown.partition(": ")[2])
    events = read_history(runs.folders, 50).events
    assert sum(topic in event.detail and re.search(text, event.detail) is not None for event in events) == 1


class Before:
    """Acts once, between planning and running a batch with ranges of a topic."""

    def __init__(self, topic: str, act: Callable[[], object]) -> None:
        self._topic, self._act, self.armed = topic, act, threading.Event()

    def __call__(self, runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Several[TaskResult]:
            if self.armed.is_set() and any(item.position.topic == self._topic for part in plan.bins for item in part):
                self.armed.clear()
                self._act()
            return runner(plan)

        return run


@pytest.mark.fault("F30")
def test_unread_messages_make_a_deletion_a_fault_of_that_topic_by_class(feed: Feed, runs: LocalRuns) -> None:
    """Two topics are deleted together: the fully read topic remains an event despite the halt."""
    gone = feed.create("gone")
    read = feed.create("read")
    other = feed.create("other")
    for topic in (gone, read, other):
        feed.send(topic, session(3))

    def delete_both() -> None:
        for topic in (gone, read):
            feed.delete(topic)

    deletion = Before(gone, delete_both)
    with going(runs, deletion) as run:
        deletion.armed.set()
        feed.send(gone, [update(5, a=1), update(6, a=1)])
        (finding,) = run.lost().findings
    assert (finding.cause, finding.topic, finding.offset, finding.until) == ("topic gone", gone, 4, finding.until)
    assert finding.until in {5, 6}
    assert finding.detail == f"offsets 4 to {finding.until - 1} of partition 0 were not read"
    assert (ending(runs, read).until, ending(runs, read).last_end) == (4, 4)
    resume_stream(runs.folders, why="known", who="ann", accepted=[AcceptDeleted(gone)])
    feed.send(other, [update(5, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert is_read(runs, other, 5)


def test_a_class_that_goes_on_has_the_lost_offsets_in_the_ledger(feed: Feed, runs: LocalRuns) -> None:
    runs = runs.of(adding(feed.pattern, Ordered()))
    gone = feed.create("gone")
    other = feed.create("other")
    for topic in (gone, other):
        feed.send(topic, session(3))
    deletion = Before(gone, lambda: feed.delete(gone))
    with going(runs, deletion) as run:
        deletion.armed.set()
        feed.send(gone, [update(5, a=1)])
        wait_until(lambda: not any(row.topic == gone for row in runs.handle.subscribed) or bool(run.ended))
    assert run.ended == [RunOutcome.STOPPED]
    assert (ending(runs, gone).until, ending(runs, gone).last_end) == (4, 5)
    assert_shown(runs, gone, r"read to offset 4, 1 offsets were not read, as observed \d+ s before")


@pytest.mark.parametrize("integrity", [STRICT, Ordered()], ids=["strict", "ordered"])
def test_nobody_knows_the_end_of_a_topic_that_was_deleted_while_no_run_was_live(
    feed: Feed, runs: LocalRuns, integrity: IntegrityClass
) -> None:
    runs = runs.of(adding(feed.pattern, integrity))
    gone = feed.create("gone")
    other = feed.create("other")
    for topic in (gone, other):
        feed.send(topic, session(3))
    runs.run()
    feed.delete(gone)
    if integrity == STRICT:
        with pytest.raises(
            IntegrityLost, match=rf"topic gone at {gone}/0 offset 4: .* has not observed its end"
        ) as lost:
            runs.run()
        assert lost.value.next_step.count(f"--accept-deleted {gone}") == 1
        resume_stream(runs.folders, why="known", who="ann", accepted=[AcceptDeleted(gone)])
    assert runs.run() is RunOutcome.ENDED
    assert (ending(runs, gone).last_end, ending(runs, gone).last_end_age_seconds) == (None, None)
    assert_shown(runs, gone, r"read to offset 4, its end is not known")


@pytest.mark.fault("F30")
def test_a_topic_that_is_read_and_created_again_is_another_topic(feed: Feed, runs: LocalRuns) -> None:
    """A poll of Kafka between deletion and creation must not decide whether a stream halts."""
    again = feed.create("again")
    other = feed.create("other")
    for topic in (again, other):
        feed.send(topic, session(3))

    def create_again() -> None:
        feed.delete(again)
        feed.create_again("again")
        feed.send(again, session(1))

    replacing = Before(other, create_again)
    with going(runs, replacing) as run:
        replacing.armed.set()
        feed.send(other, [update(5, a=1)])
        wait_until(lambda: len(runs.rows(again)) == 8 or bool(run.ended))
    assert run.ended == [RunOutcome.STOPPED]
    assert (ending(runs, again).lifecycle, ending(runs, again).last_end) == ("re-created", 4)
    assert runs.run() is RunOutcome.ENDED
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


@pytest.mark.fault("F30")
@pytest.mark.parametrize("watch_seconds", [0.5, 1_000.0], ids=["watched", "not watched"])
def test_a_batch_may_take_longer_than_an_observation_counts(feed: Feed, runs: LocalRuns, watch_seconds: float) -> None:
    """A thread polls Kafka meanwhile; without it, a slow machine would halt the stream."""
    runs = runs.tuned(end_look_seconds=watch_seconds, end_seconds_max=8.0)
    gone = feed.create("gone")
    slow = feed.create("slow")
    for topic in (gone, slow):
        feed.send(topic, session(3))

    def delete_late() -> None:
        time.sleep(9.0)
        feed.delete(gone)

    deletion = Before(slow, delete_late)
    with going(runs, deletion) as run:
        deletion.armed.set()
        feed.send(slow, [update(5, a=1)])
        wait_until(lambda: not any(row.topic == gone for row in runs.handle.subscribed) or bool(run.ended))
        if watch_seconds > 1:
            assert "more than 8 s" in run.lost().findings[0].detail
    assert is_read(runs, slow, 5), "the batch itself is committed: it read nothing of the topic that is gone"
    if watch_seconds < 1:
        assert (run.ended, ending(runs, gone).last_end) == ([RunOutcome.STOPPED], 4)


@pytest.mark.fault("F30")
def test_messages_of_an_open_transaction_are_unread(feed: Feed, runs: LocalRuns) -> None:
    """They may be committed between the observation and the deletion."""
    gone = feed.create("gone")
    feed.send(gone, session(3))
    producer = feed.transactional()
    producer.begin_transaction()
    send_within(producer, gone, [update(5, a=1)])
    with going(runs) as run:
        wait_until(lambda: is_read(runs, gone, 4))
        feed.delete(gone)
        (finding,) = run.lost().findings
    assert (finding.offset, finding.until) == (4, 5)


@pytest.fixture
def deletes(monkeypatch: pytest.MonkeyPatch, feed: Feed) -> Callable[[str], None]:
    """Makes the next run delete a topic after its first poll of Kafka, before its claim."""
    claim = WriterStartup.claim
    wanted = list[str]()

    def delete_first(startup: WriterStartup, cancelled: Callable[[], bool]) -> WriterClaim:
        while wanted:
            feed.delete(wanted.pop())
        return claim(startup, cancelled)

    monkeypatch.setattr(WriterStartup, "claim", delete_first)
    return wanted.append


def test_a_topic_that_is_deleted_during_a_handover_was_observed_by_its_successor(
    feed: Feed, runs: LocalRuns, deletes: Callable[[str], None]
) -> None:
    gone = feed.create("gone")
    other = feed.create("other")
    for topic in (gone, other):
        feed.send(topic, session(3))
    runs.run()
    deletes(gone)
    assert runs.run() is RunOutcome.ENDED
    assert (ending(runs, gone).until, ending(runs, gone).last_end) == (4, 4)


def test_a_rewind_to_a_batch_that_has_all_of_a_deleted_topic_keeps_its_end(
    feed: Feed, runs: LocalRuns, deletes: Callable[[str], None]
) -> None:
    gone = feed.create("gone")
    other = feed.create("other")
    for topic in (gone, other):
        feed.send(topic, session(3))
    runs.run()
    deletes(gone)
    runs.run()
    rewind_stream(runs.handle, "1", who="ann", why="wrong rows")
    feed.send(other, [update(5, a=1)])
    assert runs.run() is RunOutcome.ENDED
    (shown,) = read_status(runs.handle).ended
    assert (shown.topic, shown.how, shown.unread) == (gone, "deleted", 0)
    assert shown.missed_at is not None
    assert is_read(runs, other, 5)
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_a_topic_that_one_look_does_not_show_is_not_deleted(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("kept")
    look = ClusterAdmin.view
    hides = threading.Event()
    feed.send(topic, session(3))

    def hide_once(admin: ClusterAdmin, names: Iterable[str]) -> ClusterView:
        found = look(admin, names)
        if not hides.is_set():
            return found
        hides.clear()
        return msgspec.structs.replace(found, topics={}, ends={})

    monkeypatch.setattr(ClusterAdmin, "view", hide_once)
    with going(runs.tuned(described_seconds=0.0)) as run:
        hides.set()
        wait_until(lambda: not hides.is_set())
        feed.send(topic, [update(5, a=1)])
        wait_until(lambda: is_read(runs, topic, 5) or bool(run.ended))
    assert run.ended == [RunOutcome.STOPPED]
    assert [row.lifecycle for row in read_ledger(runs.folders.ledger) if row.lifecycle] == ["added"]
