"""`Halt(HaltScope.TOPIC)`: a violation halts its topic at its position; other topics continue, nothing is skipped."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lockstep import Every, Halt, HaltScope, Sequence, Strict
from lockstep.control.handover import ResumeRequest, StopRequest, request_resumption
from lockstep.control.heartbeat import is_writer_alive
from lockstep.engine.driver import halted_topics
from lockstep.engine.driver.halted_topics import TopicsHalted
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.history.rewind import rewind_stream
from lockstep.integrity.resume_options import (
    Fixed,
    IntegrityLost,
    SkipSession,
    StreamHalted,
    encode_options,
    suggest_option,
)
from lockstep.model.fault import Fault
from lockstep.operations.alarms import AlarmKind, AlarmSeverity
from lockstep.operations.inspect.health import read_health
from lockstep.operations.inspect.status import read_status
from lockstep.operations.lifecycle import stop_stream
from lockstep.operations.resume import NotHalted, UnansweredFindings, plan_resume, resume_stream
from lockstep.table.head import Desired
from lockstep.table.ledger import read_ledger
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import Feed, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import named_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lockstep.integrity.resume_options import Acceptance
    from lockstep.model.finding import Finding
    from lockstep.table.head import Head

TOPICS = 11
BY_TOPIC = Strict(evidence=Sequence(), on_violation=Halt(HaltScope.TOPIC))
WHOLE = Strict(evidence=Sequence())


@pytest.fixture
def contained(feed: Feed, runs: LocalRuns) -> LocalRuns:
    """Runs of a stream whose violations halt only their topic."""
    return runs.of(adding(feed.pattern, BY_TOPIC))


def send_topics(feed: Feed, messages: Mapping[str, list[bytes]]) -> dict[str, str]:
    """Create and fill topics; return their full names."""
    topics = {name: feed.create(name) for name in messages}
    for name, values in messages.items():
        feed.send(topics[name], values)
    return topics


def whole(updates: int = 3) -> list[bytes]:
    return [snapshot(1, a=1), *(update(number, a=1) for number in range(2, 2 + updates))]


def with_gap() -> list[bytes]:
    return [snapshot(1, a=1), update(2, a=1), update(4, a=1), update(5, a=1), snapshot(9, a=5), update(10, a=1)]


def run_halted(runs: LocalRuns) -> tuple[Finding, ...]:
    """Read all but halted topics; return the findings of the reported error."""
    with pytest.raises(TopicsHalted, match="has halted topics; all others are read") as ended:
        runs.run()
    return ended.value.findings


def resume(runs: LocalRuns, *accepted: Acceptance, suggested: bool = True, topics: tuple[str, ...] = ()) -> Head:
    """Resume halted topics, with the suggested options by default."""
    return resume_stream(runs.folders, why="found", who="a test", accepted=accepted, suggested=suggested, topics=topics)


def halted(runs: LocalRuns) -> set[str]:
    return {each.topic for each in runs.handle.require_head().halted_topics}


def test_a_gap_in_one_of_eleven_topics_halts_that_one_alone(feed: Feed, contained: LocalRuns) -> None:
    messages = {f"t{number}": whole() for number in range(TOPICS)} | {"t4": with_gap()}
    topics = send_topics(feed, messages)
    runs = contained
    (finding,) = run_halted(runs)
    assert (finding.topic, finding.cause, finding.offset) == (topics["t4"], "gap", 2)
    assert {name: len(runs.rows(topic)) for name, topic in topics.items()} == dict.fromkeys(topics, 3) | {"t4": 1}
    assert runs.handle.require_head().desired is not Desired.HALTED

    health = read_health(runs.handle)
    alarms = {alarm.kind: alarm for alarm in health.alarms}
    assert alarms[AlarmKind.DEGRADED].severity is AlarmSeverity.ERROR
    assert f"topic {topics['t4']} is halted, the others are read: gap at {topics['t4']}/0 offset 2" in (
        alarms[AlarmKind.DEGRADED].problem
    )
    assert alarms[AlarmKind.DEGRADED].problem.endswith("; 4 messages wait")
    status = read_status(runs.handle)
    assert (status.halted_topics, status.findings) == ((topics["t4"],), (finding,))
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations == ()

    assert run_halted(runs) == (finding,)  # nothing new, and still no success
    feed.send(topics["t0"], [update(5, a=1)])
    assert run_halted(runs) == (finding,)
    assert len(runs.rows(topics["t0"])) == 4

    with pytest.raises(UnansweredFindings):
        resume(runs, suggested=False)
    resume(runs, topics=(topics["t4"],))
    assert halted(runs) == set()
    assert runs.run() is RunOutcome.ENDED
    assert len(runs.rows(topics["t4"])) == 2  # of the update before the gap, and of the update after the snapshot
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN
    with pytest.raises(NotHalted):
        resume(runs)


FAULTS: Mapping[str, Callable[[list[bytes], int], list[bytes]]] = {
    "none": lambda values, _: values,
    "gap": lambda values, at: [*values[:at], *values[at + 1 :]],
    "repeat": lambda values, at: [*values[:at], values[at], *values[at:]],
    "garbage": lambda values, at: [*values[:at], b"\xff", *values[at:]],
    "unknown session": lambda values, _: values[1:],
}


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 1 else pytest.mark.slow) for seed in range(6)])
def test_each_topic_is_read_as_far_as_a_stream_of_it_alone(
    feed: Feed, contained: LocalRuns, tmp_path: Path, seed: int
) -> None:
    """The oracle is a separate stream per topic, which halts as a whole. Both are resumed with the same options."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    topics = send_topics(feed, {f"t{number}": make_messages(chance) for number in range(5)})
    alone = {topic: runs_of_one(feed, name, topic, tmp_path) for name, topic in topics.items()}
    for _ in range(4):
        expected = {topic: run_to_halt(runs) for topic, runs in alone.items()}
        found = run_to_halt(contained, cores=chance.randrange(1, 4))
        for topic, runs in alone.items():
            assert contained.rows(topic) == (runs.rows(topic) if named_files(runs.folders.table) else [])
        assert sorted(map(str, found)) == sorted(str(each) for findings in expected.values() for each in findings)
        if not found:
            break
        resume(contained, *map(suggest_option, found), suggested=False)
        for topic in filter(expected.get, alone):
            resume(alone[topic], *map(suggest_option, expected[topic]), suggested=False)
    assert halted(contained) == set()
    assert verify_stream(contained.stream, contained.folders, contained.settings.kafka).violations == ()


def make_messages(chance: random.Random) -> list[bytes]:
    """Return the messages of a topic, with or without a fault."""
    values = whole(chance.randrange(4, 12))
    at = chance.randrange(2, 5)
    return FAULTS[chance.choice(sorted(FAULTS))](values, at)


def runs_of_one(feed: Feed, name: str, topic: str, root: Path) -> LocalRuns:
    stream = dataclasses.replace(adding(f"{topic}$", WHOLE), name=f"alone_{name}")
    return LocalRuns(stream, feed.bootstrap_servers, root / name)


def run_to_halt(runs: LocalRuns, cores: int = 2) -> tuple[Finding, ...]:
    """Run to the end and return the findings that halted the stream or its topics."""
    try:
        runs.run(cores=cores)
    except StreamHalted as ended:
        return ended.findings
    return ()


def test_a_topic_is_resumed_beside_the_run_that_goes_on(feed: Feed, contained: LocalRuns) -> None:
    topics = send_topics(feed, {"good": whole(), "bad": with_gap(), "worse": with_gap()})
    runs = contained
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as executor:
        going = executor.submit(runs.run, trigger=Every(0.2), stop=stop)
        try:
            wait_until(lambda: going.done() or len(halted_if_any(runs)) == 2)
            epoch = runs.handle.require_head().epoch
            assert is_writer_alive(runs.folders.control, epoch)
            preview = plan_resume(runs.folders, (), suggested=True, topics=(topics["bad"],))
            assert [each.topics for each in preview.options] == [1]
            head = resume(runs, topics=(topics["bad"],))
            assert (head.epoch, halted(runs)) == (epoch, {topics["worse"]})
            wait_until(lambda: going.done() or len(runs.rows(topics["bad"])) == 2)
            feed.send(topics["good"], [update(5, a=1)])
            feed.send(topics["bad"], [update(11, a=1)])
            wait_until(lambda: going.done() or len(runs.rows(topics["bad"])) == 3)
            assert len(runs.rows(topics["good"])) == 4
            assert runs.handle.require_head().epoch == epoch
            resume(runs, Fixed(), suggested=False, topics=(topics["worse"],))
            wait_until(lambda: going.done() or halted(runs) == {topics["worse"]})  # it was not fixed
            stopped = stop_stream(runs.folders, StopRequest("enough", "a test"), patience_seconds=60)
            assert going.result(60) is RunOutcome.STOPPED_FOR_GOOD, stopped
        finally:
            stop.set()
    assert halted(runs) == {topics["worse"]}
    assert run_halted(runs)
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations == ()


def halted_if_any(runs: LocalRuns) -> set[str]:
    return set() if runs.handle.head is None else halted(runs)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_halted_topic_stays_so_over_a_rewind_and_a_stop(feed: Feed, contained: LocalRuns) -> None:
    """A run after a rewind to before the halt repeats the finding, and the topic's rows are as before."""
    topics = send_topics(feed, {"good": whole(), "bad": whole()})
    runs = contained
    assert runs.run() is RunOutcome.ENDED
    before = runs.handle.require_head().batch
    feed.send(topics["bad"], [update(9, a=1)])
    feed.send(topics["good"], [update(5, a=1)])
    (finding,) = run_halted(runs)
    rewind_stream(runs.handle, str(before), who="a test", why="a test")
    assert halted(runs) == set()
    assert run_halted(runs) == (finding,)
    assert (len(runs.rows(topics["bad"])), len(runs.rows(topics["good"]))) == (3, 4)
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations == ()


def test_retention_that_reaches_a_halted_topic_is_noted_and_halts_nothing_else(
    feed: Feed, contained: LocalRuns
) -> None:
    topics = send_topics(feed, {"good": whole(), "bad": with_gap()})
    runs = contained
    run_halted(runs)
    feed.expire(topics["bad"], 4)
    feed.send(topics["good"], [update(5, a=1)])
    found = run_halted(runs)
    assert [each.cause for each in found] == [Fault.EXPIRED]  # the violating message is gone
    assert len(runs.rows(topics["good"])) == 4
    assert run_halted(runs) == found
    resume(runs)
    assert runs.run() is RunOutcome.ENDED
    assert len(runs.rows(topics["bad"])) == 2
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations == ()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_halted_topic_that_is_deleted_is_resumed_with_all_its_partitions(
    feed: Feed, contained: LocalRuns, *, is_made_again: bool
) -> None:
    """Each partition has a finding; one decision answers all of them."""
    runs = contained
    topic = feed.create("bad", partitions=3)
    send_topics(feed, {"good": whole()})
    for partition in range(3):
        feed.send(topic, with_gap() if partition == 1 else whole(), partition=partition)
    assert [each.cause for each in run_halted(runs)] == ["gap"]
    feed.delete(topic)
    if is_made_again:
        feed.create_again("bad")
    found = run_halted(runs)
    cause = Fault.RECREATED if is_made_again else Fault.TOPIC_DELETED
    assert [(each.cause, each.partition) for each in found] == [(cause, partition) for partition in range(3)]
    assert run_halted(runs) == found
    resume(runs)
    assert runs.run() is RunOutcome.ENDED
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations == ()


@pytest.mark.parametrize("stale", ["of a topic that is read", "that answers another finding", "of another release"])
def test_a_request_that_does_not_fit_the_halt_changes_nothing(feed: Feed, contained: LocalRuns, stale: str) -> None:
    """An earlier resumption has changed the halt against which the options were checked."""
    topics = send_topics(feed, {"good": whole(), "bad": with_gap()})
    runs = contained
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as executor:
        going = executor.submit(runs.run, trigger=Every(0.2), stop=stop)
        try:
            wait_until(lambda: going.done() or len(halted_if_any(runs)) == 1)
            head = runs.handle.require_head()
            ids = {row.topic: row.topic_id for row in runs.handle.positions.values()}
            name = "good" if stale == "of a topic that is read" else "bad"
            options = encode_options([SkipSession(topics[name], 0, "s" if name == "good" else "other")])
            if stale == "of another release":
                options = (("later-option", {}),)
            request = ResumeRequest((ids[topics[name]],), options, who="ann", why="late")
            assert request_resumption(runs.folders.control, head.epoch, request)
            wait_until(lambda: going.done() or not list(runs.folders.control.glob("resume-*.json")))
            feed.send(topics["good"], [update(5, a=1)])
            wait_until(lambda: going.done() or len(runs.rows(topics["good"])) == 4)
        finally:
            stop.set()
        assert going.result(60) is RunOutcome.STOPPED
    assert halted(runs) == {topics["bad"]}
    assert not any(row.accepted for row in read_ledger(runs.folders.ledger))


def test_violations_of_very_many_topics_halt_the_stream(
    feed: Feed, contained: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit repeats all findings, and a failing decoder is not a fault of the topics."""
    monkeypatch.setattr(halted_topics, "FINDINGS_MAX", 2)
    topics = send_topics(feed, {"good": whole(), **{f"bad{number}": with_gap() for number in range(2)}})
    assert len(run_halted(contained)) == 2
    late = send_topics(feed, {"late": with_gap()})
    feed.send(topics["good"], [update(5, a=1)])
    with pytest.raises(IntegrityLost) as ended:
        contained.run()
    assert [each.topic for each in ended.value.findings] == [late["late"]]
    assert contained.handle.require_head().desired is Desired.HALTED
    resume(contained)
    assert len(run_halted(contained)) == 2
    resume(contained)
    assert contained.run() is RunOutcome.ENDED


def test_the_declaration_may_change_while_topics_are_halted(feed: Feed, contained: LocalRuns) -> None:
    """With the default scope the next violation halts the stream; halted topics stay halted until resumed."""
    topics = send_topics(feed, {"good": whole(), "bad": with_gap()})
    run_halted(contained)
    strict = contained.of(adding(feed.pattern, WHOLE))
    assert run_halted(strict)
    feed.send(topics["good"], [update(9, a=1)])
    with pytest.raises(StreamHalted) as ended:
        strict.run()
    assert [each.topic for each in ended.value.findings] == [topics["good"]]
    assert strict.handle.require_head().desired is Desired.HALTED
    resume(strict)
    assert halted(strict) == {topics["bad"]}
    resume(strict)
    assert strict.run() is RunOutcome.ENDED
