"""The proof of a stream whose integrity class has changed: no batch is judged by the class of another batch."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Checksum, FuzzyWindow, LogOnly, NoIntegrity, Once, Ordered, Repeats, Sequence, Strict, Suspend
from lockstep.engine.driver.loop import RunOutcome
from lockstep.table.commit import OutputLog
from lockstep.verify.report import InvariantStatus, VerifyReport
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import session, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.minute_stream import FIRST, Value, totals
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed

BOUND = timedelta(seconds=10)
NUMBERED = Strict(evidence=Sequence(), session_start=FIRST)
CLASSES: dict[str, IntegrityClass] = {
    "ordered": Ordered(session_start=FIRST),
    "window": FuzzyWindow(lateness=BOUND, session_start=FIRST),
    "once": Once(keep_ids=10),
    "none": NoIntegrity(),
    "sequence": NUMBERED,
    "suspending": Strict(evidence=Sequence(), session_start=FIRST, on_violation=Suspend()),
    "count": Strict(evidence=LogOnly(), session_start=FIRST),
    "checksum": Strict(evidence=Checksum(), session_start=FIRST),
}


class Released:
    """A stream whose releases declare different classes, over one partition of two sessions."""

    def __init__(self, feed: Feed, root: Path) -> None:
        self.feed, self.topic = feed, feed.create("values")
        self.runs = LocalRuns(totals(feed.pattern, NUMBERED), feed.bootstrap_servers, root)
        self.send("left", 1, 2)

    def send(self, key: str, *numbers: int) -> None:
        self.feed.send(self.topic, [msgspec.json.encode(Value(t=each, v=1, n=each)) for each in numbers], key=key)

    def run(self, integrity: IntegrityClass, *numbers: int) -> None:
        """Send a value of 1 for each number, at its second, and read; the session `left` has no further message."""
        self.send("s", *numbers)
        assert self.runs.of(totals(self.feed.pattern, integrity)).run() is RunOutcome.ENDED

    def verify(self, integrity: IntegrityClass) -> VerifyReport:
        runs = self.runs.of(totals(self.feed.pattern, integrity))
        return verify_stream(runs.stream, runs.folders, runs.settings.kafka)


@pytest.fixture
def released(feed: Feed, tmp_path: Path) -> Released:
    return Released(feed, tmp_path)


USUAL = {("once", "once"), ("ordered", "window"), ("once", "none"), ("sequence", "suspending"), ("count", "checksum")}
PAIRS = keep_usual(USUAL, list(product(CLASSES, CLASSES)))


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_batches_of_another_class_are_not_judged_and_those_after_it_are(
    released: Released, before: str, after: str
) -> None:
    released.run(CLASSES[before], 1, 2, 3)
    released.run(CLASSES[after], 4, 5)
    released.run(CLASSES[after], 6)
    report = released.verify(CLASSES[after])
    assert report.violations == ()
    if {before, after} in ({before}, {"sequence", "suspending"}):
        assert report.status is InvariantStatus.PROVEN
        return
    assert report.status is InvariantStatus.NOT_PROVEN
    (note,) = [each for each in report.notes if "not judged" in each]
    assert note.startswith(f"{released.topic}/0: batches up to 1 are not judged: their class was ")
    assert [scope.proven_from for scope in report.scopes] == [5]
    assert report.counts["with_rows"] == 3


def test_what_the_class_of_its_time_skipped_is_no_violation_of_todays(released: Released) -> None:
    """`Ordered` counts a gap, and `Strict` stops at it."""
    released.run(CLASSES["ordered"], 1, 2, 7, 8)
    released.run(NUMBERED, 9, 10)
    report = released.verify(NUMBERED)
    assert (report.status, report.violations) == (InvariantStatus.NOT_PROVEN, ())


def test_a_class_that_comes_back_is_judged_from_its_second_time_on(released: Released) -> None:
    for number, name in enumerate(("sequence", "once", "sequence")):
        released.run(CLASSES[name], 2 * number + 1, 2 * number + 2)
    report = released.verify(NUMBERED)
    assert (report.status, report.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert [scope.proven_from for scope in report.scopes] == [6]
    changes = OutputLog(released.runs.folders.table).base().head.policies
    shown = [(each.first_batch, each.integrity.partition("(")[0]) for each in changes]
    assert shown == [(1, "Strict"), (2, "Once"), (3, "Strict")]


def test_sessions_that_todays_class_cannot_take_over_are_proven_from_their_next_snapshot(
    feed: Feed, runs: LocalRuns
) -> None:
    """They are suspended: `Strict` has no number to compare with."""
    topic = feed.create("values")
    feed.send(topic, session(3))
    runs.of(adding(feed.pattern, Strict(evidence=LogOnly(), on_violation=Suspend()))).run()
    numbered = runs.of(adding(feed.pattern, Strict(evidence=Sequence(), on_violation=Suspend())))
    feed.send(topic, [update(5, a=1), snapshot(9, a=1), update(10, a=1)])
    numbered.run()
    report = verify_stream(numbered.stream, numbered.folders, numbered.settings.kafka)
    assert (report.status, report.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert [scope.proven_from for scope in report.scopes] == [4]


def test_a_class_whose_sessions_the_proof_cannot_take_over_proves_order_and_counts(released: Released) -> None:
    dropping = Strict(evidence=Sequence(), session_start=FIRST, repeats=Repeats.DROP)
    released.run(NUMBERED, 1, 2)
    released.run(dropping, 3)
    report = released.verify(dropping)
    assert (report.status, report.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert [scope.proven_from for scope in report.scopes] == [None]
