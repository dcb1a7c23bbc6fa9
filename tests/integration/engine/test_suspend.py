"""Violations suspend sessions, not streams: quarantine stores the messages, and a snapshot restarts a session."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep import Limits, NoIntegrity, OnGrowth, Ordered, Sequence, Strict, Suspend
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.table.ledger import read_ledger
from tests.support.adding_stream import POISON, adding
from tests.support.feed import Feed, ProducerRecord, folded, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import heads, named_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.features.localdev.broker import Broker
    from lockstep.integrity.base import IntegrityClass

ORDERED = Ordered()
SUSPENDING = Strict(evidence=Sequence(), on_violation=Suspend())
UNDECODABLE = b'{"type":"update"'
POISONED = update(4, a=1, b=POISON)
UNFIT = update(4, a=2**64)
GAP = update(7, a=1)
REPEAT = update(3, a=9)
LATE = update(2, a=9)


@dataclass(frozen=True)
class Case:
    """A bad message at offset 6, in session "s", with the expected result for it and the later messages.

    Attributes:
        integrity: The class.
        bad: The message.
        key: Its key.
        kept: The final quarantine, causes by offset.
        applied: Offsets of updates that are applied.
    """

    integrity: IntegrityClass
    bad: bytes
    kept: dict[int, str]
    applied: set[int]
    key: str = "s"


ALL = {2, 3, 4, 5, 7, 8, 10, 11}
SESSION = ALL - {7}
PARTITION = ALL - {7, 8, 11}
CASES = {
    "ordered-undecodable": Case(
        ORDERED, UNDECODABLE, {6: "undecodable", 7: "suspended", 8: "suspended", 11: "suspended"}, PARTITION
    ),
    "ordered-raises": Case(ORDERED, POISONED, {6: "transform raised", 7: "suspended"}, SESSION),
    "ordered-unfit-row": Case(ORDERED, UNFIT, {6: "value not storable", 7: "suspended"}, SESSION),
    "ordered-gap": Case(ORDERED, GAP, {}, ALL | {6}),
    "ordered-repeat": Case(ORDERED, REPEAT, {}, ALL),
    "ordered-late": Case(ORDERED, LATE, {}, ALL),
    "ordered-unknown": Case(ORDERED, update(1, a=1), {6: "unknown session"}, ALL, key="new"),
    "suspend-undecodable": Case(
        SUSPENDING, UNDECODABLE, {6: "undecodable", 7: "suspended", 8: "suspended", 11: "suspended"}, PARTITION
    ),
    "suspend-raises": Case(SUSPENDING, POISONED, {6: "transform raised", 7: "suspended"}, SESSION),
    "suspend-gap": Case(SUSPENDING, GAP, {6: "gap", 7: "suspended"}, SESSION),
    "suspend-repeat": Case(SUSPENDING, REPEAT, {6: "repeat", 7: "suspended"}, SESSION),
    "suspend-unknown": Case(SUSPENDING, update(1, a=1), {6: "unknown session"}, ALL, key="new"),
    "none-undecodable": Case(NoIntegrity(), UNDECODABLE, {6: "undecodable"}, ALL),
    "none-raises": Case(NoIntegrity(), POISONED, {6: "transform raised"}, ALL),
}


def messages(case: Case) -> list[tuple[str, bytes]]:
    """Return two sessions; after the bad message each has an update, then a snapshot restarts "s"."""
    after = 8 if case.bad is GAP and isinstance(case.integrity, Ordered) else 5 if case.bad in {POISONED, UNFIT} else 4
    return [
        ("s", snapshot(1, a=1)),
        ("t", snapshot(1, b=1)),
        ("s", update(2, a=1)),
        ("t", update(2, b=1)),
        ("s", update(3, a=2)),
        ("t", update(3, b=2)),
        (case.key, case.bad),
        ("s", update(after, a=5)),
        ("t", update(4, b=5)),
        ("s", snapshot(9, a=100)),
        ("s", update(10, a=7)),
        ("t", update(5, b=7)),
    ]


@pytest.fixture(scope="module")
def read_by(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], LocalRuns]:
    """Read the topics of a class's cases, selected by name prefix, in one cached run."""
    feed = Feed(broker.bootstrap_servers, f"suspending_{uuid.uuid4().hex[:8]}")
    for name, case in CASES.items():
        feed.append(feed.create(name), [ProducerRecord(key, value) for key, value in messages(case)])

    @cache
    def read(kind: str, batch_messages: int) -> LocalRuns:
        own = [name for name in CASES if name.startswith(f"{kind}-")]
        stream = adding(rf"{feed.family}\.{kind}-.+", CASES[own[0]].integrity)
        named = replace(stream, name=f"{kind}_by_{batch_messages}")  # Kafka knows a stream's positions by its name
        runs = LocalRuns(named, feed.bootstrap_servers, tmp_path_factory.mktemp(kind))
        limits = Limits(batch_messages=batch_messages * len(own))
        assert runs.with_limits(limits).run() is RunOutcome.ENDED
        return runs

    return read


@pytest.mark.parametrize(
    "batch_messages", [pytest.param(1, marks=pytest.mark.slow), 5, pytest.param(100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_applied_goes_to_quarantine_and_the_rest_goes_on(
    read_by: Callable[[str, int], LocalRuns], name: str, batch_messages: int
) -> None:
    """The result does not depend on the split into batches."""
    case = CASES[name]
    sent = messages(CASES[name])
    runs = read_by(name.partition("-")[0], batch_messages)
    (topic,) = {row.topic for row in read_ledger(runs.folders.ledger) if row.topic.endswith(f".{name}")}
    applied = [(at, *message) for at, message in enumerate(sent) if at in case.applied or b"snapshot" in message[1]]
    assert folded(applied) == runs.rows(topic)
    all_kept = DeltaTable(runs.folders.quarantine).to_pyarrow_table().sort_by("offset").to_pylist()
    kept = [row for row in all_kept if row["topic"] == topic]
    assert {row["offset"]: row["cause"] for row in kept} == case.kept
    for row in kept:
        assert (row["key"], row["value"]) == (sent[row["offset"]][0].encode(), sent[row["offset"]][1])
    ledger = [row for row in read_ledger(runs.folders.ledger) if row.topic == topic]
    assert sum(row.quarantined for row in ledger) == len(case.kept)
    assert sum(row.messages for row in ledger) == len(sent)


def test_several_messages_that_the_transform_refuses_are_each_named(feed: Feed, runs: LocalRuns) -> None:
    """A range has more bad messages than one fold finds; a class that may skip applies the messages between them."""
    topic = feed.create("values")
    updates = [update(number, a=1, b=POISON if number % 4 == 0 else 1) for number in range(2, 42)]
    values = [snapshot(1, a=1), *updates]
    feed.send(topic, values)
    runs = runs.of(adding(feed.pattern, NoIntegrity()))
    runs.run()
    kept = DeltaTable(runs.folders.quarantine).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [row["offset"] for row in kept] == [at for at in range(1, 41) if (at + 1) % 4 == 0]
    good = [(at, "s", value) for at, value in enumerate(values) if at == 0 or (at + 1) % 4]
    assert folded(good) == runs.rows(topic)


def test_a_burst_of_garbage_stops_the_stream_instead_of_filling_quarantine(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, [snapshot(1, a=1), *[b"garbage"] * 200])
    runs = runs.of(adding(feed.pattern, ORDERED))
    with pytest.raises(IntegrityLost, match=r"quarantine burst at .* found 200 of 201 messages"):
        runs.run()
    head = heads(runs.folders.table)[-1]
    assert (head["desired"], head["batch"]) == ("halted", 1)
    assert named_files(runs.folders.table) == []
    assert DeltaTable(runs.folders.quarantine).to_pyarrow_table().num_rows == 0


def test_growth_restarts_the_sessions_of_a_topic_where_that_is_declared(feed: Feed, runs: LocalRuns) -> None:
    """A session may have moved to the new partition, so its updates in the old partition wait for a snapshot."""
    topic = feed.create("values")
    feed.send(topic, [snapshot(1, a=1), update(2, a=1)])
    runs = runs.of(adding(feed.pattern, replace(ORDERED, on_growth=OnGrowth.RESTART_SESSIONS)))
    runs.run()
    feed.grow(topic, partitions=2)
    feed.send(topic, [update(3, a=1), snapshot(4, a=7), update(5, a=1)])
    feed.send(topic, [snapshot(1, b=1), update(2, b=1)], key="moved", partition=1)
    assert runs.run() is RunOutcome.ENDED
    values = [
        (0, "s", snapshot(1, a=1)),
        (1, "s", update(2, a=1)),
        (3, "s", snapshot(4, a=7)),
        (4, "s", update(5, a=1)),
    ]
    assert folded(values) == runs.rows(topic)
    assert folded([(0, "moved", snapshot(1, b=1)), (1, "moved", update(2, b=1))]) == runs.rows(topic, 1)


def test_a_session_that_moves_with_growth_waits_for_its_snapshot_where_the_class_halts_as_well(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    feed.send(topic, [snapshot(1, a=1), update(2, a=1)])
    strict = Strict(evidence=Sequence(), on_growth=OnGrowth.RESTART_SESSIONS)
    runs = runs.of(adding(feed.pattern, strict))
    runs.run()
    feed.grow(topic, partitions=2)
    feed.send(topic, [update(3, a=1), snapshot(1, a=5), update(2, a=1)], key="s", partition=1)
    assert runs.run() is RunOutcome.ENDED
    assert folded([(1, "s", snapshot(1, a=5)), (2, "s", update(2, a=1))]) == runs.rows(topic, 1)
    kept = DeltaTable(runs.folders.quarantine).to_pyarrow_table().to_pylist()
    assert [(row["partition"], row["offset"], row["cause"]) for row in kept] == [(1, 0, "unknown session")]


def test_a_topic_created_again_is_a_new_topic_to_a_class_that_bears_it(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, [snapshot(1, a=1), update(2, a=1)])
    runs = runs.of(adding(feed.pattern, ORDERED))
    runs.run()
    before = runs.rows(topic)
    feed.delete(topic)
    feed.create_again("values")
    feed.send(topic, [snapshot(1, a=5), update(2, a=1)])
    assert runs.run() is RunOutcome.ENDED
    assert [*before, *folded([(0, "s", snapshot(1, a=5)), (1, "s", update(2, a=1))])] == runs.rows(topic)


def test_best_effort_is_not_stopped_by_much_garbage(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, [snapshot(1, a=1), *[b"garbage"] * 200, update(2, a=1)])
    runs = runs.of(adding(feed.pattern, NoIntegrity()))
    assert runs.run() is RunOutcome.ENDED
    assert folded([(0, "s", snapshot(1, a=1)), (201, "s", update(2, a=1))]) == runs.rows(topic)
    assert sum(row.quarantined for row in read_ledger(runs.folders.ledger)) == 200


def test_the_policy_may_change_between_two_runs_both_ways(feed: Feed, runs: LocalRuns) -> None:
    """A session continues under the other policy; a suspended session is unknown to a halting stream."""
    topic = feed.create("values")
    halting = Strict(evidence=Sequence())
    feed.send(topic, [snapshot(1, a=1), update(2, a=1)])
    runs.of(adding(feed.pattern, halting)).run()
    feed.send(topic, [update(3, a=1)])
    runs.of(adding(feed.pattern, SUSPENDING)).run()
    feed.send(topic, [update(4, a=1)])
    runs.of(adding(feed.pattern, halting)).run()
    values = [snapshot(1, a=1), *(update(number, a=1) for number in (2, 3, 4))]
    assert folded([(at, "s", value) for at, value in enumerate(values)]) == runs.rows(topic)
    feed.send(topic, [update(9, a=1)])
    runs.of(adding(feed.pattern, SUSPENDING)).run()
    feed.send(topic, [update(10, a=1)])
    with pytest.raises(IntegrityLost, match="unknown session"):
        runs.of(adding(feed.pattern, halting)).run()


def test_growth_suspends_a_partition_that_is_silent_until_after_a_restart(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, [snapshot(1, a=1)])
    runs = runs.of(adding(feed.pattern, replace(ORDERED, on_growth=OnGrowth.RESTART_SESSIONS)))
    runs.run()
    feed.grow(topic, partitions=2)
    feed.send(topic, [snapshot(1, b=1)], key="moved", partition=1)
    runs.run()
    feed.send(topic, [update(2, a=1)])
    runs.run()
    assert named_files(runs.folders.table) == []
    kept = DeltaTable(runs.folders.quarantine).to_pyarrow_table().to_pylist()
    assert [(row["partition"], row["offset"], row["cause"]) for row in kept] == [(0, 1, "suspended")]
