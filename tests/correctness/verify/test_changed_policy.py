"""The proof of a stream whose policy has changed: earlier suspensions were legitimate at their time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lockstep import Halt, OnGrowth, Ordered, Strict, Suspend
from lockstep import Sequence as Numbers
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import InvariantStatus, ViolationKind
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.forging import Forged
from tests.support.adding_stream import POISON, adding
from tests.support.feed import ProducerRecord, session, snapshot, update
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

STRICT = Strict(evidence=Numbers(), on_violation=Suspend())
ORDERED = Ordered(on_violation=Suspend())
RESTARTS = OnGrowth.RESTART_SESSIONS
AGAIN = [snapshot(20, a=1), update(21, a=1)]
"""A session restarts while the policy still suspends."""


def gap(feed: Feed, topic: str) -> None:
    feed.send(topic, [update(9, a=1), update(10, a=1)])


def undecodable(feed: Feed, topic: str) -> None:
    feed.send(topic, [b"garbage", update(4, a=1)])


def raising(feed: Feed, topic: str) -> None:
    feed.send(topic, [update(4, a=POISON), update(5, a=1)])


def restarted(feed: Feed, topic: str) -> None:
    """A snapshot closes the gap before it: accepted by a class that suspends, a violation for a class that halts."""
    feed.send(topic, [snapshot(15, a=1), update(16, a=1), snapshot(19, a=1)])


def unknown(feed: Feed, topic: str) -> None:
    feed.send(topic, [update(1, a=1)], key="other")


def expired(feed: Feed, topic: str) -> None:
    feed.send(topic, [update(4, a=1), update(5, a=1), update(6, a=1)])
    feed.expire(topic, 5)


def growth(feed: Feed, topic: str) -> None:
    feed.grow(topic, 2)
    feed.append(topic, [ProducerRecord("p", value) for value in session(3)], 1)
    feed.send(topic, [update(4, a=1)])


FAULTS: tuple[Callable[[Feed, str], None], ...] = (gap, undecodable, raising, restarted, unknown, expired, growth)


@pytest.mark.parametrize(
    ("integrity", "fault"),
    [*((STRICT, each) for each in FAULTS), (ORDERED, raising), (ORDERED, growth)],
    ids=lambda each: type(each).__name__ if isinstance(each, (Strict, Ordered)) else each.__name__,
)
@pytest.mark.parametrize("recovers", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_was_suspended_before_the_policy_became_halt_is_proven(
    feed: Feed, runs: LocalRuns, fault: Callable[[Feed, str], None], integrity: IntegrityClass, *, recovers: bool
) -> None:
    topic = feed.create("values")
    suspending = runs.of(adding(feed.pattern, integrity))
    feed.send(topic, session(2))
    suspending.run()
    fault(feed, topic)
    suspending.run()
    if recovers:
        feed.send(topic, AGAIN)
        suspending.run()
    halting = runs.of(adding(feed.pattern, replace(integrity, on_violation=Halt())))
    begins_again = {"restarted": 20, "unknown": 4}.get(fault.__name__, 22)
    number = 22 if recovers else begins_again
    feed.send(topic, [snapshot(number, a=1), update(number + 1, a=1)])
    halting.run()
    assert_proven(halting)


@pytest.mark.parametrize("halts_at_first", first_usual(1, [False, True]))
def test_sessions_that_were_suspended_when_the_policy_changed_are_proven_from_the_middle_of_a_log(
    feed: Feed, runs: LocalRuns, *, halts_at_first: bool
) -> None:
    topic = feed.create("values")
    suspending = runs.of(adding(feed.pattern, STRICT))
    halting = runs.of(adding(feed.pattern, replace(STRICT, on_violation=Halt())))
    feed.send(topic, session(2))
    feed.send(topic, session(2), key="other")
    (halting if halts_at_first else suspending).run()
    gap(feed, topic)
    suspending.run()
    for number in range(4, 6):
        feed.send(topic, [update(number, a=1)], key="other")
        halting.run()
    for until in (8, 9):  # the offset at which the policy starts to halt, and a batch later
        feed.expire(topic, until)
        assert_proven(halting)
    feed.send(topic, [snapshot(30, a=1)])
    halting.run()
    assert_proven(halting)


def test_a_policy_that_changes_again_and_again_is_that_of_each_batch(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    suspending = runs.of(adding(feed.pattern, STRICT))
    halting = runs.of(adding(feed.pattern, replace(STRICT, on_violation=Halt())))
    for number, each in enumerate((halting, suspending, halting, suspending, halting)):
        first = 10 * number
        feed.send(topic, session(2, first))
        if each is suspending:
            feed.send(topic, [update(first + 5, a=1), snapshot(first + 7, a=1), update(first + 8, a=POISON)])
        else:
            feed.send(topic, [update(first + number, a=1) for number in range(3, 10)])
        each.run()
        assert_proven(each)
    changes = OutputLog(runs.folders.table).base().head.policies
    assert [(each.first_batch, each.policy.suspends) for each in changes] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
        (5, False),
    ]


def test_growth_that_restarted_sessions_is_proven_after_it_is_a_violation(feed: Feed, runs: LocalRuns) -> None:
    halting = Strict(evidence=Numbers())
    topic = feed.create("values")
    restarting = runs.of(adding(feed.pattern, replace(halting, on_growth=RESTARTS)))
    feed.send(topic, session(2))
    restarting.run()
    growth(feed, topic)
    restarting.run()
    feed.send(topic, AGAIN)
    now = runs.of(adding(feed.pattern, halting))
    now.run()
    assert_proven(now)


def test_what_a_batch_passed_over_while_the_policy_halted_is_found(feed: Feed, runs: LocalRuns, tmp_path: Path) -> None:
    """The ledger of a stream that suspended, under a head whose policy halts."""
    topic = feed.create("values")
    suspending = runs.of(adding(feed.pattern, STRICT))
    feed.send(topic, [*session(2), snapshot(9, a=1)])
    suspending.run()
    assert_proven(suspending)
    elsewhere = StreamFolders(runs.folders.stream, tmp_path / "forged")
    Forged.copy(runs.folders.table.parent, elsewhere.table.parent)
    for entry in elsewhere.table.glob("_delta_log/*.json"):
        said = r"\"suspends\":true"
        halted = r"\"suspends\":false"
        entry.write_text(entry.read_text().replace(said, halted))
    report = verify_stream(suspending.stream, elsewhere, suspending.settings.kafka)
    assert ViolationKind.PAST_VIOLATION in {each.kind for each in report.violations}


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert (report.status, report.violations) == (InvariantStatus.PROVEN, ()), (report.violations, report.notes)
