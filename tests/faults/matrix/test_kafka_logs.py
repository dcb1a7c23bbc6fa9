"""Messages that are gone or replaced: the class decides, the range is reported exactly, and nothing is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lockstep import FirstSnapshot, NoIntegrity, Ordered, Sequence, Strict, Topics
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import KafkaError
from lockstep.integrity.resume_options import FromSnapshot, IntegrityLost, StreamHalted
from lockstep.operations.resume import resume_stream
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.faults.matrix.logs import expire, replace_cluster, truncate
from tests.faults.matrix.oracle import rows_of_files
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import heads, named_files, read_table

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
ORDERED = Ordered()
NONE = NoIntegrity()


@pytest.fixture
def runs(feed: Feed, tmp_path: Path) -> LocalRuns:
    return LocalRuns(adding(feed.pattern, STRICT), feed.bootstrap_servers, tmp_path)


def by(runs: LocalRuns, feed: Feed, integrity: IntegrityClass) -> LocalRuns:
    return runs.of(adding(feed.pattern, integrity))


def at(first: int, values: Several[bytes]) -> list[tuple[int, str, bytes]]:
    return [(first + n, "s", value) for n, value in enumerate(values)]


def halted(runs: LocalRuns, match: str) -> None:
    """The run ends by name, the table contains its halt, and a restart is refused."""
    before = named_files(runs.folders.table)
    with pytest.raises(IntegrityLost, match=match) as lost:
        runs.run()
    assert f"lockstep resume {runs.stream.name}" in lost.value.next_step
    assert named_files(runs.folders.table) == before
    assert heads(runs.folders.table)[-1]["desired"] == "halted"
    with pytest.raises(StreamHalted, match=match):
        runs.run()


def expired_holes(runs: LocalRuns) -> list[tuple[int, int]]:
    rows = read_table(runs.folders.ledger).to_pylist()
    return [(hole["start"], hole["until"]) for row in rows for hole in row["holes"] if hole["cause"] == "expired"]


def kept(runs: LocalRuns) -> list[tuple[int, str]]:
    return [(row["offset"], row["cause"]) for row in rows_of_files(runs.folders.quarantine)]


FIRST = session(9)
"""Offsets 0 to 9."""


def stopped_at_ten(feed: Feed, runs: LocalRuns) -> str:
    """Read ten messages and stop the stream."""
    topic = feed.create("values")
    feed.send(topic, FIRST)
    assert runs.run() is RunOutcome.ENDED
    return topic


@pytest.mark.fault("F28")
def test_what_expired_while_the_stream_was_stopped_halts_a_strict_one_with_the_exact_range(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = stopped_at_ten(feed, runs)
    feed.send(topic, [update(11 + n, a=1) for n in range(10)])
    expire(feed.bootstrap_servers, topic, 15)
    halted(runs, rf"expired unread at {topic}/0 offset 10 to 14: expected offset 10, found log start 15")


@pytest.mark.fault("F28")
def test_what_expired_is_counted_by_an_ordered_one_whose_sessions_wait_for_a_snapshot(
    feed: Feed, runs: LocalRuns
) -> None:
    runs = by(runs, feed, ORDERED)
    topic = stopped_at_ten(feed, runs)
    feed.send(topic, [*(update(11 + n, a=1) for n in range(10)), snapshot(30, a=5), update(31, a=1)])
    expire(feed.bootstrap_servers, topic, 15)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == [*folded(at(0, FIRST)), *folded(at(20, [snapshot(30, a=5), update(31, a=1)]))]
    assert expired_holes(runs) == [(10, 15)]
    assert kept(runs) == [(offset, "suspended") for offset in range(15, 20)]


@pytest.mark.fault("F28")
def test_what_expired_is_counted_by_best_effort_which_goes_on(feed: Feed, runs: LocalRuns) -> None:
    runs = by(runs, feed, NONE)
    topic = stopped_at_ten(feed, runs)
    rest = [update(11 + n, a=1) for n in range(10)]
    feed.send(topic, rest)
    expire(feed.bootstrap_servers, topic, 15)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([*at(0, FIRST), *at(15, rest[5:])])
    assert (expired_holes(runs), kept(runs)) == ([(10, 15)], [])


@pytest.fixture
def own(harmed_broker: Broker, topic_family: str) -> tuple[Broker, Feed]:
    """A broker that may be harmed."""
    return harmed_broker, Feed(harmed_broker.bootstrap_servers, topic_family)


@pytest.mark.fault("F29")
def test_a_log_that_ends_before_the_position_halts_a_strict_stream(own: tuple[Broker, Feed], runs: LocalRuns) -> None:
    broker, feed = own
    runs = replace(runs, bootstrap_servers=feed.bootstrap_servers)
    topic = stopped_at_ten(feed, runs)
    truncate(broker, topic)
    halted(runs, rf"log truncated at {topic}/0 offset 10: expected offset 10, found log end 0")


@pytest.mark.slow
@pytest.mark.fault("F29")
def test_an_ordered_stream_passes_over_offsets_it_has_read_and_waits_for_a_snapshot(
    own: tuple[Broker, Feed], runs: LocalRuns
) -> None:
    broker, feed = own
    runs = replace(by(runs, feed, ORDERED), bootstrap_servers=feed.bootstrap_servers)
    topic = stopped_at_ten(feed, runs)
    truncate(broker, topic)
    assert runs.run() is RunOutcome.ENDED
    feed.send(topic, [*(update(11 + n, a=1) for n in range(12)), snapshot(30, a=5), update(31, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == [*folded(at(0, FIRST)), *folded(at(12, [snapshot(30, a=5), update(31, a=1)]))]
    assert kept(runs) == [(10, "suspended"), (11, "suspended")]


@pytest.mark.fault("F28")
def test_a_range_that_expired_is_in_the_ledger_once_although_nothing_came_after_it(feed: Feed, runs: LocalRuns) -> None:
    runs = by(runs, feed, ORDERED)
    topic = stopped_at_ten(feed, runs)
    feed.send(topic, [update(11 + n, a=1) for n in range(10)])
    expire(feed.bootstrap_servers, topic, 20)
    assert runs.run() is RunOutcome.ENDED
    assert (expired_holes(runs), runs.reports[-1].counts.messages) == ([(10, 20)], 0)
    feed.send(topic, [snapshot(30, a=5), update(31, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == [*folded(at(0, FIRST)), *folded(at(20, [snapshot(30, a=5), update(31, a=1)]))]
    assert expired_holes(runs) == [(10, 20)]


@pytest.mark.fault("F30")
def test_a_topic_that_is_deleted_halts_a_strict_stream(feed: Feed, runs: LocalRuns) -> None:
    topic = stopped_at_ten(feed, runs)
    feed.delete(topic)
    halted(runs, rf"topic gone at {topic}/0 offset 10: expected topic id .*, found no such topic")


@pytest.mark.fault("F30")
@pytest.mark.parametrize("integrity", [ORDERED, NONE], ids=["ordered", "none"])
def test_a_topic_that_is_deleted_is_missed_and_the_others_go_on(
    feed: Feed, runs: LocalRuns, integrity: IntegrityClass, caplog: pytest.LogCaptureFixture
) -> None:
    runs = by(runs, feed, integrity)
    gone = stopped_at_ten(feed, runs)
    other = feed.create("other")
    feed.send(other, FIRST)
    feed.delete(gone)
    assert runs.run() is RunOutcome.ENDED
    assert (runs.rows(gone), runs.rows(other)) == (folded(at(0, FIRST)), folded(at(0, FIRST)))
    assert f"topic gone at {gone}/0 offset 10" in caplog.text


@pytest.mark.fault("F32")
def test_a_first_run_reads_a_topic_whose_beginning_is_gone_from_its_first_offset_which_the_ledger_names(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    feed.send(topic, [*FIRST, snapshot(20, a=1), update(21, a=2)])
    expire(feed.bootstrap_servers, topic, 10)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded(at(10, [snapshot(20, a=1), update(21, a=2)]))
    (row,) = read_table(runs.folders.ledger).to_pylist()
    assert (row["start"], row["until"]) == (10, 12)


def begun_then_cut(feed: Feed, runs: LocalRuns) -> str:
    """Create a topic after the first run; retention has deleted ten of its messages."""
    stopped_at_ten(feed, runs)
    later = feed.create("later")
    feed.send(later, [*FIRST, snapshot(20, a=1), update(21, a=2)])
    expire(feed.bootstrap_servers, later, 10)
    return later


@pytest.mark.fault("F32")
def test_a_topic_that_came_later_and_lost_its_beginning_unread_halts_a_strict_stream(
    feed: Feed, runs: LocalRuns
) -> None:
    later = begun_then_cut(feed, runs)
    halted(runs, rf"expired unread at {later}/0 offset 0 to 9: expected offset 0, found log start 10")
    resume_stream(runs.folders, why="known", who="ann", accepted=[FromSnapshot(later, 0, 0, 10)])
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(later) == folded(at(10, [snapshot(20, a=1), update(21, a=2)]))
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


@pytest.mark.fault("F32")
def test_a_topic_that_came_later_and_lost_its_beginning_is_counted_by_best_effort(feed: Feed, runs: LocalRuns) -> None:
    runs = by(runs, feed, NONE)
    later = begun_then_cut(feed, runs)
    assert runs.run() is RunOutcome.ENDED
    assert (runs.rows(later), expired_holes(runs)) == (folded(at(10, [snapshot(20, a=1), update(21, a=2)])), [(0, 10)])


@pytest.mark.fault("F32")
def test_a_topic_that_came_later_is_joined_where_its_start_says_so(feed: Feed, runs: LocalRuns) -> None:
    later = begun_then_cut(feed, runs)
    topics = Topics(pattern=feed.pattern, start_by_topic={r".*later": FirstSnapshot()})
    assert runs.of(replace(runs.stream, topics=topics)).run() is RunOutcome.ENDED
    assert (runs.rows(later), expired_holes(runs)) == (folded(at(10, [snapshot(20, a=1), update(21, a=2)])), [])


@pytest.mark.fault("F32")
def test_a_session_whose_beginning_is_gone_is_unknown_to_a_strict_stream(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, FIRST)
    expire(feed.bootstrap_servers, topic, 5)
    halted(runs, rf"unknown session at {topic}/0 offset 5, session 's'")


@pytest.mark.fault("F33")
def test_partitions_that_are_added_halt_a_stream_that_did_not_say_what_they_mean(feed: Feed, runs: LocalRuns) -> None:
    topic = stopped_at_ten(feed, runs)
    feed.grow(topic, partitions=2)
    feed.send(topic, session(3), key="t", partition=1)
    halted(runs, rf"partitions grew at {topic}/1 offset 0: expected 1 partitions, found 2 partitions")


def replacing(feed: Feed, topic: str, values: Several[bytes]) -> Callable[[Runner], Runner]:
    """Replace the topic between the audit and the reading of the first batch by a topic of the same name."""
    replaced: list[str] = []

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Several[TaskResult]:
            if not replaced:
                feed.delete(topic)
                replaced.append(feed.create_again("values"))
                feed.send(topic, values)
            return runner(plan)

        return run

    return around


@pytest.mark.fault("F57", "F31")
def test_what_was_read_of_a_topic_that_was_replaced_meanwhile_is_thrown_away(
    feed: Feed, runs: LocalRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the planned offsets, so the reading itself cannot detect it."""
    topic = stopped_at_ten(feed, runs)
    feed.send(topic, [update(11 + n, a=1) for n in range(5)])
    other = [snapshot(1, a=7), *(update(2 + n, a=7) for n in range(30))]
    with pytest.raises(IntegrityLost, match=rf"topic re-created at {topic}/0 offset 10"):
        runs.run(around=replacing(feed, topic, other))
    assert f"topics {topic} changed while they were read: batch discarded" in caplog.text
    assert runs.rows(topic) == folded(at(0, FIRST))


@pytest.mark.fault("F57", "F31")
def test_a_class_that_bears_it_reads_the_new_topic_from_its_start(feed: Feed, runs: LocalRuns) -> None:
    runs = by(runs, feed, ORDERED)
    topic = stopped_at_ten(feed, runs)
    feed.send(topic, [update(11 + n, a=1) for n in range(5)])
    other = [snapshot(1, a=7), *(update(2 + n, a=7) for n in range(30))]
    runs.run(around=replacing(feed, topic, other))
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == [*folded(at(0, FIRST)), *folded(at(0, other))]


@pytest.mark.fault("F31", "F57")
def test_a_topic_that_was_replaced_after_its_leader_had_changed_is_read(
    own: tuple[Broker, Feed], runs: LocalRuns
) -> None:
    """Its leader epoch is below that of its predecessor: librdkafka 2.16 ignores that leader permanently."""
    broker, feed = own
    runs = replace(by(runs, feed, ORDERED), bootstrap_servers=feed.bootstrap_servers)
    topic = feed.create("values")
    broker.restart()
    feed.send(topic, FIRST)
    assert runs.run() is RunOutcome.ENDED
    feed.delete(topic)
    feed.create_again("values")
    feed.send(topic, FIRST)
    runs = runs.tuned(straggler_seconds_max=1.0, silence_seconds_max=1.0, retry_seconds=0.1, patience_seconds=120.0)
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == [*folded(at(0, FIRST)), *folded(at(0, FIRST))]
    feed.send(topic, [update(11, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert len(runs.rows(topic)) == 2 * len(folded(at(0, FIRST))) + 1


@pytest.mark.fault("F42")
def test_a_run_whose_kafka_is_another_cluster_all_at_once_reads_nothing_of_it(
    own: tuple[Broker, Feed], runs: LocalRuns
) -> None:
    """It must not pass for a re-created topic, which the class tolerates: the next start would refuse the table."""
    broker, feed = own
    runs = replace(by(runs, feed, ORDERED), bootstrap_servers=feed.bootstrap_servers)
    topic = stopped_at_ten(feed, runs)
    feed.send(topic, [update(11, a=1)])

    replaced: list[str] = []

    def replacing_cluster(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Several[TaskResult]:
            results = runner(plan)
            if not replaced:
                replace_cluster(broker)
                replaced.append(feed.create("values"))
                feed.send(topic, FIRST)
            return results

        return run

    with pytest.raises(KafkaError, match="Kafka is another cluster now"):
        runs.tuned(patience_seconds=1.0, retry_seconds=0.1).run(around=replacing_cluster)
    assert runs.rows(topic) == folded(at(0, FIRST))
