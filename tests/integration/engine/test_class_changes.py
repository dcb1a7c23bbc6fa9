"""A release declares another integrity class: state and buffered messages are used, kept or refused, never misread."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Checksum, FuzzyWindow, LogOnly, Once, Ordered, Sequence, Strict, Suspend
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.inspect.plan import plan_restart
from lockstep.state.codec import IntegrityClassChanged
from tests.support.local_runs import LocalRuns
from tests.support.minute_stream import FIRST, Value, totals
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed

BOUND = timedelta(seconds=10)
WINDOW = FuzzyWindow(lateness=BOUND, session_start=FIRST)
REORDERED = FuzzyWindow(lateness=BOUND, reorder=True, session_start=FIRST)
CLASSES: dict[str, IntegrityClass] = {
    "ordered": Ordered(session_start=FIRST),
    "window": WINDOW,
    "once": Once(keep_ids=10),
    "sequence": Strict(evidence=Sequence(), session_start=FIRST),
    "count": Strict(evidence=LogOnly(), session_start=FIRST),
    "checksum": Strict(evidence=Checksum(), session_start=FIRST),
}

USUAL = {"ordered", "window", "sequence"}
"""Classes that are tested by default; each test passes through all classes."""


class Released:
    """A stream whose releases declare different classes in turn, over one partition with one session."""

    def __init__(self, feed: Feed, root: Path) -> None:
        self.feed, self.topic = feed, feed.create("values")
        self.runs = LocalRuns(totals(feed.pattern, WINDOW), feed.bootstrap_servers, root)

    def under(self, integrity: IntegrityClass) -> LocalRuns:
        return self.runs.of(totals(self.feed.pattern, integrity))

    def run(self, integrity: IntegrityClass, *numbers: int) -> None:
        """Send a value of 1 for each number, with the number as its second, and run."""
        values = [msgspec.json.encode(Value(t=number, v=1, n=number)) for number in numbers]
        self.feed.send(self.topic, values, key="s")
        assert self.under(integrity).run() is RunOutcome.ENDED

    def totals(self) -> list[object]:
        """Return the total after each message except the first of a session, which has no row."""
        rows = read_table(self.runs.folders.table).to_pylist()
        return [row["total"] for row in sorted(rows, key=lambda row: (row["_emit_offset"], row["_row"]))]


@pytest.fixture
def released(feed: Feed, tmp_path: Path) -> Released:
    return Released(feed, tmp_path)


@pytest.mark.parametrize(
    "after", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in CLASSES]
)
def test_a_session_keeps_its_state_under_another_class(released: Released, after: str) -> None:
    """After all other classes in turn, the class under test starts with new evidence and keeps the state."""
    number = 0
    for name in (*(name for name in CLASSES if name != after), after):
        released.run(CLASSES[name], number + 1, number + 2)
        number += 2
    assert released.totals() == list(range(2, number + 1))
    released.run(CLASSES[after], number + 1)
    assert released.totals()[-1] == number + 1


def test_a_number_of_messages_is_not_taken_for_a_number_of_the_producer(released: Released) -> None:
    released.run(Strict(evidence=LogOnly(), session_start=FIRST), 1001, 1002, 1003)
    released.run(Strict(evidence=Sequence(), session_start=FIRST), 1004, 1005)
    with pytest.raises(IntegrityLost, match="expected 1006, found 1007"):
        released.run(Strict(evidence=Sequence(), session_start=FIRST), 1007)


@pytest.mark.parametrize("after", [WINDOW, Ordered(session_start=FIRST)], ids=["window", "ordered"])
def test_a_class_that_would_lose_buffered_messages_is_refused(released: Released, after: IntegrityClass) -> None:
    released.run(REORDERED, 1, 3, 5)
    released.feed.send(released.topic, [msgspec.json.encode(Value(t=60, v=1, n=60))], key="s")
    refused = plan_restart(released.under(after).stream, released.runs.settings).refused
    assert "was written by an integrity class with FuzzyWindow(reorder=True)" in refused
    with pytest.raises(IntegrityClassChanged, match="messages that it has buffered would be lost"):
        released.under(after).run()
    assert released.under(REORDERED).run() is RunOutcome.ENDED
    assert released.totals() == [2, 3]


@pytest.mark.parametrize(
    ("after", "then"),
    [
        (Strict(evidence=Sequence()), "halt the stream with their next message that is not a snapshot"),
        (Strict(evidence=Sequence(), on_violation=Suspend()), "wait for their next snapshot"),
        (Strict(evidence=Sequence(), session_start=FIRST), "continue with their next message"),
        (Once(keep_ids=10), "continue with their next message"),
    ],
    ids=["halts", "suspends", "first message", "once"],
)
def test_the_plan_says_what_becomes_of_sessions_under_another_class(
    released: Released, after: IntegrityClass, then: str
) -> None:
    before = Strict(evidence=Checksum(), session_start=FIRST)
    released.run(before, 1, 2)
    assert plan_restart(released.under(before).stream, released.runs.settings).changes == ()
    newer = released.under(after)
    (change,) = plan_restart(newer.stream, newer.settings).changes
    assert change.startswith(
        "integrity class: Strict(session_start=SessionStart.FIRST_MESSAGE, evidence=Checksum()), now"
    )
    assert change.endswith(f"sessions whose evidence it cannot use {then}")
    goes_on = "halt" not in then
    with nullcontext() if goes_on else pytest.raises(IntegrityLost, match="unknown session"):
        released.run(after, 3, 4)
    assert released.totals() == ([2, 3, 4] if "continue" in then else [2])


def test_a_session_without_numbers_is_not_compared_with_one_that_has_them(released: Released) -> None:
    """An offset is not a producer's number: the session is suspended, and its next message restarts it."""
    ordered = Ordered(session_start=FIRST)
    released.feed.send(released.topic, [msgspec.json.encode(Value(t=1, v=1))] * 6, key="s")
    assert released.under(ordered).run() is RunOutcome.ENDED
    assert released.totals() == [2, 3, 4, 5, 6]
    released.run(ordered, 1, 2, 3)
    assert released.totals() == [2, 3, 4, 5, 6, 2]
    (refused,) = read_table(released.runs.folders.quarantine).to_pylist()
    assert (refused["offset"], refused["cause"], refused["found"]) == (6, "no evidence", "sequence=1")
