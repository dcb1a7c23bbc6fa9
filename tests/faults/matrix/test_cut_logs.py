"""A log was cut below the position and has grown past it again: its offsets are complete, but its records differ.

The leader epochs show the difference. A single broker suffices: it is killed, the end of its log is removed as in a
crash before a sync, and it restarts as a leader of a newer epoch, like any leader after an unclean election.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lockstep import Limits, NoIntegrity, Ordered, Sequence, Strict
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost, Truncated
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.model.position import TopicIdPartition
from lockstep.operations.resume import resume_stream
from lockstep.table.ledger import read_ledger
from tests.faults.matrix.logs import cut
from tests.faults.matrix.oracle import rows_of_files
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, send_within, session, snapshot, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Several
    from pathlib import Path

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.features.localdev.broker import Broker
    from lockstep.integrity.base import IntegrityClass

STRICT = Strict(evidence=Sequence())
FIRST = session(9)
"""Offsets 0 to 9, numbers 1 to 10."""
REGROWN = [*(update(6 + n, a=7) for n in range(5)), *(update(11 + n, a=1) for n in range(10))]
"""Records from offset 5 on; past the position, offset 10, they continue the numbers that were read."""
LATE_SECONDS = 240.0
"""A run that has not ended by then does not end."""
FOUND = "other records: the log was cut and has grown again"


@pytest.fixture
def own(harmed_broker: Broker, topic_family: str) -> tuple[Broker, Feed]:
    """A broker that may be harmed."""
    return harmed_broker, Feed(harmed_broker.bootstrap_servers, topic_family)


def stopped_at_ten(feed: Feed, root: Path, integrity: IntegrityClass) -> tuple[LocalRuns, str]:
    """Read ten messages, in two batches of the log, and stop the stream."""
    topic = feed.create("values")
    runs = LocalRuns(adding(feed.pattern, integrity), feed.bootstrap_servers, root)
    feed.send(topic, FIRST[:5])
    feed.send(topic, FIRST[5:])
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded(at(0, FIRST))
    return runs, topic


def at(first: int, values: Several[bytes]) -> list[tuple[int, str, bytes]]:
    return [(first + n, "s", value) for n, value in enumerate(values)]


def epochs(runs: LocalRuns) -> tuple[int | None, int | None]:
    """Return the leader epoch of the last record read, and the current leader epoch."""
    admin = ClusterAdmin(make_admin_client(runs.settings.kafka), runs.settings.kafka.timeout_seconds)
    newest = read_ledger(runs.folders.ledger)[-1]
    return newest.leader_epoch, admin.view([newest.topic]).ends[TopicIdPartition(newest.topic_id, 0)].leader_epoch


@pytest.mark.fault("F29")
def test_a_log_that_has_grown_past_the_position_again_halts_a_strict_stream_until_that_is_accepted(
    own: tuple[Broker, Feed], tmp_path: Path
) -> None:
    broker, feed = own
    runs, topic = stopped_at_ten(feed, tmp_path, STRICT)
    cut(broker, topic, keep=5)
    feed.send(topic, REGROWN)
    with pytest.raises(IntegrityLost, match=rf"log truncated at {topic}/0 offset 10: .* {FOUND}") as lost:
        runs.run()
    assert f"--accept-truncated {topic}/0" in lost.value.next_step
    assert runs.rows(topic) == folded(at(0, FIRST))
    resume_stream(runs.folders, why="a disk was lost", who="an operator", accepted=[Truncated(topic, 0)])
    assert runs.run() is RunOutcome.ENDED
    again = [snapshot(30, a=5), update(31, a=1)]
    feed.send(topic, again)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == [*folded(at(0, FIRST)), *folded(at(20, again))]


@pytest.mark.slow
@pytest.mark.fault("F29")
@pytest.mark.parametrize("integrity", [Ordered(), NoIntegrity()], ids=["ordered", "none"])
def test_a_class_that_bears_it_says_so_once_and_suspends_where_it_must(
    own: tuple[Broker, Feed], tmp_path: Path, integrity: IntegrityClass, caplog: pytest.LogCaptureFixture
) -> None:
    broker, feed = own
    runs, topic = stopped_at_ten(feed, tmp_path, integrity)
    cut(broker, topic, keep=5)
    again = [*REGROWN, snapshot(30, a=5), update(31, a=1)]
    feed.send(topic, again)
    for _ in range(2):
        assert runs.run() is RunOutcome.ENDED
    suspended = list(range(10, 20)) if isinstance(integrity, Ordered) else []
    expected = at(20, again[15:]) if suspended else at(10, again[5:])
    assert runs.rows(topic) == (
        [*folded(at(0, FIRST)), *folded(expected)] if suspended else folded([*at(0, FIRST), *expected])
    )
    assert [row["offset"] for row in rows_of_files(runs.folders.quarantine)] == suspended
    told = [message for message in caplog.messages if message.startswith(f"log truncated at {topic}/0 offset 10")]
    assert len(told) == 1


def meanwhile(broker: Broker, feed: Feed, topic: str) -> Callable[[Runner], Runner]:
    """Cut the log and let it grow again between the audit and the reading of the first batch."""
    done: list[str] = []

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Several[TaskResult]:
            if not done:
                done.append(topic)
                cut(broker, topic, keep=5)
                feed.send(topic, REGROWN)
            return runner(plan)

        return run

    return around


@pytest.mark.slow
@pytest.mark.fault("F29")
def test_what_was_read_of_a_log_that_was_cut_meanwhile_is_thrown_away(own: tuple[Broker, Feed], tmp_path: Path) -> None:
    broker, feed = own
    runs, topic = stopped_at_ten(feed, tmp_path, STRICT)
    feed.send(topic, [update(11 + n, a=1) for n in range(5)])
    with pytest.raises(IntegrityLost, match=rf"log truncated at {topic}/0 offset 10: .* {FOUND}"):
        runs.run(around=meanwhile(broker, feed, topic))
    assert runs.rows(topic) == folded(at(0, FIRST))


def test_a_bounded_run_ends_at_the_end_of_a_log_that_was_cut_before_it_was_read(
    own: tuple[Broker, Feed], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The planned end of the run no longer exists."""
    broker, feed = own
    topic = feed.create("values")
    stop = threading.Event()
    cuts = list[str]()
    feed.send(topic, FIRST[:5])
    feed.send(topic, FIRST[5:])

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Several[TaskResult]:
            results = runner(plan)
            if not cuts:
                cuts.append(topic)
                cut(broker, topic, keep=5)
            return results

        return run

    runs = LocalRuns(adding(feed.pattern, STRICT), feed.bootstrap_servers, tmp_path)
    late = threading.Timer(LATE_SECONDS, stop.set)
    late.start()
    try:
        assert runs.with_limits(Limits(batch_messages=3)).run(stop=stop, around=around) is RunOutcome.ENDED
    finally:
        late.cancel()
    assert runs.rows(topic) == folded(at(0, FIRST[:5]))
    lost = f"{topic}/0: the log ends at offset 5 now, and at 10 before: unread messages are gone"
    assert caplog.messages.count(lost) == 1


@pytest.mark.fault("F29")
@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_broker_that_comes_back_with_all_of_its_log_is_no_alarm(
    own: tuple[Broker, Feed], tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """Its epoch is newer, and a marker of the newer leader follows the records read from the older leader."""
    broker, feed = own
    runs, topic = stopped_at_ten(feed, tmp_path, STRICT)
    producer = feed.transactional()
    eleventh = update(11, a=1)
    producer.begin_transaction()
    send_within(producer, topic, [eleventh])
    (broker.kill if end == "kill" else broker.stop)()
    broker.restart()
    feed.end_transaction(producer, topic)
    read, now = epochs(runs)
    assert read is not None
    assert now is not None
    assert read < now
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded(at(0, [*FIRST, eleventh]))
    assert "truncated" not in caplog.text
